"""How the ranks of one mesh dimension divide a program, derived from its indices, and what they communicate for that.

Each statement is divided in one of two ways. By a dimension of its output: a rank computes the elements that it will
hold. Or, where an aggregation puts parts together by a reduction, by a dimension of a sharded tensor: a rank takes the
points that read what it holds, and its result is a part (a logsumexp is its maximum and the sum of exponentials below
it). Either way indices say which elements of the other tensors that takes; what a rank does not hold is exchanged
first: the rows around its own for a window, another dimension's part, or all. Of the ways the one that communicates
least is taken; index variables keep their values, so that constraints, masks and random numbers are those of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilec.distributed.placements import (
    REPLICATE,
    IndexBox,
    Placement,
    chunks,
    count,
    is_inside,
    overlap,
    reduced_size,
    shard_boxes,
    whole,
)
from tilec.distributed.regions import Limit, Regions
from tilec.distributed.steps import composes, depth_along
from tilec.errors import InputMistake, NameMistake
from tilec.ir.functions import INFINITY, call
from tilec.ir.index import Affine, linear
from tilec.ir.program import (
    Access,
    Float,
    Index,
    Program,
    Statement,
    reads_itself,
    self_reads,
)
from tilec.ir.types import ITEM_BYTES, TensorType
from tilec.language import show_expr
from tilec.lattice.sets import depends_on_data
from tilec.transforms.util.naming import Names

# Aggregations whose parts are put together again, and by which reduction.
REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "product", "any": "max", "all": "min", "assign": "sum"}
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class TensorCopy:
    """Elements of `tensor` that each rank has at hand under `name`: its box of `boxes`, from program `ready` on."""

    name: str
    tensor: str
    boxes: tuple[IndexBox, ...]
    ready: int


@dataclass(frozen=True)
class Communication:
    """What all ranks do together before a statement. What they hold of a tensor (`have`) becomes what they `need`, as
    `result`; or its parts are put together (`reduction`); or they carry out a recurrence, each after the one
    that it has `states` of (see Split). `received`: the bytes that each receives, an all-reduce's as a ring; `bytes`:
    the most of these. `time`: the program before which it runs."""

    before: str
    tensor: str
    collective: str
    reason: str
    received: tuple[int, ...]
    result: str
    time: int
    have: tuple[IndexBox, ...] = ()
    need: tuple[IndexBox, ...] = ()
    reduction: str | None = None
    states: int = 0

    @property
    def bytes(self) -> int:
        return max(self.received)


@dataclass(frozen=True)
class Parted:
    """The points of a statement that each rank computes: those at which `form` lies in its part. The form is that of
    the output's index `dim`, or (None) of the index `owner[1]` of an access to the tensor `owner[0]`. `states`: how
    many elements along `dim` a recurrence reads of the rank before, or (less than 0) of the rank after; `composes`: do
    its steps?"""

    form: Affine
    parts: tuple[tuple[int, int], ...]
    dim: int | None = None
    owner: tuple[str, int] | None = None
    states: int = 0
    composes: bool = False

    def limit(self, rank: int) -> Limit:
        start, stop = self.parts[rank]
        return Limit(self.form, start, stop - 1)


@dataclass(frozen=True)
class ShardedStep:
    """How one statement is carried out: divided by `split`, or (None) by all ranks alike, in program `time`. `reads`:
    of each tensor whose elements it reads, the name of the copy."""

    statement: Statement
    split: Parted | None
    placement: Placement
    time: int
    reads: Mapping[str, str]


@dataclass(frozen=True)
class Sharding:
    """Where the outputs lie, and what is communicated for that."""

    outputs: dict[str, Placement]
    communications: tuple[Communication, ...]
    steps: tuple[ShardedStep, ...]
    copies: Mapping[str, TensorCopy] = field(repr=False)
    results: Mapping[str, str] = field(repr=False)  # output -> the name under which the ranks have it
    types: Mapping[str, TensorType] = field(repr=False)
    ranks: int = 1

    @property
    def bytes(self) -> int:
        """Received by the rank that receives most."""
        return max((sum(c.received[r] for c in self.communications) for r in range(self.ranks)), default=0)

    def __str__(self) -> str:
        lines = [f"{name}: {p}" for name, p in self.outputs.items()]
        lines += [f"{c.collective} of {c.tensor}, {c.bytes} bytes a rank: {c.reason}" for c in self.communications]
        return "\n".join(lines)


def shard(
    program: Program,
    types: Mapping[str, TensorType],
    placements: Mapping[str, Placement],
    ranks: int,
    exact: bool = False,
) -> Sharding:
    """The sharding of a bound, flat program whose inputs lie as `placements` says (left out: on every rank).

    `types` are those of all its tensors; `exact`: recurrences are computed step by step. Raises NameMistake for a name
    that is no input, InputMistake for a dimension
    that an input does not have and for less than one rank.
    """
    if ranks < 1:
        raise InputMistake(f"a mesh has at least one rank, not {ranks}")
    home: dict[str, Placement] = dict.fromkeys(program.input_names(), REPLICATE)
    for name, placement in placements.items():
        if name not in home:
            raise NameMistake(f"no input is called {name}", hint="inputs: " + ", ".join(home))
        if placement.dim is not None:
            rank = len(types[name].shape)
            if not -rank <= placement.dim < rank:
                raise InputMistake(f"{name} has {rank} dimensions, so none is number {placement.dim}")
            placement = Placement(placement.dim % rank)
        home[name] = placement
    planner = _Planner(program, types, home, ranks, exact)
    for s in program.statements:
        planner.statement(s)
    return planner.sharding(program.outputs)


@dataclass(frozen=True)
class _Choice:
    """A way to divide a statement: boxes that each rank needs of each tensor, and the bytes that takes."""

    split: Parted | None
    needed: Mapping[str, tuple[IndexBox, ...]]
    cost: int


class _Planner:
    def __init__(
        self, program: Program, types: Mapping[str, TensorType], home: dict[str, Placement], ranks: int, exact: bool
    ):
        self.types, self.home, self.ranks, self.exact = dict(types), home, ranks, exact
        self.names = Names.of(program)
        self.copies: dict[str, list[TensorCopy]] = {}
        self.times: dict[str, int] = {}  # the program that has a tensor, or -1
        self.communications: list[Communication] = []
        self.steps: list[ShardedStep] = []
        for name in program.input_names():
            self._place(name, home[name], 0, -1)

    def _place(self, name: str, placement: Placement, ready: int, time: int) -> None:
        """`time`: of the program that has computed it, after which it may be sent."""
        self.home[name], self.times[name] = placement, time
        held = shard_boxes(self.types[name].shape, placement, self.ranks) if placement.reduction is None else ()
        self.copies[name] = [TensorCopy(name, name, held, ready)] if held else []

    def sharding(self, outputs: tuple[str, ...]) -> Sharding:
        results = {}
        for o in dict.fromkeys(outputs):
            if self.home[o].reduction is not None and self.types[o].dtype in ("bool", "int8", "int16", "uint8"):
                self._whole(o, o, f"{o} is an output, and no backend of torch.distributed reduces its element type")
            at_hand = next((c for c in self.copies[o] if c.boxes == (whole(self.types[o].shape),) * self.ranks), None)
            if self.home[o].reduction is not None and at_hand is not None:
                self.home[o] = REPLICATE
                results[o] = at_hand.name
            else:
                results[o] = o
        copies = {c.name: c for found in self.copies.values() for c in found}
        placed = {o: self.home[o] for o in outputs}
        done = tuple(self.communications), tuple(self.steps)
        return Sharding(placed, *done, copies, results, self.types, self.ranks)

    # statements

    def statement(self, s: Statement) -> None:
        choice = self._choose(s)
        if choice.split is not None and choice.split.dim is None and s.aggregation == "logsumexp":
            for part in self._logsumexp(s):
                self.statement(part)
            return
        reads = {t: self._at_hand(s, t, need, choice.split) for t, need in choice.needed.items()}
        split = choice.split
        passes = split is not None and split.states != 0
        made = [self.times[c.tensor] + 1 for c in reads.values() if passes and c.name == c.tensor]
        time = max([0, *made, *(c.ready for c in reads.values())])
        if split is None:
            placement = REPLICATE
        elif split.dim is not None:
            placement = Placement(split.dim)
        else:
            placement = Placement(reduction=REDUCTIONS[s.aggregation])
        self.steps.append(ShardedStep(s, split, placement, time, {t: c.name for t, c in reads.items()}))
        self._place(s.output, placement, time, time - passes)
        if split is not None and passes:
            self._pass_states(s, split, time)

    def _pass_states(self, s: Statement, split: Parted, time: int) -> None:
        count = self._bytes_of_states(s, split)
        along = f"the recurrence {s.output} steps along dimension {split.dim}"
        if split.composes:
            collective, reason = "all-gather of steps", f"{along}; each rank composes its own steps"
            received = [count] * self.ranks
        else:
            collective, reason = "passing states", f"{along}, rank after rank"
            received = [0 if r == (0 if split.states > 0 else self.ranks - 1) else count for r in range(self.ranks)]
        c = Communication(s.output, s.output, collective, reason, tuple(received), s.output, time)
        self.communications.append(replace(c, states=split.states))

    def _bytes_of_states(self, s: Statement, split: Parted) -> int:
        t, k = self.types[s.output], split.dim
        assert k is not None, "states are those of an output's dimension"
        count = 2 * (self.ranks - 1) if split.composes else abs(split.states)
        return count * math.prod(t.shape[:k] + t.shape[k + 1 :]) * ITEM_BYTES[t.dtype]

    def _logsumexp(self, s: Statement) -> Iterator[Statement]:
        """The maximum, and the logarithm of the sum of exponentials below it; at infinities below 0."""
        index = s.index or ()
        index = tuple(Index(f"o{k}") for k in range(len(index)))
        top, below, total = (self.names.fresh(f"{s.output}_{n}") for n in ("max", "finite", "sum"))
        t = self.types[s.output]
        half = t.dtype in _HALVES
        wide = replace(t, dtype="float32") if half else t
        self.types.update({top: wide, below: wide, total: wide})
        body = call("float32", s.body) if half else s.body
        infinite = call("eq", call("abs", Access(top, index)), INFINITY)
        finite = call("select", infinite, Float(0.0), Access(top, index))
        yield replace(s, output=top, aggregation="max", body=body)
        yield Statement(below, index, s.sizes, finite)
        yield replace(s, output=total, aggregation="sum", body=call("exp", body - Access(below, s.index or ())))
        result = call("log", Access(total, index)) + Access(below, index)
        yield Statement(s.output, index, s.sizes, call(t.dtype, result) if half else result)

    # ways to divide

    def _choose(self, s: Statement) -> _Choice:
        regions = Regions(s, {name: t.shape for name, t in self.types.items()})
        together = self._choice(regions, None)
        if not any(self.home[t].dim is not None for t in together.needed):
            return together
        ways = [self._choice(regions, split) for split in self._splits(s, regions)]
        return min((*ways, together), key=lambda way: way.cost)

    def _splits(self, s: Statement, regions: Regions) -> Iterator[Parted]:
        if self.ranks == 1:
            return
        own = self_reads(s)
        for k, (e, n) in enumerate(zip(s.index or (), self.types[s.output].shape, strict=True)):
            if all(access.index[k] == e for access in own):
                yield Parted(linear(e), chunks(n, self.ranks), k)
            elif (depth := depth_along(s, k)) is not None:
                scan = not self.exact and composes(s, k, self.types[s.output], regions.shapes)
                yield Parted(linear(e), chunks(n, self.ranks), k, states=depth, composes=scan)
        if reads_itself(s) or s.default is not None or s.aggregation not in (*REDUCTIONS, "logsumexp"):
            return
        if s.aggregation == "assign" and self.types[s.output].dtype == "bool":
            return
        found: dict[tuple[Affine, int], Parted] = {}
        for r in regions.reads:
            d = self.home[r.access.tensor].dim
            if d is None or r.shape or not r.constrains:
                continue
            form, n = linear(r.access.index[d]), self.types[r.access.tensor].shape[d]
            others = [x.access.index[d] for x in regions.reads if x.access.tensor == r.access.tensor]
            if depends_on_data(form) and any(linear(e) != form for e in others):
                continue
            found.setdefault((form, n), Parted(form, chunks(n, self.ranks), None, (r.access.tensor, d)))
        yield from found.values()

    def _choice(self, regions: Regions, split: Parted | None) -> _Choice:
        s = regions.statement
        if split is None:
            needs = [regions.needed()] * self.ranks
        else:
            needs = [regions.needed(split.limit(r)) for r in range(self.ranks)]
        names = dict.fromkeys(t for need in needs for t in need)
        needed = {t: tuple(need.get(t, ((0, 0),) * len(self.types[t].shape)) for need in needs) for t in names}
        if split is not None and split.owner is not None:
            tensor, d = split.owner
            held = self.copies[tensor][0].boxes
            if depends_on_data(split.form):
                needed[tensor] = held  # an element that another rank has is outside
        cost = sum(self._cost(t, need) for t, need in needed.items())
        if split is not None and split.dim is None:
            cost += {"logsumexp": 2, "assign": 1}.get(s.aggregation, 0) * self._ring(s.output, "sum")
        if split is not None and split.states:
            cost += self._bytes_of_states(s, split)
        return _Choice(split, needed, cost)

    # what is at hand, and what is communicated

    def _cost(self, tensor: str, need: tuple[IndexBox, ...]) -> int:
        if self._found(tensor, need) is not None:
            return 0
        reduction = self.home[tensor].reduction
        return max(self._received(tensor, need)) if reduction is None else self._ring(tensor, reduction)

    def _found(self, tensor: str, need: tuple[IndexBox, ...]) -> TensorCopy | None:
        """What is at hand and holds what each rank needs."""
        fits = (c for c in self.copies[tensor] if all(map(is_inside, need, c.boxes)))
        return next(fits, None)

    def _received(self, tensor: str, need: tuple[IndexBox, ...]) -> tuple[int, ...]:
        have, size = self.copies[tensor][0].boxes, ITEM_BYTES[self.types[tensor].dtype]
        return tuple(
            size * sum(count(overlap(h, n)) for other, h in enumerate(have) if other != r) for r, n in enumerate(need)
        )

    def _ring(self, tensor: str, reduction: str) -> int:
        t = self.types[tensor]
        total = math.prod(t.shape) * reduced_size(t.dtype, reduction)
        return 2 * -(-total * (self.ranks - 1) // self.ranks)

    def _at_hand(self, s: Statement, tensor: str, need: tuple[IndexBox, ...], split: Parted | None) -> TensorCopy:
        found = self._found(tensor, need)
        if found is not None:
            return found
        if self.home[tensor].reduction is not None:
            return self._whole(tensor, s.output, f"{s.output} reads the whole of it")
        received = self._received(tensor, need)
        have, d = self.copies[tensor][0].boxes, self.home[tensor].dim
        assert d is not None, "what is on every rank is at hand"
        if all(n == whole(self.types[tensor].shape) for n in need):
            collective, reason = "all-gather", self._why(s, tensor, split)
        elif _from_neighbours(have, need, d):
            rows = max(max(h[d][0] - n[d][0], n[d][1] - h[d][1], 0) for n, h in zip(need, have, strict=True))
            collective = "halo exchange"
            reason = f"{s.output} reads up to {rows} beyond a rank's part of dimension {d}"
        else:
            collective, reason = "all-to-all", self._why(s, tensor, split)
        return self._add(s.output, tensor, collective, reason, received, have, need, None)

    def _why(self, s: Statement, tensor: str, split: Parted | None) -> str:
        d = self.home[tensor].dim
        if split is None:
            steps = [a for a in self_reads(s)]
            if steps:
                return f"the recurrence {s.output} steps along dimension {d} of {tensor}, or mixes it"
            if s.aggregation not in (*REDUCTIONS, "logsumexp") or s.default is not None:
                return f"parts of the aggregation {s.aggregation} of {s.output} are not put together by one reduction"
            return f"every rank computes {s.output}, which costs less than dividing it"
        by = (
            f"dimension {split.dim} of {s.output}"
            if split.owner is None
            else f"dimension {split.owner[1]} of {split.owner[0]}"
        )
        shown = show_expr(split.form.to_expr(), tight=True)
        return f"{s.output} is divided by {by} ({shown}), and reads {tensor} at other places of dimension {d}"

    def _whole(self, tensor: str, before: str, reason: str) -> TensorCopy:
        """All of a tensor that is in parts."""
        reduction = self.home[tensor].reduction
        assert reduction is not None, "there is something to reduce"
        need = (whole(self.types[tensor].shape),) * self.ranks
        received = (self._ring(tensor, reduction),) * self.ranks
        return self._add(before, tensor, "all-reduce", reason, received, (), need, reduction)

    def _add(self, before, tensor, collective, reason, received, have, need, reduction) -> TensorCopy:
        time = self.times[tensor] + 1
        copy = TensorCopy(self.names.fresh(f"{tensor}_here"), tensor, need, time)
        self.communications.append(
            Communication(before, tensor, collective, reason, received, copy.name, time, have, need, reduction)
        )
        self.copies[tensor].append(copy)
        return copy


def _from_neighbours(have: tuple[IndexBox, ...], need: tuple[IndexBox, ...], dim: int) -> bool:
    """Does each rank need more along one dimension, of the ranks beside it alone, and not all that these hold?"""
    for r, n in enumerate(need):
        if count(n) and any(n[d] != h for d, h in enumerate(have[r]) if d != dim):
            return False
        for other, h in enumerate(have):
            taken = count(overlap(h, n))
            if other != r and taken and (abs(other - r) > 1 or taken == count(h)):
                return False
    return True
