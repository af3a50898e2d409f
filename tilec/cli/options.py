"""What several commands take: a source, and what is known of its inputs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import tilec
from tilec.arguments import OPEN_SIZE, Spec
from tilec.errors import InputMistake, NameMistake

STDIN = "-"


def add_source(sub: argparse.ArgumentParser, several: bool = False, entry: bool = True) -> None:
    """FILE (several of them where a command takes so many) or -e TEXT, and --entry for a command that takes one
    function."""
    what = "Tile sources" if several else "a Tile source"
    sub.add_argument("file", nargs="*", metavar="FILE", help=f"{what}; - is standard input")
    sub.add_argument("-e", dest="text", metavar="TEXT", help="the source itself, in place of a file")
    if entry:
        sub.add_argument("--entry", metavar="NAME", help="the function to take where the file holds several")
    sub.set_defaults(several=several, usage_error=sub.error)


def add_types(sub: argparse.ArgumentParser) -> None:
    """--shape, --dtype and --value, each any number of times and with any number of inputs."""

    def option(name: str, metavar: str, text: str) -> None:
        sub.add_argument(name, action="extend", nargs="+", default=[], metavar=metavar, help=text)

    option("--shape", "NAME=N,N,...", "sizes of inputs, as in --shape A=3,4 B=4,5")
    option("--dtype", "NAME=TYPE", "types of inputs (default: float32)")
    option("--value", "NAME=NUMBER", "values of rank-0 inputs: integers that sizes need, or floats")


def check_source(args: argparse.Namespace) -> None:
    """Wrong usage ends here: no source, two sources. A file that stands after a list of inputs is found in it."""
    for option in ("shape", "dtype", "value", "input", "output"):
        items: list[str] = getattr(args, option, [])
        args.file += [item for item in items if "=" not in item]
        items[:] = [item for item in items if "=" in item]
    fail: NoReturn | None = None  # argparse's error does not return
    if args.text is not None and args.file:
        told = f"a FILE and -e TEXT exclude each other, and {args.file[0]} is taken for a FILE"
        fail = args.usage_error(f"{told}; a value of an option has its name before it, as in X=3")
    if args.text is None and not args.file:
        fail = args.usage_error("a FILE or -e TEXT is required")
    if len(args.file) > 1 and not args.several:
        told = f"one FILE is expected, and here are {len(args.file)}: {', '.join(args.file)}"
        if (pair := next((item for item in args.file if "=" in item), None)) is not None:
            told += f"; write --{'input' if hasattr(args, 'input') else 'shape'} before {pair}"
        fail = args.usage_error(told)
    assert fail is None


def compiled(args: argparse.Namespace, backend: str | None = None, file: str | None = None) -> tilec.Function:
    """The function of the source that the arguments name."""
    if args.text is not None:
        return tilec.compile(args.text, entry=args.entry, backend=backend)
    file = args.file[0] if file is None else file
    if file == STDIN:
        return tilec.compile(sys.stdin.read(), entry=args.entry, backend=backend)
    return tilec.load(file, entry=args.entry, backend=backend)


def argument_specs(function: tilec.Function, args: argparse.Namespace) -> list[Spec | int | float]:
    """What --shape, --dtype and --value say of each input."""
    shapes = pairs(args.shape, "--shape", function.inputs)
    dtypes = pairs(args.dtype, "--dtype", function.inputs)
    values = pairs(args.value, "--value", function.inputs)
    inputs: list[Spec | int | float] = []
    for declared in function.program.inputs:
        name = declared.name
        if name in values:
            value = parsed_number(values[name])
            if value is None:
                raise InputMistake(f"--value {name}={values[name]}: expected a number")
            inputs.append(value)
        elif name in shapes or declared.dims == () or _literal(declared.dims):
            texts = [n.strip() for n in shapes.get(name, "").split(",") if n.strip()]
            sizes: list[int | str] = [
                n if OPEN_SIZE.fullmatch(n) and "target" in args else _integer(n, f"--shape {name}=") for n in texts
            ]
            sizes = sizes if name in shapes else [d for d in declared.dims or () if isinstance(d, int)]
            inputs.append(tilec.spec(sizes, dtypes.get(name, "float32")))
        else:
            raise InputMistake(
                f"the shape of {name} is not known", hint=f"add --shape {name}=sizes, or --value {name}=number"
            )
    return inputs


def pairs(items: Sequence[str], option: str, names: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE options as a dictionary; every NAME must be one of names."""
    found: dict[str, str] = {}
    for item in items:
        name, _, value = item.partition("=")
        if not name or not value and option != "--shape":  # of which an empty one is rank 0
            raise InputMistake(f"{option} {item}: something stands on both sides of the `=`")
        if name not in names:
            raise NameMistake(f"{option} {item}: there is no {name} here", hint="one of " + ", ".join(names))
        if name in found:
            raise InputMistake(f"{option} {item}: {name} is given twice")
        found[name] = value
    return found


def parsed_number(text: str) -> int | float | None:
    """An integer or a float; None of another text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def _integer(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputMistake(f"{where}{text}: expected an integer") from None


def _literal(dims: tuple[str | int, ...] | None) -> bool:
    return dims is not None and all(isinstance(d, int) for d in dims)
