"""Placements of a program's tensors over the ranks of one mesh dimension, derived from its indices.

A statement is carried out by each rank on its own part if one index variable runs over the sharded dimension of all
the sharded tensors that it reads, and stands nowhere else: its value is never asked for, only which element it picks.
If that variable is an index of the output, the output is sharded by it; if it is summed over, each rank holds a part of
the result, for the aggregation's own reduction to put together (a logsumexp is its maximum and the sum of exponentials
below it). In any other case the sharded tensors are gathered first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.errors import InputMistake, NameMistake
from tilec.ir.functions import INFINITY, call
from tilec.ir.program import (
    Access,
    Aggregate,
    Expr,
    Float,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.util.naming import Names

# Aggregations whose parts are put together again, and by which reduction.
REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "product", "any": "max", "all": "min"}


@dataclass(frozen=True)
class Placement:
    """Where a tensor lies: sharded along `dim`, in parts that `reduction` puts together, or (neither) on every rank."""

    dim: int | None = None
    reduction: str | None = None

    def __str__(self) -> str:
        if self.dim is not None:
            return f"Shard({self.dim})"
        return "Replicate()" if self.reduction is None else f"Partial({self.reduction})"


REPLICATE = Placement()


@dataclass(frozen=True)
class Communication:
    """A collective of all ranks before a statement; `bytes` are those that each rank receives."""

    before: str
    tensor: str
    collective: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Step:
    """How one statement is carried out: over each rank's part of what `variable` runs over, or (None) everywhere."""

    statement: Statement
    variable: str | None
    placement: Placement


@dataclass(frozen=True)
class Sharding:
    """Where the outputs lie, and what is communicated for that."""

    outputs: dict[str, Placement]
    communications: tuple[Communication, ...]
    steps: tuple[Step, ...]

    @property
    def bytes(self) -> int:
        return sum(c.bytes for c in self.communications)

    def __str__(self) -> str:
        lines = [f"{name}: {p}" for name, p in self.outputs.items()]
        lines += [f"{c.collective} of {c.tensor}, {c.bytes} bytes a rank: {c.reason}" for c in self.communications]
        return "\n".join(lines)


def shard(program: Program, types: Mapping[str, TensorType], dims: Mapping[str, int | None], ranks: int) -> Sharding:
    """The sharding of a bound, flat program whose inputs are sharded along `dims` (None, or left out: on every rank).

    `types` are those of all its tensors. Raises NameMistake for a name that is no input, InputMistake for a dimension
    that an input does not have and for less than one rank.
    """
    if ranks < 1:
        raise InputMistake(f"a mesh has at least one rank, not {ranks}")
    where: dict[str, Placement] = dict.fromkeys(program.input_names(), REPLICATE)
    for name, dim in dims.items():
        if name not in where:
            raise NameMistake(f"no input is called {name}", hint="inputs: " + ", ".join(where))
        if dim is not None:
            rank = len(types[name].shape)
            if not -rank <= dim < rank:
                raise InputMistake(f"{name} has {rank} dimensions, so none is number {dim}")
            where[name] = Placement(dim % rank)
    pass_ = _Pass(types, where, ranks)
    for s in program.statements:
        pass_.statement(s)
    return Sharding({o: where[o] for o in program.outputs}, tuple(pass_.communications), tuple(pass_.steps))


