"""How the ranks of a mesh divide a program, derived from its indices, and what they communicate for that.

Each statement is divided in one of two ways. By a dimension of its output: a rank computes the elements that it will
hold. Or, where an aggregation puts parts together by a reduction, by a dimension of a sharded tensor: a rank takes the
points that read what it holds, and its result is a part (a logsumexp is its maximum and the sum of exponentials below
it). Either way indices say which elements of the other tensors that takes; what a rank does not hold is exchanged
first: the rows around its own for a window, another dimension's part, or all. Of the ways the one that communicates
least is taken; index variables keep their values, so that constraints, masks and random numbers are those of the whole.

Each dimension of a mesh divides a statement in a way of its own. What a rank does not hold comes along one dimension of
the mesh after another, so that ranks which differ in one coordinate alone communicate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.distributed.copies import Copies, Hop
from tilec.distributed.placements import (
    REPLICATE,
    IndexBox,
    Mesh,
    Placement,
    Placements,
    chunks,
    count,
    everywhere,
    hull,
    overlap,
    peers,
    whole,
)
from tilec.distributed.plan import Communication, Parted, ShardedStep, Sharding, TensorCopy, passing
from tilec.distributed.regions import Limit, Regions
from tilec.distributed.steps import composes, depth_along
from tilec.errors import InputMistake, NameMistake, Unsupported, listed
from tilec.ir.functions import INFINITY, call
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Float, Index, Program, Statement, reads_itself, self_reads
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, shapes_in
from tilec.language import show_expr
from tilec.lattice.sets import depends_on_data

# Aggregations whose parts are put together again, and by which reduction.
REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "product", "any": "max", "all": "min", "assign": "sum"}
_ROUNDS = 3  # of looking for a better way along each dimension of a mesh


def shard(
    program: Program,
    types: Mapping[str, TensorType],
    placements: Mapping[str, Placements],
    mesh: Mesh,
    exact: bool = False,
) -> Sharding:
    """The sharding of a bound, flat program whose inputs lie as `placements` says (left out: on every rank).

    `types` are those of all its tensors; `exact`: recurrences are computed step by step. Raises NameMistake for a name
    that is no input, InputMistake for a dimension that an input does not have and for less than one rank, Unsupported
    for parts that one reduction does not put together.
    """
    if not mesh or min(mesh) < 1:
        raise InputMistake(f"a mesh has at least one rank, not {' by '.join(map(str, mesh)) or 0}")
    home = dict.fromkeys(program.input_names(), everywhere(mesh))
    for name, given in placements.items():
        if name not in home:
            raise NameMistake(f"no input is called {name}", hint=listed(name, home))
        if len(given) != len(mesh):
            raise InputMistake(f"{name} has {len(given)} placements; the mesh has {len(mesh)} dimensions")
        rank = len(types[name].shape)
        for p in given:
            if p.dim is not None and not -rank <= p.dim < rank:
                raise InputMistake(f"{name} has {rank} dimensions, so none is number {p.dim}")
        home[name] = Placements(p if p.dim is None else Placement(p.dim % rank) for p in given)
        if len({p.reduction for p in given} - {None}) > 1:
            raise Unsupported(f"{name} is placed as {given}: its parts are not put together by one reduction")
    planner = _Planner(program, types, home, mesh, exact)
    for s in program.statements:
        planner.statement(s)
    return planner.sharding(program.outputs)


@dataclass(frozen=True)
class _Choice:
    """A way to divide a statement: boxes that each rank needs of each tensor, and the bytes that takes."""

    splits: tuple[Parted, ...]
    needed: Mapping[str, tuple[IndexBox, ...]]
    cost: int


class _Planner(Copies):
    def __init__(
        self, program: Program, types: Mapping[str, TensorType], home: dict[str, Placements], mesh: Mesh, exact: bool
    ):
        super().__init__(program, types, home, mesh)
        self.exact = exact
        self.steps: list[ShardedStep] = []

    def sharding(self, outputs: tuple[str, ...]) -> Sharding:
        results = {}
        for o in dict.fromkeys(outputs):
            results[o] = o
            if not self.home[o].parts:
                continue
            if self.types[o].dtype in ("bool", "int8", "int16", "uint8"):
                self._reduced(o, o, f"{o} is an output, and no backend of torch.distributed reduces its element type")
            if self.copies[o]:
                self.home[o] = self.home[o].without(self.home[o].parts)
                results[o] = self.copies[o][0].name
        copies = {c.name: c for found in self.copies.values() for c in found}
        placed = {o: self.home[o] for o in outputs}
        done = tuple(self.communications), tuple(self.steps)
        return Sharding(placed, *done, copies, results, self.types, self.mesh)

    # statements

    def statement(self, s: Statement) -> None:
        choice = self._choose(s)
        splits = choice.splits
        if s.aggregation == "logsumexp" and any(split.dim is None for split in splits):
            for part in self._logsumexp(s):
                self.statement(part)
            return
        reads = {t: self._local_copy(s, t, need, splits) for t, need in choice.needed.items()}
        turn = passing(splits)
        made = [self.times[c.tensor] + 1 for c in reads.values() if turn is not None and c.name == c.tensor]
        time = max([0, *made, *(c.ready for c in reads.values())])
        along = {split.along: split for split in splits}
        placed = Placements(_placement(s, along.get(m)) for m in range(len(self.mesh)))
        self.steps.append(ShardedStep(s, splits, time, {t: c.name for t, c in reads.items()}))
        self._place(s.output, placed, time, time - (turn is not None))
        if turn is not None:
            self._pass_states(s, turn, splits, time)

    def _pass_states(self, s: Statement, turn: Parted, splits: Sequence[Parted], time: int) -> None:
        each, m = self._bytes_of_states(s, turn, splits), turn.along
        along = f"the recurrence {s.output} steps along dimension {turn.dim}"
        if turn.composes:
            collective, reason = "all-gather of steps", f"{along}; each rank composes its own steps"
        else:
            collective, reason = "passing states", f"{along}, rank after rank"
            first = 0 if turn.states > 0 else self.mesh[m] - 1
            each = tuple(0 if place[m] == first else n for n, place in zip(each, self.places, strict=True))
        o = s.output
        c = Communication(o, o, collective, reason, each, o, o, time, m, states=turn.states)
        self.communications.append(c)

    def _bytes_of_states(self, s: Statement, turn: Parted, splits: Sequence[Parted]) -> tuple[int, ...]:
        t, k = self.types[s.output], turn.dim
        assert k is not None, "states are those of an output's dimension"
        each = 2 * (self.mesh[turn.along] - 1) if turn.composes else abs(turn.states)
        lanes = (count((*box[:k], *box[k + 1 :])) for box in self._computed(s, splits))
        return tuple(each * n * ITEM_BYTES[t.dtype] for n in lanes)

    def _computed(self, s: Statement, splits: Sequence[Parted]) -> tuple[IndexBox, ...]:
        """What each rank computes of a statement's output."""
        along = {split.along: split for split in splits}
        placed = Placements(_placement(s, along.get(m)) for m in range(len(self.mesh)))
        return self._boxes(s.output, placed)

    def _logsumexp(self, s: Statement) -> Iterator[Statement]:
        """The maximum, and the logarithm of the sum of exponentials below it; at infinities below 0."""
        index = s.index or ()
        index = tuple(Index(f"o{k}") for k in range(len(index)))
        top, below, total = (self.names.fresh(f"{s.output}_{n}") for n in ("max", "finite", "sum"))
        t = self.types[s.output]
        half = t.dtype in NARROW
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
        """The way that communicates least, found for one dimension of the mesh after another until none changes."""
        regions = Regions(s, shapes_in(self.types))
        best = self._choice(regions, {})
        dims = sorted({m for t in best.needed for m in self.home[t].dims if self.mesh[m] > 1})
        ways = {m: list(self._splits(s, regions, m)) for m in dims}
        for _ in range(_ROUNDS if len(dims) > 1 else 1):
            before = best
            for m in dims:
                others = {split.along: split for split in best.splits if split.along != m}
                fitting = [{**others, m: way} for way in ways[m] if _together([*others.values(), way])]
                best = min((self._choice(regions, w) for w in (*fitting, others)), key=lambda way: way.cost)
            if best == before:
                break
        return best

    def _splits(self, s: Statement, regions: Regions, m: int) -> Iterator[Parted]:
        own = self_reads(s)
        for k, (e, n) in enumerate(zip(s.index or (), self.types[s.output].shape, strict=True)):
            if all(access.index[k] == e for access in own):
                yield Parted(linear(e), n, m, dim=k)
            elif (depth := depth_along(s, k)) is not None:
                scan = not self.exact and composes(s, k, self.types[s.output], regions.shapes)
                yield Parted(linear(e), n, m, dim=k, states=depth, composes=scan)
        if reads_itself(s) or s.default is not None or s.aggregation not in (*REDUCTIONS, "logsumexp"):
            return
        if s.aggregation == "assign" and self.types[s.output].dtype == "bool":
            return
        found: dict[tuple[Affine, int], Parted] = {}
        for r in regions.reads:
            d = self.home[r.access.tensor][m].dim
            if d is None or r.shape or not r.constrains:
                continue
            form, n = linear(r.access.index[d]), self.types[r.access.tensor].shape[d]
            others = [x.access.index[d] for x in regions.reads if x.access.tensor == r.access.tensor]
            if depends_on_data(form) and any(linear(e) != form for e in others):
                continue
            found.setdefault((form, n), Parted(form, n, m, owner=(r.access.tensor, d)))
        yield from found.values()

    def _parts(self, ways: Mapping[int, Parted]) -> tuple[Parted, ...]:
        """The splits with their parts: what several dimensions of the mesh divide by one form, they divide in turn."""
        found: list[Parted] = []
        for m, way in sorted(ways.items()):
            outer = [w.parts for w in found if (w.form, w.size) == (way.form, way.size)]
            ends = outer[-1] if outer else ((0, way.size),) * self.ranks
            pieces = (chunks(b - a, self.mesh[m], a)[place[m]] for (a, b), place in zip(ends, self.places, strict=True))
            found.append(replace(way, parts=tuple(pieces)))
        return tuple(found)

    def _choice(self, regions: Regions, ways: Mapping[int, Parted]) -> _Choice:
        s, splits = regions.statement, self._parts(ways)
        known: dict[tuple[Limit, ...], dict[str, IndexBox]] = {}
        needs = []
        for r in range(self.ranks):
            limits = tuple(split.limit(r) for split in splits)
            if limits not in known:
                known[limits] = regions.needed(*limits)
            needs.append(known[limits])
        names = dict.fromkeys(t for need in needs for t in need)
        needed = {t: tuple(need.get(t, ((0, 0),) * len(self.types[t].shape)) for need in needs) for t in names}
        for split in splits:
            if split.owner is not None and depends_on_data(split.form):
                # an element that another rank has is outside
                tensor, d = split.owner
                wide = needed.get(tensor, (whole(self.types[tensor].shape),) * self.ranks)
                both = zip(wide, split.parts, strict=True)
                needed[tensor] = tuple((*box[:d], part, *box[d + 1 :]) for box, part in both)
        cost = sum(self._cost(t, need) for t, need in needed.items())
        for split in splits:
            if split.dim is None:
                times = {"logsumexp": 2, "assign": 1}.get(s.aggregation, 0)
                cost += times * max(self._ring(s.output, self._computed(s, splits), "sum", split.along))
            elif split.states:
                cost += max(self._bytes_of_states(s, split, splits))
        return _Choice(splits, needed, cost)

    # what is at hand, and what is communicated

    def _local_copy(
        self, s: Statement, tensor: str, need: tuple[IndexBox, ...], splits: Sequence[Parted]
    ) -> TensorCopy:
        found = self._found(tensor, need)
        if found is None and not self.copies[tensor]:
            self._reduced(tensor, s.output, f"{s.output} reads the whole of it")
            found = self._found(tensor, need)
        copy = self.copies[tensor][0] if found is None else found
        if found is None:
            for hop in self._hops(tensor, need):
                copy = self._exchanged(s, copy, hop, splits)
        return copy

    def _exchanged(self, s: Statement, copy: TensorCopy, hop: Hop, splits: Sequence[Parted]) -> TensorCopy:
        tensor, m = copy.tensor, hop.along
        d = self.home[tensor][m].dim
        assert d is not None, "what is on every rank is at hand"
        groups = {peers(self.mesh, r, m) for r in range(self.ranks)}
        inner = [([hop.have[r] for r in group], [hop.need[r] for r in group]) for group in sorted(groups)]
        if all(n == functools.reduce(hull, have) for have, need in inner for n in need):
            collective, reason = "all-gather", self._why(s, tensor, splits, m)
        elif all(_from_neighbours(have, need, d) for have, need in inner):
            ends = [(n[d], h[d]) for n, h in zip(hop.need, hop.have, strict=True)]
            rows = max(max(h[0] - n[0], n[1] - h[1], 0) for n, h in ends)
            collective = "halo exchange"
            reason = f"{s.output} reads up to {rows} beyond a rank's part of dimension {d}"
        else:
            collective, reason = "all-to-all", self._why(s, tensor, splits, m)
        return self._add(s.output, copy.name, tensor, collective, reason, hop, None)

    def _why(self, s: Statement, tensor: str, splits: Sequence[Parted], m: int) -> str:
        d = self.home[tensor][m].dim
        split = next((split for split in splits if split.along == m), None)
        if split is None:
            if self_reads(s):
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


def _placement(s: Statement, split: Parted | None) -> Placement:
    """How an output lies along a dimension of the mesh, by which its statement is divided so."""
    if split is None:
        return REPLICATE
    if split.dim is not None:
        return Placement(split.dim)
    return Placement(reduction=REDUCTIONS.get(s.aggregation, "sum"))  # a logsumexp is reduced as its sum


def _together(splits: Sequence[Parted]) -> bool:
    """May dimensions of the mesh divide one statement so? Ranks along one of them alone pass states on."""
    turn = passing(splits)
    return turn is None or all(split is turn or split.dim != turn.dim and not split.states for split in splits)


def _from_neighbours(have: Sequence[IndexBox], need: Sequence[IndexBox], dim: int) -> bool:
    """Does each rank need more along one dimension, of the ranks beside it alone, and not all that these hold?"""
    for r, n in enumerate(need):
        if count(n) and any(n[d] != h for d, h in enumerate(have[r]) if d != dim):
            return False
        for other, h in enumerate(have):
            taken = count(overlap(h, n))
            if other != r and taken and (abs(other - r) > 1 or taken == count(h)):
                return False
    return True
