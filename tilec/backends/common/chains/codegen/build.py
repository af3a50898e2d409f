"""The block program of a chain's kernel.

A program has a block of the rows (or of the columns, or of both) and one value of each batch variable, and walks the
other side block by block. Statistics and mixtures are carried in registers (`accumulate`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce

from tilec.backends.common.blocks.builder import INDEX_TYPE, loads_first
from tilec.backends.common.blocks.ir import BlockProgram, Tensor, Value
from tilec.backends.common.blocks.verify import verify_kernel
from tilec.backends.common.chains.chain import ChainKernel, Reduced
from tilec.backends.common.chains.codegen.accumulate import THREADS, Accumulation
from tilec.backends.common.chains.codegen.emit import LN2, Emitter, distance
from tilec.backends.common.chains.codegen.places import Tiling, blocks_in, in_one_block, tensors_touched
from tilec.backends.common.chains.codegen.visits import Visits, block_shapes
from tilec.backends.common.chains.codegen.walk import Piece, Round, limits, pieces, rounds_of_blocks, within_ends
from tilec.ir.program import Access, accesses_in, index_variables
from tilec.ir.types import Types


def build_kernel(
    name: str,
    kernel: ChainKernel,
    types: Types,
    tiling: Tiling,
    visits: Visits | None = None,
    roles: bool = False,
    loaded_first: Collection[str] = (),
) -> BlockProgram:
    """The block program. `types` of all tensors and inner sums. `visits`: where lists say which blocks it walks;
    `roles`: other warps copy blocks, and so no round reads which block is the next one's; masked blocks come first.
    `loaded_first`: tensors whose elements of each point are loaded before products."""
    return verify_kernel(_Build(kernel, types, tiling, visits, roles, loaded_first).program(name))


def scores_beside(kernel: ChainKernel) -> list[Access]:
    """The elements of each point that statistics are made of, as biases are."""
    sides = {*kernel.blocked, kernel.looped}
    scores = accesses_in(*(r.target.body for r in kernel.targets if r.target.aggregation != "sum"))
    found = (a for a in scores if a.tensor not in kernel.inners and sides <= set(index_variables(a)))
    return list(dict.fromkeys(found))


def has_short_rows(kernel: ChainKernel, tiling: Tiling) -> bool:
    """Whether a block of the walk has fewer elements than its program has threads: Triton reads what has an element for
    each place of it as products take it then, several elements a thread. Not where products in several blocks, or
    variables walked around the block, leave no registers for more than that."""
    extents = [i.extent for i in kernel.inners.values() if i.left is not None]
    whole = all(len(blocks_in(kernel, n)) == 1 for n in extents)
    return len(extents) > 1 and whole and tiling.step < THREADS * tiling.warps


def _along_the_walk(kernel: ChainKernel) -> list[Access]:
    """The elements of each place of the walk that no exponent takes, as the gradients of statistics are where it goes
    over rows. Triton begins the sums of a product with what is added to it, and does not load that ahead: this way it
    is under way while the product before is computed."""
    bodies = [r.target.body for r in kernel.targets]
    inside = {*accesses_in(*kernel.exponents)}
    beside = {*kernel.blocked, *(r.target.feature for r in kernel.targets)}
    found = []
    for a in dict.fromkeys(accesses_in(*bodies)):
        used = {*index_variables(a)}
        elsewhere = a.tensor in kernel.inners or a.tensor in kernel.in_place or a in inside
        if not elsewhere and kernel.looped in used and beside.isdisjoint(used):
            found.append(a)
    return found


class _Build(Accumulation):
    def __init__(
        self,
        kernel: ChainKernel,
        types: Types,
        tiling: Tiling,
        visits: Visits | None,
        roles: bool,
        loaded_first: Collection[str],
    ):
        super().__init__(kernel, types, tiling, visits)
        self.ahead, self.masked_first = not roles, roles
        bodies = [r.target.body for r in kernel.targets]
        read = (a for a in accesses_in(*bodies) if a.tensor in kernel.inners)
        products = dict.fromkeys(a for a in read if kernel.inners[a.tensor].left is not None)
        # what takes the longest way from there comes first
        several = len(products) > 1
        self._products = (
            sorted(products, key=lambda a: -max(distance(e, a) for e in bodies)) if several else [*products]
        )

        first = [a for a in scores_beside(kernel) if a.tensor in loaded_first]
        rows = _along_the_walk(kernel) if has_short_rows(kernel, tiling) else []
        self._loaded_first = [*first, *rows] if products else []

    def program(self, name: str) -> BlockProgram:
        kernel, b = self.kernel, self.b
        positions = self._positions()
        if self.tiling.tiles > 1:
            (v,) = kernel.blocked

            def go(tile: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
                self._compute({**positions, v: self._in_tile(v, tile)})
                return carried

            b.loop(*self.several, 1, (), go, hint="tile")
        else:
            self._compute(positions)
        body = loads_first(b.body)
        used = tensors_touched(body)
        tensors = [Tensor(n, self.types[n].dtype, len(self.types[n].shape)) for n in kernel.reads if n in used]
        lists = {} if self.visits is None else block_shapes(self.visits, kernel, self.tiling)
        tensors += [Tensor(n, INDEX_TYPE, len(s)) for n, s in lists.items()]
        tensors += [Tensor(n, self.types[n].dtype, len(self.types[n].shape), True) for n in kernel.outputs]
        return BlockProgram(name, self.axes, tuple(tensors), dict(b.sizes), self._programs(), body)

    def _compute(self, positions: dict[str, Value]) -> None:
        """All that a program has to do at one place."""
        self._rows(positions)
        initial, places = self._states()
        final = self._walk(list(self.kernel.walked), positions, initial, places)
        self._finish(positions, final, places)

    # what is carried

    def _states(self) -> tuple[list[Value], dict[str, tuple[int, ...]]]:
        """Initial values, and for each target where its own stand."""
        b = self.b
        found: list[Value] = []
        places: dict[str, tuple[int, ...]] = {}
        for r in self.kernel.stored:
            t = r.target
            axes = self._walked_axes(t)
            first = {"max": -math.inf, "min": math.inf, "logsumexp": -math.inf}.get(t.aggregation, 0.0)
            own = [b.fill(axes, 0, INDEX_TYPE) if self._counts(t) else b.fill(axes, first)] * (r.unrolled or 1)
            if t.feature and not r.unrolled:
                own = [b.fill([*axes, d], first) for d in self.feature_axes(self.extent[t.feature])]
            if t.aggregation == "logsumexp":
                own.append(b.fill(axes, 0.0))
            places[t.output] = tuple(range(len(found), len(found) + len(own)))
            found += own
            if self._needs_seen(r) and t.points not in self.seen:
                self.seen[t.points] = len(found)
                found.append(b.fill(axes, 0, "int32"))
        return found, places

    # the walk

    def _walk(
        self, walked: Sequence[str], positions: dict[str, Value], state: Sequence[Value], places: Mapping
    ) -> tuple[Value, ...]:
        b, looped = self.b, self.kernel.looped
        if walked and not self._walks_as_one:
            v, rest = walked[0], walked[1:]

            def go(count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
                self.ends[v] = count, count
                return self._walk(rest, {**positions, v: count}, carried, places)

            share = self._share(v, positions)
            return b.loop(share.first, share.stop, share.step, state, go, hint=v)
        if looped is None:
            return tuple(self._step(positions, True, state, places))
        if self.visits is not None:
            for masked in (False, True):
                state = self._listed(self.visits, masked, positions, tuple(state), places)
            return tuple(state)
        step = self.axes[looped]
        if in_one_block(self.kernel, step):
            masked = bool(self.bounds) or self.extent[looped] != step or self.kernel.on_both_sides
            self.ends[looped] = b.number(0), self.size(looped) - 1
            return tuple(self._step({**positions, looped: b.positions(looped)}, masked, state, places, only=True))
        found = limits(b, self.bounds, looped, self.ends, self.size(looped), self.extent)
        told = self._told_ends(self.emitter(positions, False))
        found = within_ends(b, found, told)
        residual = any(not f.coefficient(looped) for f in self.bounds)
        state = tuple(state)
        whole = self.extent[looped] % step == 0
        walked_pieces = pieces(b, found, step, self.size(looped), whole, residual, bool(told), self.masked_first)
        if whole and not told and self._in_one_loop(walked_pieces):
            return self._all_pieces(walked_pieces, walked, positions, state, places)
        for piece in walked_pieces:
            state = self._piece(piece, walked, positions, state, places)
        return tuple(state)

    @property
    def _walks_as_one(self) -> bool:
        """Whether the variables around the blocks of a walk and these are walked in one loop: every value of the first
        has the same blocks, which warps of their own do not copy. A loop within another one takes registers that
        products and their sums need."""
        kernel = self.kernel
        if kernel.looped is None or self.visits is not None or kernel.elementwise or self.masked_first:
            return False
        targets = [r.target for r in kernel.targets]
        asked = index_variables(*(e for t in targets for e in (*t.conditions, *(f.to_expr() for f in t.bounds))))
        return {*kernel.walked}.isdisjoint(asked)

    def _share(self, v: str, positions: Mapping[str, Value]) -> Round:
        """The values of a walked variable that a program has."""
        part = self.kernel.dealt.get(v)
        first, step = (self.b.number(0), 1) if part is None else (positions[part], self.extent[part])
        return Round(v, first, self.size(v), step)

    def _piece(self, piece: Piece, walked: Sequence[str], positions: dict[str, Value], state, places):
        def step(at: dict[str, Value], count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            return self._step(at, piece.masked, carried, places)

        return self._blocks_of(piece, walked, positions, state, step)

    def _blocks_of(
        self,
        piece: Piece,
        walked: Sequence[str],
        positions: dict[str, Value],
        state: tuple[Value, ...],
        step: Callable[[dict[str, Value], Value, tuple[Value, ...]], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """A loop over a piece's blocks for each value of the variables `walked`; `step` is given positions, the block's
        first place and what is carried."""
        b, looped = self.b, self.kernel.looped
        assert looped is not None

        def go(count: Value, own: dict[str, Value], carried: tuple[Value, ...]) -> Sequence[Value]:
            self.ends.update({v: (x, x) for v, x in own.items()})
            here = {**positions, **own, looped: b.apply("add", count, b.positions(looped), hint=looped)}
            return step(here, count, carried)

        rounds = [self._share(v, positions) for v in walked]
        return rounds_of_blocks(b, piece, self.axes[looped], rounds, state, go, hint=f"first_{looped}")

    def _in_one_loop(self, found: Sequence[Piece]) -> bool:
        """Whether one loop serves masked blocks and others, with masks in those rounds alone that need them: compiling
        takes the longer the more copies there are of its text. What is read must not depend on masks."""
        targets = [r.target for r in self.kernel.targets]
        return (
            self.tiling.one_loop
            and not self.masked_first
            and {p.masked for p in found} == {False, True}
            and not (self.seen or self.kernel.elementwise)
            and all(t.aggregation in ("sum", "logsumexp") and not self._counts(t) for t in targets)
            and not any(t.conditions for t in targets)
            and all(set(t.bounds) == set(self.bounds) for t in targets)
            and not any(self._leaves_columns(f, self.kernel.looped) for f in self.bounds)
        )

    def _all_pieces(
        self,
        found: Sequence[Piece],
        walked: Sequence[str],
        positions: dict[str, Value],
        state: tuple[Value, ...],
        places: Mapping,
    ) -> tuple[Value, ...]:
        """Pieces that follow each other, as one loop."""
        plain = next(p for p in found if not p.masked)

        def step(at: dict[str, Value], count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            tests = [count < plain.start] if found[0].masked else []
            tests += [count >= plain.stop] if found[-1].masked else []
            self.test = reduce(operator.or_, tests)
            made = self._step(at, True, carried, places)
            self.test = None
            return made

        return self._blocks_of(Piece(found[0].start, found[-1].stop, True), walked, positions, state, step)

    def _listed(
        self, visits: Visits, masked: bool, positions: dict[str, Value], state: tuple[Value, ...], places
    ) -> tuple[Value, ...]:
        """The walk over a list. Which block is the next one's takes long to arrive: it is read a round ahead, unless
        other warps copy blocks, which run ahead themselves."""
        b, looped = self.b, self.kernel.looped
        assert looped is not None
        step = self.axes[looped]
        index = [*(positions[v] for v in visits.batch), self.tiles[self.kernel.blocked[0]], b.number(int(masked))]
        tiles = (self.size(looped) + (step - 1)) // step
        last = tiles - 1

        def at(place: Value) -> Value:
            return b.load(visits.blocks, INDEX_TYPE, [*index, place])

        def go(count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            following = [at(b.apply("smaller", count + 1, last))] if self.ahead else []
            block = carried[0] if self.ahead else at(count)
            first = b.apply("mul", block, b.number(step), hint=f"first_{looped}")
            here = {**positions, looped: b.apply("add", first, b.positions(looped), hint=looped)}
            return [*following, *self._step(here, masked, carried[len(following) :], places)]

        count = b.load(visits.counts, INDEX_TYPE, index)
        begun = [at(b.number(0))] if self.ahead else []
        return b.loop(b.number(0), count, 1, (*begun, *state), go, hint="count")[len(begun) :]

    def _step(
        self,
        positions: dict[str, Value],
        masked: bool,
        initial: Sequence[Value],
        places: Mapping[str, tuple[int, ...]],
        only: bool = False,
    ) -> list[Value]:
        """The next state. `only`: of a walk's only step, which adds to nothing."""
        b = self.b
        at = self.emitter(positions, masked)
        for a in self._loaded_first:
            at.read(a)
        for a in self._products:  # first of all, then what lies between them
            self._inner(self.kernel.inners[a.tensor], a, at)
        state: list[Value] = list(initial)
        exponentials: dict[str, tuple[Value, Value | None]] = {}
        anchors = {r.anchor for r in self.kernel.targets if r.anchor is not None}
        for r in self.kernel.targets:
            t = r.target
            mask, side = self._mask(t, at, masked), self.kernel.summed_side(t)
            if t.points in self.seen and mask is not None and side is not None:
                place = self.seen[t.points]
                here = b.cast(mask, "int32")
                here = self._along("max", here, t) if side in here.type.axes else here
                state[place] = b.apply("larger", initial[place], here)
            elif t.points in self.seen:
                place = self.seen[t.points]
                state[place] = b.fill(self._walked_axes(t), 1, "int32")
            own = places[t.output]
            carried: list[Value | None] = [None if only else v for v in initial]
            before = carried[own[0]]
            if t.aggregation == "logsumexp" or t.output in anchors:
                top, total, p, r_ = self._statistic(t, at, mask, [carried[k] for k in own])
                state[own[0]] = top
                exponentials[t.output] = p, r_
                if total is not None:
                    state[own[1]] = total
            elif t.aggregation in ("max", "min"):
                x = at.value(t.body, "float32")
                none = b.number(-math.inf if t.aggregation == "max" else math.inf, "float32")
                x = x if mask is None else b.apply("select", mask, x, none)
                x = self._along(t.aggregation, self._full(x), t, careful=True)
                state[own[0]] = x if before is None else b.apply(t.aggregation, before, x)
            elif self._counts(t):
                state[own[0]] = self._count(t, at, mask, before)
            elif t.feature is not None:
                for k, place in enumerate(own):
                    values = self._at_feature(r, k, positions, masked)
                    before = state[place] if r.joined else carried[place]
                    state[place] = self._sum(r, values, mask, before, exponentials, masked)
            else:
                state[own[0]] = self._sum(r, at, mask, before, exponentials, masked)
        return state

    def _blocks(self, r: Reduced) -> int:
        """How many sums a target is carried in."""
        f = r.target.feature
        return 1 if f is None else r.unrolled or len(self.feature_axes(self.extent[f]))

    def _at_feature(self, r: Reduced, k: int, positions: Mapping[str, Value], masked: bool) -> Emitter:
        """Values where a feature is in its block k, or where an unrolled one is k."""
        f = r.target.feature
        if f is None:
            return self.emitter(positions, masked)
        one = self.b.number(k) if r.unrolled else self.feature_positions(self.feature_axes(self.extent[f])[k])
        return self.emitter({**positions, f: one}, masked)

    # the end

    def _finish(self, positions: dict[str, Value], state: Sequence[Value], places: Mapping) -> None:
        b = self.b
        state = self._combined(state, places)
        looped = self.kernel.looped
        for r, k in [(x, k) for x in self.kernel.stored for k in range(self._blocks(x))]:
            t = r.target
            across = looped is not None and self.kernel.summed_side(t) != looped
            here = {**positions, looped: b.positions(looped)} if across and looped else positions
            at = self._at_feature(r, k, here, across)
            first, *more = (state[p] for p in places[t.output][k:])
            if t.aggregation == "logsumexp":
                total = more[0]
                value = (first + b.apply("log2", total)) * LN2
                value = b.apply("select", first.equals(math.inf), first, value)
            else:
                value = first
                if r.anchor is not None and self._of(r.anchor).target.aggregation == "logsumexp":
                    total = state[places[r.anchor][1]]
                    value = value * b.apply("div", b.number(1.0, "float32"), total)
                if r.outer:
                    value = at.product(list(r.outer)) * value
                if self._may_be_empty(r):
                    value = b.apply("select", self._empty(t, at, state), b.number(0.0, "float32"), value)
                elif (holds := self._holds_for_rows(t, at)) is not None:
                    value = b.apply("select", holds, value, b.number(0.0, "float32"))
                for c in r.closing:
                    value = b.apply("select", at.condition(c), value, b.number(0.0, "float32"))
            if t.feature is None:
                self.row[t.output] = value
            at.store(t.statement, value)
