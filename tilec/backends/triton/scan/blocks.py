"""Scans in blocks of steps x lanes, composed by `tl.associative_scan`, with what came before put in front.

Composed steps of a recurrence may overflow where step by step nothing does. A block with a state that is not finite
(in a semiring of `+` and max or min: is at its far end, or NaN) is computed again step by step, in the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.backends.triton.emit.epilogue import ANCHOR
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope, triton_type
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.scan.kernel import ScanWriter
from tilec.ir.program import Statement


class BlockWriter(ScanWriter):
    """The steps stand last in a block where the tiling says `along`; a block of one lane has no dimension of lanes."""

    def totals(self, flat: Statement, chunks: int) -> Launch:
        """Compose the terms of each chunk."""
        k = self._begin("_totals")
        names = [k.names.fresh("total") for _ in self.algebra.dtypes]
        k.scopes[0].lines += self._full(names, self._shape if self.algebra.commutes else self._lane_shape)
        self._chunk()
        frame = self._tile()
        terms = self._terms(frame, self._spread_step("step_in"), self._shape)
        if self.algebra.commutes:
            k.assign(names, self._then([*names, *terms]))
        else:
            found = self._scanned(terms, self._axis)
            last = self._last(found)
            k.assign(names, self._then([*names, *last]))
        k.close("first", "range(start, end, BT)")
        if self.algebra.commutes:
            k.assign(names, self._reduced(names, self._axis))
        return self._store_totals(flat, names, chunks)

    def apply(self, flat: Statement, chunks: int) -> Launch:
        """Go through rows, or their chunks, and store what every element holds."""
        carries, k = self._go_through(chunks), self.kernel
        frame = self._tile()
        found = self._scanned(self._terms(frame, self._spread_step("step_in"), self._shape), self._axis)
        spread = [self._spread_lane(c) for c in carries]
        if self.scan.step is None:
            k.assign(found, self._then([*spread, *found]))
            for c, last in zip(carries, self._last(found), strict=True):
                k.assign(c, last)
            self._store(self._elements(frame), self._result(found), self._tests)
        else:
            (carry,) = carries
            k.assign("head", self.algebra.apply.format(*found, *spread))
            k.scopes.append(Scope())
            within = Frame(k, frame.axes, frame.tails, *frame.inner, frozenset((ANCHOR,)))
            self._store(within, "head", self._tests)
            k.assign(carry, self._last(["head"])[0])
            self._certified_or(" & ".join(self._tests), lambda: self._recompute_steps(carry))
        k.close("first", "range(start, end, BT)")
        return self._launch(flat, chunks)

    # blocks

    @property
    def _shape(self) -> str:
        if self.flat_lanes:
            return "(BT,)"
        return "(BL, BT)" if self.tiling.along else "(BT, BL)"

    @property
    def _axis(self) -> int:
        return 1 if self.tiling.along and not self.flat_lanes else 0

    def _spread_lane(self, text: str) -> str:
        if self.flat_lanes:
            return text
        return f"{text}[:, None]" if self.tiling.along else f"{text}[None, :]"

    def _spread_step(self, text: str) -> str:
        if self.flat_lanes:
            return text
        return f"{text}[None, :]" if self.tiling.along else f"{text}[:, None]"

    def _tile(self) -> Frame:
        """Open the loop over blocks of steps and bind their variables."""
        k, scan = self.kernel, self.scan
        k.scopes.append(Scope())
        k.assign("step", "first + tl.arange(0, BT)")
        k.assign(self._along_name, self._value("step"))
        k.value_of[scan.along] = self._along_name
        k.axis_of[scan.along] = Axis("step", (scan.along,), "BT")
        k.assign("step_in", self._term_test("step", self._along_name))
        for v, shift in scan.circular_shifts.items():
            n = k.extent(v)
            at = k.names.fresh("turned")
            k.assign(at, f"step * {k.number(('turn', v), 'turn', shift, False)} % {n}")
            moved = self._shifted[v]
            k.assign(moved, f"{self._spread_lane(self._at_rest[v])} + {self._spread_step(at)}")
            k.assign(moved, f"tl.where({moved} >= {n}, {moved} - {n}, {moved})")
            k.value_of[v] = moved
            k.axis_of.pop(v, None)
        tails = {"step": "step_in"}
        axes = ["step"]
        if not self.flat_lanes:
            tails["lane"] = "lane_in"
            axes = ["lane", "step"] if self.tiling.along else ["step", "lane"]
        self._moving = moving = frozenset(("step", scan.along, *scan.circular_shifts))
        self._tests = [self._spread_step(f"({self._seen_test('step', self._along_name)})")]
        if not self.flat_lanes:
            self._tests.append(self._spread_lane("lane_in"))
        return Frame(k, axes, tails, moving)

    def _elements(self, frame: Frame) -> Frame:
        """The frame of the epilogue: the elements of the output, which begin and end where terms need not."""
        view = self._seen_test("step", self._along_name)
        if not self.epilogue or view == self._term_test("step", self._along_name):
            return frame
        self.kernel.assign("element_in", view)
        return Frame(self.kernel, frame.axes, {**frame.tails, "step": "element_in"}, self._moving)

    def _last(self, names: Sequence[str]) -> list[str]:
        """Texts of blocks' values at their last step."""
        pick = self._spread_step("(tl.arange(0, BT) == BT - 1)")
        kinds = map(triton_type, self.algebra.dtypes)
        return [f"tl.sum(tl.where({pick}, {n}, 0), {self._axis}).to({t})" for n, t in zip(names, kinds, strict=False)]

    # step by step

    def _certified_or(self, inside: str, again: Callable[[], tuple[CodeLine, ...]]) -> None:
        """Close the scope that stores a block: it is for blocks that are sure, the lines of `again` for the others."""
        k = self.kernel
        lines = tuple(k.scopes.pop().lines)
        if not self.algebra.certified:
            k.add(*lines)
            return
        redone = again()
        k.assign("unsure", f"({inside}) & ({self.algebra.certified.format('head')} ^ True)")
        test = "tl.max(unsure.to(tl.int32), 0)"
        k.add(If(f"{test if self.flat_lanes else f'tl.max({test}, 0)'} > 0", redone, lines))

    def _recompute_steps(self, carry: str) -> tuple[CodeLine, ...]:
        """The block's steps, one by one."""
        k = self.kernel
        steps = k.number("steps", "steps", self.scan.steps, False)
        k.scopes += [Scope(), Scope()]
        frame = self._one_step(carry, 3)
        self._store(frame, carry, [] if self.flat_lanes else ["lane_in"])
        lines, outer = tuple(k.scopes.pop().lines), k.scopes.pop().lines
        return (*outer, ForLoop("at_step", f"range(first, tl.minimum(first + BT, {steps}))", lines))
