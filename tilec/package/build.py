"""Compile a function ahead of time, without a device, into a package: cubins, a manifest, and what launches them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import triton

from tilec.backends.common.code import python_name
from tilec.backends.triton.runtime.executable import TritonProgram
from tilec.errors import InputMistake, TileError
from tilec.function import Function
from tilec.ir.shape_class import Recorder
from tilec.ir.symbolic import Pinned
from tilec.ir.types import TensorType, shapes_in
from tilec.package import launches, loader
from tilec.package.cpp import header_text, launcher_text
from tilec.package.kernels import Kernels, file_names
from tilec.package.open_sizes import as_json, described_sizes, in_c, with_open_sizes
from tilec.package.steps import resolve_plan, strides_of
from tilec.specialise import Specialiser
from tilec.version import __version__

PACKAGE_NAME = re.compile(r"[A-Za-z]\w*")


def write_package(
    function: Function,
    args: Sequence[object],
    target: str,
    directory: str | PathLike[str],
    gradients: bool,
    name: str | None,
    also: Sequence[Sequence[object]] = (),
) -> Path:
    """Write the package; returns its directory. What is there already is replaced file by file. `also`: arguments of
    other shapes and types, for which it has entries too."""
    if function.backend == "torch":
        raise InputMistake("the torch backend compiles nothing ahead of time", hint="leave backend out")
    title = name or (python_name(function.program.name) if function.program.name else "program")
    if not PACKAGE_NAME.fullmatch(title):
        raise InputMistake(f"{title!r} cannot name a package", hint="letters, digits and _, the first a letter")
    kernels, tables, entries = Kernels(target), [], []  # type: ignore[var-annotated]
    try:
        for number, given in enumerate((args, *also), 1):
            suffix = "" if number == 1 else f"_{number}"
            recorder = Recorder()
            types, values = function.types_of(with_open_sizes(given, recorder))
            how = values, kernels, tables, recorder
            entries.append(_entry(function.specialiser, f"{title}_forward{suffix}", types, *how))
            if gradients:
                gradient = function.specialiser.grad(function.inputs)
                wanted = [*types.values(), *_cotangents(function, types, values)]
                described = dict(zip(gradient.inputs, wanted, strict=True))
                entries.append(_entry(gradient, f"{title}_gradient{suffix}", described, *how))
    except TileError as error:
        raise error.located(function.source, function.filename) from None
    except Pinned as pinned:
        names = ", ".join(sorted(name.removeprefix("size_") for name in pinned.symbols))
        raise InputMistake(
            f"the size {names} cannot be left open: a kernel or the plan is made for its value", hint="give it a number"
        ) from None
    files = file_names(kernels.images)
    manifest: dict[str, Any] = {
        "format": loader.PACKAGE_FORMAT,
        "name": title,
        "tilec": __version__,
        "triton": triton.__version__,
        "target": target,
        "entries": entries,
        "kernels": [
            {"file": file, "symbol": k.symbol, "shared": k.shared, "threads": k.threads, "statements": k.statements}
            for file, k in zip(files, kernels.images, strict=True)
        ],
        "tables": tables,
        "source": function.tile,
    }
    manifest = as_json(manifest)
    in_numbers = in_c(manifest)
    texts = {
        "manifest.json": json.dumps(manifest, indent=1) + "\n",
        f"{title}.h": header_text(in_numbers),
        f"{title}.cpp": launcher_text(in_numbers),
        "package.py": loader_text(),
    }
    images = {file: kernel.image for file, kernel in zip(files, kernels.images, strict=True)}
    return _written(Path(directory), {**images, **{file: text.encode() for file, text in texts.items()}})


def _written(path: Path, contents: Mapping[str, bytes]) -> Path:
    """The directory with these files in it, and no kernels of earlier ones."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        for old in path.glob("[0-9][0-9]*_*.cubin"):
            old.unlink()
        for file, content in contents.items():
            (path / file).write_bytes(content)
    except OSError as error:
        raise InputMistake(f"cannot write {error.filename or path}: {error.strerror}") from None
    return path


def loader_text() -> str:
    own, below = (Path(str(m.__file__)).read_text(encoding="utf-8") for m in (loader, launches))
    heading, _, rest = own.partition("from __future__ import annotations\n")
    rest = re.sub(r"^from tilec\.package\.launches import [^\n]*\n", "", rest, flags=re.M)
    return f"{heading}{below[below.index('from __future__') :]}\n{rest}"


def _cotangents(function: Function, types: Mapping[str, TensorType], values: Mapping[str, int]) -> list[TensorType]:
    """The d_outputs' types: the outputs'."""
    found = function.specialiser.results(dict(types), dict(values))
    return [t for t in found if t is not None]


def _entry(
    made: Specialiser,
    name: str,
    types: Mapping[str, TensorType],
    values: Mapping[str, int],
    kernels: Kernels,
    tables: list,
    recorder: Recorder,
) -> dict[str, Any]:
    """One function of the package as the manifest has it."""
    special, executable = made.ahead(dict(types), dict(values), kernels.target, recorder if recorder.names else None)
    assert isinstance(executable, TritonProgram)
    ignored = {made.inputs[p] for p, r in special.replaced.items() if r.ignored}
    inputs = {n: special.types[n] for n in made.inputs}
    outputs = special.program.outputs
    resolved = resolve_plan(executable.plan, inputs, outputs, ignored, len(tables))
    tables += resolved.tables
    steps, workspace = kernels.steps(resolved)
    results = made.results(dict(types), dict(values))
    entry: dict[str, Any] = {
        "name": name,
        "inputs": [
            {**_described(n, t), "strides": list(strides_of(t)), "ignored": n in ignored}
            | ({"value": values[n]} if n in values else {})
            for n, t in inputs.items()
        ],
        "outputs": [None if t is None else _described(n, t) for n, t in zip(made.outputs, results, strict=True)],
        "workspace": workspace,
        "steps": steps,
    }
    if recorder.names:
        entry |= described_sizes(recorder, shapes_in(types))
    if made.gradient is not None:
        entry["wrt"] = list(made.gradient.wrt)
    return entry


def _described(name: str, t: TensorType) -> dict[str, Any]:
    return {"name": name, "dtype": t.dtype, "shape": list(t.shape)}
