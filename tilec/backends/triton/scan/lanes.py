"""Scans of many lanes that lie side by side in memory: a lane a thread, several steps written out at a time.

The loads of all these steps stand before the first of them, so that they are in flight together. A recurrence is gone
through step by step, from what its chunk starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.scan.kernel import ScanWriter
from tilec.ir.program import Access, Expr, Statement, walk


class _Frame(Frame):
    """The lanes at one step. `running`: the test that the step is one, `moving`: what changes from step to step."""

    running: str
    moving: frozenset[str]

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        return [*super().tail_tests(variables), *([self.running] if variables & self.moving else [])]


@dataclass(frozen=True)
class _Moment:
    """A step that is written out: its frame, and what the kernel's variables are there."""

    frame: _Frame
    step: str
    value_of: dict[str, str]
    axis_of: dict[str, Axis]


class LaneWriter(ScanWriter):
    def totals(self, flat: Statement, chunks: int) -> Launch:
        """Compose the terms of each chunk."""
        k = self._begin("_totals")
        names = [k.names.fresh("total") for _ in self.algebra.dtypes]
        k.scopes[0].lines += self._full(names, "(BL,)")
        self._chunk()
        step = self.scan.step
        for moment in self._ahead((self.scan.statement.body,) if step is None else (step.scale, step.offset)):
            self._enter(moment)
            terms = self._terms(moment.frame, moment.frame.running, "(BL,)")
            k.assign(names, self._then([*names, *terms]))
        k.close("first", "range(start, end, BT)")
        return self._store_totals(flat, names, chunks)

    def apply(self, flat: Statement, chunks: int) -> Launch:
        """Go through rows, or their chunks, and store what every element holds."""
        carries, k = self._go_through(chunks), self.kernel
        state = carries[0]
        for moment in self._ahead((self.scan.statement.body,)):
            self._enter(moment)
            along = k.value_of[self.scan.along]
            tests = [self._seen_test(moment.step, along), "lane_in"]
            if self.scan.step is None:
                terms = self._terms(moment.frame, moment.frame.running, "(BL,)")
                k.assign(carries, self._then([*carries, *terms]))
                self._store(self._elements(moment), self._result(carries), tests)
            else:
                before, state = state, k.names.fresh("state")  # equal texts are one line: each state has its own name
                self._advance(moment.frame, before, state)
                self._store(moment.frame, state, tests)
        if self.scan.step is not None:
            k.assign(carries[0], state)
        k.close("first", "range(start, end, BT)")
        return self._launch(flat, chunks)

    def _ahead(self, bodies: Sequence[Expr]) -> list[_Moment]:
        """Open the loop, with the loads of all steps of a round."""
        k, scan = self.kernel, self.scan
        k.scopes.append(Scope())
        own = scan.statement.output
        reads = [
            e for b in (*scan.statement.guards, *bodies) for e in walk(b) if isinstance(e, Access) and e.tensor != own
        ]
        moments = []
        for u in range(self.tiling.steps):
            step = k.names.fresh("step")
            k.assign(step, f"first + {u}")
            self._at(step)
            frame = self._moment_frame(self._term_test(step, k.value_of[scan.along]))
            for access in dict.fromkeys(reads):
                frame.read(access, None)
            moments.append(_Moment(frame, step, dict(k.value_of), dict(k.axis_of)))
        return moments

    def _moment_frame(self, test: str) -> _Frame:
        """The lanes at a step at which the test holds."""
        moving = frozenset((self.scan.along, *self.scan.circular_shifts))
        frame = _Frame(self.kernel, ["lane"], {"lane": "lane_in"}, moving)
        frame.running, frame.moving = self.kernel.names.fresh("running"), moving
        self.kernel.assign(frame.running, test)
        return frame

    def _elements(self, moment: _Moment) -> _Frame:
        """The frame of the epilogue: the elements of the output, which begin and end where terms need not."""
        along = self.kernel.value_of[self.scan.along]
        view = self._seen_test(moment.step, along)
        same = not self.epilogue or view == self._term_test(moment.step, along)
        return moment.frame if same else self._moment_frame(view)

    def _enter(self, moment: _Moment) -> None:
        self.kernel.value_of.update(moment.value_of)
        self.kernel.axis_of.update(moment.axis_of)
