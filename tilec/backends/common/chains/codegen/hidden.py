"""Sums of a block of which some rows do not see all that is walked, where these are not finite.

A product multiplies what a row does not see by 0, and of an infinity or NaN 0 makes NaN. Programs look at their sums
once, at the end. Where one is not finite they are computed again point by point: what a row does not see is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from tilec.backends.common.blocks.builder import INDEX_TYPE
from tilec.backends.common.blocks.ir import Value
from tilec.backends.common.chains.chain import Reduced
from tilec.backends.common.chains.codegen.accumulate import Accumulation
from tilec.backends.common.chains.codegen.emit import LOG2E, Emitter
from tilec.backends.common.chains.codegen.places import tensors_of
from tilec.backends.common.chains.codegen.walk import Round, limits
from tilec.ir.program import index_variables
from tilec.transforms.util.factors import quotient_of


@dataclass(frozen=True)
class _Again:
    """One of the blocks of a target's sums, its place in the state, and what exponents are relative to."""

    reduced: Reduced
    block: int
    place: int
    top: Value | None


class HiddenPoints(Accumulation):
    """The lines that compute sums again."""

    def _share(self, v: str, positions: Mapping[str, Value]) -> Round:
        """The values of a walked variable that a program has."""
        part = self.kernel.dealt.get(v)
        first, step = (self.b.number(0), 1) if part is None else (positions[part], self.extent[part])
        return Round(v, first, self.size(v), step)

    def _at_feature(self, r: Reduced, k: int, positions: Mapping[str, Value], masked: bool) -> Emitter:
        """Values where a feature is in its block k, or where an unrolled one is k."""
        f = r.target.feature
        if f is None:
            return self.emitter(positions, masked)
        one = self.b.number(k) if r.unrolled else self.feature_positions(self.feature_axes(self.extent[f])[k])
        return self.emitter({**positions, f: one}, masked)

    def _hides_points(self, r: Reduced) -> bool:
        """Whether a row of a block may not see what another one sees, which is multiplied for both."""
        kernel, t = self.kernel, r.target
        if t.feature is None or r.unrolled is not None or kernel.elementwise or kernel.on_both_sides:
            return False
        asked = [*(f.to_expr() for f in t.bounds), *t.conditions]
        sides = {*kernel.blocked, kernel.looped}
        return kernel.looped is not None and any(len(sides & {*index_variables(e)}) > 1 for e in asked)

    def _store_again(
        self, positions: Mapping[str, Value], state: Sequence[Value], places: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Results in the place of those stored, where sums are not finite. That all of a block are is known after all
        of its threads have stored theirs."""
        b = self.b
        again: list[_Again] = []
        suspects: list[Value] = []
        for r in filter(self._hides_points, self.kernel.targets):
            top, *total = [None] if r.anchor is None else [state[p] for p in places[r.anchor]]
            again += [_Again(r, k, place, top) for k, place in enumerate(places[r.target.output])]
            suspects += [self._is_suspect(state[place], total) for place in places[r.target.output]]
        if not again:
            return

        def repeat(turn: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            moved = {v: x + turn if v in self.kernel.blocked else x for v, x in positions.items()}
            empty = [b.fill(state[x.place].type.axes, 0.0) for x in again]
            sums = self._by_points(list(self.kernel.walked), positions, turn, again, empty)
            found = list(state)
            for x, v in zip(again, sums, strict=True):
                found[x.place] = v
            for x in again:
                self._store(x.reduced, x.block, moved, found, places)
            return carried

        b.loop(b.number(0), reduce(partial(b.apply, "larger"), suspects), 1, (), repeat, hint="turn")

    def _is_suspect(self, sums: Value, total: Sequence[Value]) -> Value:
        """1 where an element of sums is not finite; 0 where all are, or where the exponentials of their row, of which
        they are made, have no finite `total`."""
        b, zero = self.b, self.b.number(0.0, "float32")
        (axis,) = [a for a in sums.type.axes if a not in self.kernel.blocked]
        left = b.reduce("sum", axis, sums * 0.0)  # 0 of what is finite, else NaN
        for x in total:
            left = b.apply("select", (x * 0.0).equals(zero), left, zero)
        for a in left.type.axes:
            left = b.reduce("sum", a, left)
        return b.cast(left.differs(zero), INDEX_TYPE)

    def _by_points(
        self,
        walked: Sequence[str],
        positions: Mapping[str, Value],
        turn: Value,
        again: Sequence[_Again],
        sums: Sequence[Value],
    ) -> tuple[Value, ...]:
        """The sums over all values of the variables `walked` and over the walk. `turn`: 0."""
        b, looped = self.b, self.kernel.looped
        assert looped is not None
        if walked:
            share = self._share(walked[0], positions)
        else:
            found = limits(b, self.bounds, looped, self.ends, self.size(looped), self.extent)
            share = Round(looped, found.first, found.last + 1, 1)

        def go(count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            here = {**positions, share.variable: b.apply("smaller", count, share.stop)}  # a number is no tensor
            if walked:
                self.ends[walked[0]] = count, count
                return self._by_points(walked[1:], here, turn, again, carried)
            # rows of this round's own: what was read for them holds no registers until here
            zero = b.apply("smaller", here[share.variable], turn)
            here.update({v: here[v] + zero for v in self.kernel.blocked})
            terms = (self._term(x.reduced, self._at_feature(x.reduced, x.block, here, True), x.top) for x in again)
            return [v + term for v, term in zip(carried, terms, strict=True)]

        return b.loop(share.first, share.stop, share.step, sums, go, hint=share.variable)

    def _term(self, r: Reduced, at: Emitter, top: Value | None) -> Value:
        """What a point of the walk adds, of operands rounded as the product's are."""
        b, t = self.b, r.target
        weights = at.product([f for f in r.inner if r.anchor not in tensors_of(f.value)])
        if r.anchor is not None:
            anchor = self._of(r.anchor).target
            scaled = anchor.aggregation == "logsumexp"
            x = at.scaled(anchor.body, LOG2E) if scaled else at.value(anchor.body, "float32")
            low = b.number(-math.inf, "float32")
            below = x - b.apply("select", top.equals(low), b.number(0.0, "float32"), top)
            weights = weights * b.apply("exp2", below if scaled else LOG2E * below, hint="p")
        dtype = r.operand or "float32"
        operand = self.operand(quotient_of(r.feature), dtype, at, self.kernel.looped or "")
        term = b.cast(b.cast(weights, dtype), "float32") * b.cast(operand, "float32")
        mask = self._mask(t, at, True)
        return term if mask is None else b.apply("select", mask, term, b.number(0.0, "float32"))
