"""The commands that take a program: check, show, grad, run, tune."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import tilec
from tilec import knobs
from tilec.backends import NAMES
from tilec.cli.options import STDIN, add_source, add_types, argument_specs, compiled, pairs, parsed_number
from tilec.cli.progress import progress
from tilec.display.latex import latex
from tilec.errors import InputMistake, TileError
from tilec.language.hints.misspelt import nothing_reads
from tilec.pipeline import STAGES
from tilec.prepare.warn import say

POLL = 0.3  # seconds between two looks at the files that are watched
VALUES = 1000  # elements of an output that are printed whole; of larger ones the corners


def add(commands) -> None:
    check = commands("check", _check, "parse and check programs; print their signatures")
    add_source(check, several=True)
    check.add_argument("--watch", action="store_true", help="check again whenever a file changes, until Ctrl-C")
    show = commands("show", _show, "print a program, or what a pass makes of it for given shapes")
    add_source(show)
    add_types(show)
    show.add_argument("--stage", choices=(*STAGES, "grouped", "code"), help="a pass's result, or the generated code")
    show.add_argument("--latex", action="store_true", help="in mathematical notation, as LaTeX")
    grad = commands("grad", _grad, "print a program's gradient as Tile")
    add_source(grad)
    grad.add_argument("--latex", action="store_true", help="in mathematical notation, as LaTeX")
    grad.add_argument("--wrt", metavar="NAME,...", help="inputs to differentiate by (default: all)")
    run = commands("run", _run, "run a program on .npy files and numbers; print its outputs or write them to files")
    add_source(run)
    told = "the inputs: arrays of NumPy in files, or numbers"
    run.add_argument("--input", action="extend", nargs="+", default=[], metavar="NAME=FILE.npy|NUMBER", help=told)
    told = "where to write outputs (default: print them)"
    run.add_argument("--output", action="extend", nargs="+", default=[], metavar="NAME=FILE.npy", help=told)
    tune = commands("tune", _tune, "measure a program's GPU kernels for given shapes and keep the fastest")
    add_source(tune)
    add_types(tune)
    tune.add_argument("--backend", choices=NAMES, help="as in tilec.compile (default: the one that serves a GPU)")
    tune.add_argument("--grad", action="store_true", help="the gradient's kernels too")


def _check(args: argparse.Namespace) -> int:
    files = [None] if args.text is not None else args.file
    return _watch(args) if args.watch else int(not all([_checked(args, file) for file in files]))


def _checked(args: argparse.Namespace, file: str | None) -> bool:
    """Whether one file is right; says so on standard output, or what is wrong on standard error."""
    try:
        function = compiled(args, file=file)
        for mistake in nothing_reads(function.program):
            say(mistake, function.source, function.filename, strict=False)
    except TileError as error:
        print(f"tilec: {error}", file=sys.stderr)
        return False
    print(f"{'<tile>' if file in (None, STDIN) else file}: ok: {function!r}")
    return True


def _watch(args: argparse.Namespace) -> int:
    """Check files as they change. Ends with Ctrl-C."""
    if args.text is not None or STDIN in args.file:
        raise InputMistake("--watch takes files: nothing else changes")
    seen: dict[str, object] = {}
    while True:
        for file in args.file:
            state = _state(file)
            if file not in seen or seen[file] != state:
                if file in seen:
                    print(time.strftime("-- %H:%M:%S"), flush=True)
                seen[file] = state
                _checked(args, file)
                sys.stdout.flush()
        time.sleep(POLL)


def _state(file: str) -> object:
    """What changes when a file does; None while there is none, as when an editor replaces it."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _show(args: argparse.Namespace) -> None:
    function = compiled(args)
    if args.stage in (None, "source"):
        print(function.latex() if args.latex else function.tile)
        return
    with progress(f"compiling {function!r}"):
        lowered = function.lower(*argument_specs(function, args))
        text = lowered.source() if args.stage == "code" else ""
    if args.stage == "code":
        print(text)
    else:  # without groups the flat program is what kernels are made from
        program = lowered.stages.get(args.stage, lowered.stages["flat"])
        print(latex(program) if args.latex else tilec.language.show(program))


def _tune(args: argparse.Namespace) -> None:
    function = compiled(args, args.backend)
    start = time.perf_counter()
    with progress(f"tuning {function!r}"):
        tilec.tune(function, *argument_specs(function, args), gradients=args.grad)
    print(f"{function!r}: tuned in {time.perf_counter() - start:.1f} s, kept in {knobs.cache_directory()}")


def _grad(args: argparse.Namespace) -> None:
    function = compiled(args)
    gradient = function.grad(None if args.wrt is None else [n.strip() for n in args.wrt.split(",")])
    print(gradient.latex() if args.latex else gradient.tile)


def _run(args: argparse.Namespace) -> None:
    function = compiled(args)
    given = pairs(args.input, "--input", function.inputs)
    wanted = pairs(args.output, "--output", function.outputs)
    missing = [name for name in function.inputs if name not in given]
    if missing:
        raise InputMistake(f"no value for {', '.join(missing)}", hint=f"add --input {missing[0]}=file.npy")
    inputs = [_load(name, given[name]) for name in function.inputs]
    with progress(f"running {function!r}"):
        results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(function.outputs, results, strict=True):
        array = np.asarray(result)
        head = f"{name}: {array.dtype} of shape {array.shape}"
        if name in wanted:
            try:
                with open(wanted[name], "wb") as file:  # of a name, NumPy makes one that ends in .npy
                    np.save(file, array)
            except OSError as error:
                raise InputMistake(f"cannot write {wanted[name]}: {error.strerror}") from None
            print(f"{head} -> {wanted[name]}")
        else:
            print(f"{head}\n{np.array2string(array, threshold=VALUES)}")


def _load(name: str, text: str) -> np.ndarray | int | float:
    """A number, or the array in a .npy file; pickled objects are not loaded."""
    if (number := parsed_number(text)) is not None:
        return number
    try:
        return np.load(Path(text), allow_pickle=False)
    except OSError as error:
        raise InputMistake(f"--input {name}: cannot read {text}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputMistake(f"--input {name}: {text} is no .npy array: {error}") from None
