"""The command line: check, show, grad, run, tune.

Bad input ends in exit code 1 with the diagnostic on standard error, wrong usage in exit code 2 (argparse's).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tilec
from tilec import knobs
from tilec.arguments import Spec
from tilec.backends import NAMES
from tilec.errors import InputMistake, TileError
from tilec.pipeline import STAGES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except TileError as error:
        print(f"tilec: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec", description="Compile, look at, differentiate and run Tile programs.")
    parser.add_argument("--version", action="version", version=f"tilec {tilec.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        source = sub.add_mutually_exclusive_group(required=True)
        source.add_argument("file", nargs="?", metavar="FILE", help="a Tile source")
        source.add_argument("-e", dest="text", metavar="TEXT", help="the source itself, in place of a file")
        sub.add_argument("--entry", metavar="NAME", help="the function to take where the file holds several")
        sub.set_defaults(run=run)
        return sub

    def typed(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--shape", action="append", default=[], metavar="NAME=N,N,...", help="sizes of an input")
        sub.add_argument("--dtype", action="append", default=[], metavar="NAME=TYPE", help="type of an input (float32)")
        sub.add_argument("--value", action="append", default=[], metavar="NAME=N", help="integer of a rank-0 input")
        return sub

    command("check", _check, "parse and check a program; print its signature")
    show = typed(command("show", _show, "print a program, or what a pass makes of it for given shapes"))
    show.add_argument("--stage", choices=(*STAGES, "grouped", "code"), help="a pass's result, or the generated code")
    grad = command("grad", _grad, "print a program's gradient as Tile")
    grad.add_argument("--wrt", metavar="NAME,...", help="inputs to differentiate by (default: all)")
    run = command("run", _run, "run a program on .npy files")
    run.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy|NUMBER")
    run.add_argument("--output", action="append", default=[], metavar="NAME=FILE.npy")
    tune = typed(command("tune", _tune, "measure a program's GPU kernels for given shapes and keep the fastest"))
    tune.add_argument("--backend", choices=NAMES, help="as in tilec.compile (default: the one that serves a GPU)")
    tune.add_argument("--grad", action="store_true", help="the gradient's kernels too")
    return parser


def _compiled(args: argparse.Namespace, backend: str | None = None) -> tilec.Function:
    if args.text is not None:
        return tilec.compile(args.text, entry=args.entry, backend=backend)
    return tilec.load(args.file, entry=args.entry, backend=backend)


def _check(args: argparse.Namespace) -> None:
    print(f"{args.file or '<tile>'}: ok: {_compiled(args)!r}")


def _show(args: argparse.Namespace) -> None:
    function = _compiled(args)
    if args.stage in (None, "source"):
        print(function.tile)
        return
    lowered = function.lower(*_arguments(function, args))
    if args.stage == "code":
        print(lowered.source())
    else:  # without groups the flat program is what kernels are made from
        print(tilec.language.show(lowered.stages.get(args.stage, lowered.stages["flat"])))


def _tune(args: argparse.Namespace) -> None:
    function = _compiled(args, args.backend)
    start = time.perf_counter()
    tilec.tune(function, *_arguments(function, args), gradients=args.grad)
    print(f"{function!r}: tuned in {time.perf_counter() - start:.1f} s, kept in {knobs.cache_directory()}")


def _arguments(function: tilec.Function, args: argparse.Namespace) -> list[Spec | int]:
    """What --shape, --dtype and --value say of each input."""
    shapes = _pairs(args.shape, "--shape", function.inputs)
    dtypes = _pairs(args.dtype, "--dtype", function.inputs)
    values = _pairs(args.value, "--value", function.inputs)
    inputs: list[Spec | int] = []
    for declared in function.program.inputs:
        name = declared.name
        if name in values:
            inputs.append(_integer(values[name], f"--value {name}="))
        elif name in shapes or declared.dims == () or _literal(declared.dims):
            sizes = [_integer(n, f"--shape {name}=") for n in shapes.get(name, "").split(",") if n.strip()]
            sizes = sizes if name in shapes else [d for d in declared.dims or () if isinstance(d, int)]
            inputs.append(tilec.spec(sizes, dtypes.get(name, "float32")))
        else:
            raise InputMistake(
                f"the shape of {name} is not known", hint=f"add --shape {name}=sizes, or --value {name}=N"
            )
    return inputs


def _literal(dims: tuple[str | int, ...] | None) -> bool:
    return dims is not None and all(isinstance(d, int) for d in dims)


def _grad(args: argparse.Namespace) -> None:
    function = _compiled(args)
    print(function.grad(None if args.wrt is None else [n.strip() for n in args.wrt.split(",")]).tile)


def _run(args: argparse.Namespace) -> None:
    function = _compiled(args)
    given = _pairs(args.input, "--input", function.inputs)
    wanted = _pairs(args.output, "--output", function.outputs)
    missing = [name for name in function.inputs if name not in given]
    if missing:
        raise InputMistake(f"no value for {', '.join(missing)}", hint=f"add --input {missing[0]}=file.npy")
    results = function(*(_load(name, given[name]) for name in function.inputs))
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(function.outputs, results, strict=True):
        array = np.asarray(result)
        if name in wanted:
            try:
                np.save(wanted[name], array)
            except OSError as error:
                raise InputMistake(f"cannot write {wanted[name]}: {error.strerror}") from None
        print(f"{name}: {array.dtype} of shape {array.shape}" + (f" -> {wanted[name]}" if name in wanted else ""))


def _pairs(items: Sequence[str], option: str, names: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE options as a dictionary; every NAME must be one of names."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputMistake(f"{option} {item}: expected NAME=VALUE")
        if name not in names:
            raise InputMistake(f"{option} {item}: there is no {name} here", hint="one of " + ", ".join(names))
        pairs[name] = value
    return pairs


def _integer(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputMistake(f"{where}{text}: expected an integer") from None


def _load(name: str, text: str) -> np.ndarray | int | float:
    """A number, or the array in a .npy file; pickled objects are not loaded."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    try:
        return np.load(Path(text), allow_pickle=False)
    except OSError as error:
        raise InputMistake(f"--input {name}: cannot read {text}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputMistake(f"--input {name}: {text} is no .npy array: {error}") from None
