"""Sums of a block of which some rows do not see all that is walked, where these are not finite.

A product multiplies what a row does not see by 0, and of an infinity or NaN 0 makes NaN. Programs look at their sums
once, at the end. Where one is not finite they are computed again point by point: what a row does not see is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

    def _without_hidden(
        self, positions: Mapping[str, Value], state: Sequence[Value], places: Mapping[str, tuple[int, ...]]
    ) -> list[Value]:
        """The state of a finished walk, with sums again where they are not finite."""
        b = self.b
        again = [(r, k, place) for r in self.kernel.targets if self._hides_points(r)
                 for k, place in enumerate(places[r.target.output])]
        if not again:
            return list(state)
        suspects = (self._is_suspect(r, state, places, state[place]) for r, _, place in again)
        suspect = reduce(partial(b.apply, "larger"), suspects)

        def repeat(turn: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            empty = [b.fill(v.type.axes, 0.0) for v in carried]
            return self._by_points(list(self.kernel.walked), {**positions, "": turn}, again, state, places, empty)

        sums = b.loop(b.number(0), suspect, 1, [state[place] for _, _, place in again], repeat, hint="turn")
        found = list(state)
        for (_, _, place), v in zip(again, sums, strict=True):
            found[place] = v
        return found

    def _is_suspect(self, r: Reduced, state: Sequence[Value], places: Mapping[str, tuple[int, ...]], sums: Value) -> Value:
        """1 where an element of sums is not finite; 0 where all are, or where their row's exponentials have no finite
        sum, of which they are to be a part."""
        b, zero = self.b, self.b.number(0.0, "float32")
        (axis,) = [a for a in sums.type.axes if a not in self.kernel.blocked]
        left = b.reduce("sum", axis, sums * 0.0)
        if r.anchor is not None and len(places[r.anchor]) > 1:
            total = state[places[r.anchor][1]]
            left = b.apply("select", (total * 0.0).equals(zero), left, zero)
        for a in left.type.axes:
            left = b.reduce("sum", a, left)
        return b.cast(left.differs(zero), INDEX_TYPE)

    def _by_points(
        self,
        walked: Sequence[str],
        positions: Mapping[str, Value],
        again: Sequence[tuple[Reduced, int, int]],
        state: Sequence[Value],
        places: Mapping[str, tuple[int, ...]],
        sums: Sequence[Value],
    ) -> tuple[Value, ...]:
        """The sums over all values of the variables `walked` and over the walk."""
        b, looped = self.b, self.kernel.looped
        assert looped is not None
        if walked:
            share = self._share(walked[0], positions)
        else:
            found = limits(b, self.bounds, looped, self.ends, self.size(looped), self.extent)
            share = Round(looped, found.first, found.last + 1, 1)

        def go(count: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            here = {**positions, share.variable: count}
            if walked:
                self.ends[walked[0]] = count, count
                return self._by_points(walked[1:], here, again, state, places, carried)
            # rows of this loop's own, for each point anew: what is read for them holds no registers elsewhere
            turn = b.apply("smaller", count, here.pop(""))
            here.update({v: here[v] + turn for v in self.kernel.blocked})
            found = []
            for (r, k, _), before in zip(again, carried, strict=True):
                at = self._at_feature(r, k, here, True)
                top = None if r.anchor is None else state[places[r.anchor][0]]
                found.append(before + self._term(r, at, top))
            return found

        return b.loop(share.first, share.stop, share.step, sums, go, hint=share.variable)

    def _term(self, r: Reduced, at: Emitter, top: Value | None) -> Value:
        """What a point of the walk adds, rounded as operands of the product are. `top`: the greatest exponents."""
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
