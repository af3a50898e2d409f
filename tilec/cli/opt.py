"""`tilec opt`: chosen passes alone, Tile in and Tile out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tilec import Function
from tilec.arguments import size_value, types_of
from tilec.cli.options import add_source, add_types, argument_specs, compiled
from tilec.errors import InputMistake, InternalMistake, TileError
from tilec.ir.verify import verify
from tilec.language import show
from tilec.pipeline import TRANSFORMS, CallContext, apply


def add(commands) -> None:
    opt = commands("opt", _opt, "run passes alone on a program and print what they make of it")
    add_source(opt)
    add_types(opt)
    opt.add_argument(
        "-p", "--passes", required=True, metavar="PASS,...", help=f"what to run, in this order: {', '.join(TRANSFORMS)}"
    )


def _opt(args: argparse.Namespace) -> None:
    function = compiled(args)
    print(optimised(function, argument_specs(function, args), args.passes))


def optimised(function: Function, given: Sequence[object], passes: str) -> str:
    """The text of a function's program after these passes. `given`: specs of its inputs, integers of sizes.

    Raises InputMistake for a pass that does not exist, and for a program that is not bound where the first pass is
    not "bind".
    """
    names = [name.strip() for name in passes.split(",") if name.strip()]
    for name in names:
        if name not in TRANSFORMS:
            raise InputMistake(f"there is no pass {name}", hint="one of " + ", ".join(TRANSFORMS))
    program = function.program
    types = types_of(function.inputs, given)
    if names and names[0] != "bind":
        try:
            verify(program, bound=True)
        except InternalMistake as mistake:
            hint = "put bind first, or take what `tilec show --stage bound` prints"
            raise InputMistake(f"{names[0]} runs on a bound program; in this one {mistake}", hint=hint) from None
    values = {n: size_value(n, a) for n, a in zip(function.inputs, given, strict=True) if isinstance(a, int)}
    try:
        return show(apply(names, program, CallContext(types, values)))
    except TileError as error:
        raise error.located(function.source, function.filename) from None
