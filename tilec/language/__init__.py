"""Text to Program and back: `parse`, `show`, and the parts of it for single statements and expressions."""

from __future__ import annotations

from tilec.errors import TileError
from tilec.ir.program import Program
from tilec.language.grammar import parse_text
from tilec.language.program import build_all, choose_entry
from tilec.language.show import show, show_constraint, show_expr, show_statement
from tilec.language.syntax import MAX_DEPTH

__all__ = ["MAX_DEPTH", "parse", "show", "show_constraint", "show_expr", "show_statement"]


def parse(source: str, *, filename: str = "<tile>", entry: str | None = None) -> Program:
    """The program of a Tile source: the function named `entry`, or else the last.

    Raises a TileError of the mistake's own class, with the place in the source, on any text that is no Tile program.
    """
    try:
        functions = parse_text(source)
        position = choose_entry(functions, entry)
        return build_all(functions, source)[position]
    except TileError as error:
        raise error.located(source, filename) from None
