"""The number of dimensions of each tensor of a program, as far as it is known before a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.errors import RankMistake
from tilec.ir.program import Access, Call, Expr, Name, Program, Statement, expressions, walk
from tilec.transforms.util.extents import shaping
from tilec.transforms.util.naming import Names


class UnknownRank(RankMistake):
    """What is asked for depends on the number of dimensions of an input that is declared without."""


def with_ranks(program: Program, ranks: Mapping[str, int]) -> Program:
    """The program with dimensions, of names of their own, for inputs that are declared without any. Raises RankMistake
    for one that has another number of dimensions in an element of the batch than is declared or read."""
    read = {e.tensor: e for s in program.statements for e in walk(*expressions(s)) if isinstance(e, Access)}
    for i in program.inputs:
        known = read.get(i.name) if i.dims is None else i
        if known is None:
            continue
        places = known.index if isinstance(known, Access) else known.dims or ()
        if ranks.get(i.name, len(places)) != len(places):
            declared = f"declared {i.name}[{', '.join(map(str, i.dims or ()))}]"
            raise RankMistake(
                f"{i.name} has rank {ranks[i.name]} in each element of the batch, but is "
                f"{f'read as one of rank {len(places)}' if i.dims is None else declared}",
                known.span,
                hint=f"pass a tensor of rank {len(places)} and the batch's dimension, or say by in_dims which that is",
            )
    names = Names.of(program)
    inputs = tuple(
        replace(i, dims=tuple(names.fresh(f"{i.name}{d}") for d in range(ranks[i.name])))
        if i.dims is None and i.name in ranks
        else i
        for i in program.inputs
    )
    return replace(program, inputs=inputs)


def ranks_of_reads(program: Program) -> dict[str, int]:
    """The ranks of tensors of which elements are read."""
    found = (e for s in program.statements for e in walk(*expressions(s)))
    return {e.tensor: len(e.index) for e in found if isinstance(e, Access)}


class Ranks:
    def __init__(self, program: Program):
        read = ranks_of_reads(program)
        self._known: dict[str, int | None] = {
            i.name: read.get(i.name) if i.dims is None else len(i.dims) for i in program.inputs
        }
        for s in program.statements:
            self.add(s)

    def add(self, s: Statement) -> None:
        self._known[s.output] = self._statement(s)

    def of(self, tensor: str) -> int:
        rank = self._known[tensor]
        if rank is None:
            raise UnknownRank(
                f"the number of dimensions of {tensor} is not known before a call",
                hint="declare the inputs' dimensions, such as X[N, M]",
            )
        return rank

    def known(self, tensor: str) -> bool:
        return self._known[tensor] is not None

    def give(self, tensor: str, rank: int) -> None:
        self._known[tensor] = rank

    def _statement(self, s: Statement) -> int | None:
        if s.index is not None:
            return len(s.index)
        rule = _RANKS.get(s.body.function) if isinstance(s.body, Call) else None
        if rule is not None:
            assert isinstance(s.body, Call)
            return rule(self, s.body.args)
        ranks = [self._known.get(e.name, 0) for e in shaping(s.body)]
        known = [r for r in ranks if r is not None]
        return max(known, default=0) if len(known) == len(ranks) else None

    def whole(self, e: Expr) -> int | None:
        return self._known.get(e.name, 0) if isinstance(e, Name) else 0

    def reshaped(self, args: tuple[Expr, ...]) -> int | None:
        last = args[-1]
        if isinstance(last, Call) and last.function == "shape" and len(last.args) == 1:
            return self.whole(last.args[0])
        return len(args) - 1

    def gathered(self, args: tuple[Expr, ...]) -> int | None:
        data, places = map(self.whole, args)
        return None if data is None or places is None else places + max(data - 1, 0)


_RANKS = {
    "reshape": Ranks.reshaped,
    "gather": Ranks.gathered,
    "scatter": lambda ranks, args: ranks.whole(args[2]),
    "simple_reduce": lambda ranks, args: ranks.whole(args[1]),
    "shape": lambda ranks, args: 1 if len(args) == 1 else 0,
}