class _Pass:
    def __init__(self, types: Mapping[str, TensorType], where: dict[str, Placement], ranks: int):
        self.types, self.where, self.ranks = dict(types), where, ranks
        self.names = Names(types)
        self.communications: list[Communication] = []
        self.steps: list[Step] = []

    def statement(self, s: Statement) -> None:
        for name in dict.fromkeys(a.tensor for a in _accesses(s)):
            placement = self.where.get(name, REPLICATE)
            if placement.reduction is not None:
                self._communicate(s, name, "all-reduce", 2, f"{s.output} reads the whole of it")
        variable, reason = self._variable(s)
        if variable is not None and self._parted(s, variable) and s.aggregation == "logsumexp":
            for part in self._logsumexp(s):
                self.statement(part)
            return
        if variable is None and reason is not None:
            for name in dict.fromkeys(self._sharded(s)):
                self._communicate(s, name, "all-gather", 1, reason)
        placement = REPLICATE if variable is None else self._placement(s, variable)
        self.where[s.output] = placement
        self.steps.append(Step(s, variable, placement))

    def _parted(self, s: Statement, v: str) -> bool:
        return Index(v) not in (s.index or ())

    def _logsumexp(self, s: Statement) -> Iterator[Statement]:
        """The maximum, and the logarithm of the sum of exponentials below it; at infinities below 0."""
        index = s.index or ()
        top, below, total = (self.names.fresh(f"{s.output}_{n}") for n in ("max", "finite", "sum"))
        for name in (top, below, total):
            self.types[name] = self.types[s.output]
        infinite = call("eq", call("abs", Access(top, index)), INFINITY)
        finite = call("select", infinite, Float(0.0), Access(top, index))
        yield replace(s, output=top, aggregation="max")
        yield Statement(below, index, s.sizes, finite)
        yield replace(s, output=total, aggregation="sum", body=call("exp", s.body - Access(below, index)))
        yield Statement(s.output, index, s.sizes, call("log", Access(total, index)) + Access(below, index))

    def _communicate(self, s: Statement, tensor: str, collective: str, rounds: int, reason: str) -> None:
        t = self.types[tensor]
        part = (_bytes(t) * (self.ranks - 1) + self.ranks - 1) // self.ranks
        self.communications.append(Communication(s.output, tensor, collective, rounds * part, reason))
        self.where[tensor] = REPLICATE

    def _sharded(self, s: Statement) -> Iterator[str]:
        names = [a.tensor for a in _accesses(s)] + ([] if s.default is None else [s.default])
        return (n for n in names if self.where.get(n, REPLICATE).dim is not None)

    def _variable(self, s: Statement) -> tuple[str | None, str | None]:
        """The variable over whose range the ranks divide the statement; None, and why not, if something is sharded."""
        found: set[str] = set()
        for a in _accesses(s):
            dim = self.where.get(a.tensor, REPLICATE).dim
            if dim is None:
                continue
            e = a.index[dim]
            if not isinstance(e, Index):
                return None, f"{s.output} reads {a.tensor} at other places of dimension {dim} than an index variable's"
            found.add(e.name)
        if not found:
            sharded = next(self._sharded(s), None)
            return None, None if sharded is None else f"{sharded} is the default of {s.output}"
        if len(found) > 1:
            return None, f"{s.output} goes over several sharded dimensions: {', '.join(sorted(found))}"
        (v,) = found
        return (v, None) if (reason := self._hindrance(s, v)) is None else (None, reason)

    def _hindrance(self, s: Statement, v: str) -> str | None:
        """Why the ranks cannot divide what a variable runs over."""
        size: int | None = None
        for a in _accesses(s):
            for d, e in enumerate(a.index):
                if e == Index(v) and a.tensor != s.output:
                    n = self.types[a.tensor].shape[d]
                    if size not in (None, n):
                        return f"{v} goes over dimensions of different sizes in {s.output}"
                    size = n
        index = s.index or ()
        if any(isinstance(e, Aggregate) and v in e.bound for root in expressions(s) for e in walk(root)):
            return f"{v} is bound by a nested aggregation of {s.output}"
        if any(_stands(c.expr, v) for c in s.constraints):
            return f"a constraint of {s.output} asks for the value of {v}"
        if any(_uses(e, v) for e in (s.guard, s.body, s.init) if e is not None):
            return f"{s.output} asks for the value of {v}"
        places = [k for k, e in enumerate(index) if e == Index(v)]
        if any(_stands(e, v) for k, e in enumerate(index) if k not in places) or len(places) > 1:
            return f"{s.output} is written at other places than {v}"
        own = [a for a in _accesses(s) if a.tensor == s.output]
        if own and (not places or any(a.index[places[0]] != Index(v) for a in own)):
            return f"the recurrence {s.output} steps along {v}"
        if places:
            if s.sizes is None or s.sizes[places[0]] != Int(size or 0):
                return f"{s.output} has another size than what {v} goes over"
        elif s.aggregation not in (*REDUCTIONS, "logsumexp") or s.default is not None:
            return f"parts of the aggregation {s.aggregation} over {v} are not put together by one reduction"
        dim = None if s.default is None else self.where.get(s.default, REPLICATE).dim
        return f"the default {s.default} is sharded otherwise" if dim is not None and [dim] != places else None

    def _placement(self, s: Statement, v: str) -> Placement:
        for k, e in enumerate(s.index or ()):
            if e == Index(v):
                return Placement(k)
        return Placement(reduction=REDUCTIONS[s.aggregation])


def _bytes(t: TensorType) -> int:
    width = {"bool": 8, "bfloat16": 16}.get(t.dtype) or int(t.dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
    count = 1
    for n in t.shape:
        count *= n
    return count * width // 8


def _accesses(s: Statement) -> list[Access]:
    return list(accesses_in(*expressions(s)))


def _stands(e: Expr, v: str) -> bool:
    return any(x == Index(v) for x in walk(e))


def _uses(e: Expr, v: str) -> bool:
    """Does a variable stand in a value or an index other than as the index of a dimension by itself?"""
    if isinstance(e, Access):
        return any(i != Index(v) and _stands(i, v) for i in e.index)
    return e == Index(v) or any(_uses(x, v) for x in children(e))
