"""The command build: kernels ahead of time, in a package that loads without tilec."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import tilec
from tilec.cli.options import add_source, add_types, argument_specs, compiled
from tilec.cli.progress import progress
from tilec.transforms.bind.sizes import counted


def add(commands) -> None:
    build = commands("build", _build, "compile kernels ahead of time, without a GPU, for Python and for C++")
    add_source(build)
    add_types(build)
    build.add_argument("--target", required=True, metavar="ARCH", help="the GPU's architecture, such as sm_90")
    build.add_argument("-o", dest="directory", required=True, metavar="DIR", help="the directory to write")
    build.add_argument("--grad", action="store_true", help="the gradient by all inputs too")
    build.add_argument("--name", help="what the package's functions are called (default: the function's name)")


def _build(args: argparse.Namespace) -> None:
    function = compiled(args)
    given, *also = (argument_specs(function, argparse.Namespace(**{**vars(args), **s})) for s in _sets(args))
    start = time.perf_counter()
    with progress(f"building {function!r}"):
        path = tilec.build(
            function,
            *given,
            target=args.target,
            directory=args.directory,
            gradients=args.grad,
            name=args.name,
            also=also,
        )
    size = sum(f.stat().st_size for f in path.iterdir() if f.is_file())
    kernels = counted(len(list(path.glob("*.cubin"))), "kernel")
    print(f"{path}: {kernels} for {args.target}, {size / 1024:.0f} KiB, in {time.perf_counter() - start:.1f} s")


def _sets(args: argparse.Namespace) -> Iterator[dict[str, list[str]]]:
    """The k-th set has the k-th shape, type and value that each input is given, or its last."""
    options = ("shape", "dtype", "value")
    columns = {o: [item.partition("=")[::2] for item in getattr(args, o)] for o in options}
    given = {o: {name: [v for n, v in items if n == name] for name, _ in items} for o, items in columns.items()}
    count = max((len(v) for found in given.values() for v in found.values()), default=1)
    for k in range(count):
        yield {o: [f"{n}={v[min(k, len(v) - 1)]}" for n, v in found.items()] for o, found in given.items()}
