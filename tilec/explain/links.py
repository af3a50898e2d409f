"""Statements, kernels and lines of generated code of one lowered function, linked by the statements' names.

A statement that no kernel stores is computed inside of those that read it: lines of a kernel then serve it too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.explain.linking import Line, host_lines
from tilec.ir.program import Statement, reads
from tilec.language import show_statement
from tilec.lowered import Lowered


@dataclass(frozen=True)
class LinkedKernel:
    """A kernel's text and, where there is one, its block program; `statements` are those that it computes."""

    name: str
    statements: tuple[str, ...]
    lines: tuple[Line, ...]
    block: tuple[Line, ...]


class Links:
    """The links of one lowered function; `anchor` tells forward and gradient apart."""

    def __init__(self, lowered: Lowered, anchor: str):
        flat = {s.output: s for s in lowered.stages["flat"].statements}
        grouped = {s.output: s for s in lowered.stages.get("grouped", lowered.stages["flat"]).statements}
        self._statements: Mapping[str, Statement] = {**flat, **{n: s for n, s in grouped.items() if n not in flat}}
        order = [*flat, *(n for n in grouped if n not in flat)]
        self._keys = {name: f"{anchor}-s{n}" for n, name in enumerate(order)}
        source = lowered.source()
        made = [k for k in lowered.kernels if k.source not in ("", source)]
        stored = {o for k in made for o in k.stored}
        self._inside = {name: tuple(self._absorbed(name, stored)) for name in stored}
        self.names = tuple(flat)
        self.kernels = tuple(
            LinkedKernel(k.name, self._carried(k.statements), _served(k.lines), _served(k.block)) for k in made
        )
        self.host = host_lines(source, order, whole=not made)

    def key(self, name: str) -> str:
        """The link of a statement by its output, or of what a workspace such as `DW.parts` belongs to; "" for none."""
        return self._keys.get(name) or self._keys.get(name.split(".")[0], "")

    def keys(self, owners: Sequence[str]) -> str:
        """The links of a line: its statements and those that are computed inside of them."""
        names = [n for owner in owners for n in (owner, *self._inside.get(owner, ()))]
        return " ".join(dict.fromkeys(k for k in map(self.key, names) if k))

    def _absorbed(self, name: str, stored: Collection[str]) -> Iterator[str]:
        """The statements that are computed inside of this one: what it reads, and these read, that no kernel stores."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            statement = self._statements.get(waiting.pop())
            for other in () if statement is None else reads(statement):
                if other in self._statements and other not in stored and other not in seen:
                    seen.add(other)
                    waiting.append(other)
                    yield other

    def _carried(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """The statements of a kernel with those that are computed inside of them, in the program's order."""
        names = {n for o in outputs for n in (o, *self._inside.get(o, ()))}
        return tuple(n for n in self._statements if n in names)

    def text(self, name: str) -> str:
        """A statement as Tile; "" for what is none, as a workspace."""
        return show_statement(self._statements[name]) if name in self._statements else ""


def _served(lines: Sequence[tuple[str, str]]) -> tuple[Line, ...]:
    return tuple((text, (own,) if own else ()) for text, own in lines)
