"""Plans of a program whose sizes are left open, for the sizes of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from tilec import knobs
from tilec.backends.base import Lowering
from tilec.backends.triton.plan.plan import Plan, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.errors import TileError
from tilec.ir.at_sizes import mentions, template, with_numbers
from tilec.ir.shape_class import predicate
from tilec.ir.symbolic import Pinned, is_symbolic

MakePlan = Callable[[Sequence[tuple[int, ...]], Setting, Mapping[str, torch.Tensor] | None], Plan]


class OpenPlans:
    """One plan a setting, over contiguous inputs, made with open sizes where that can be. `planner` gives what makes
    plans of a lowering; `usable` says whether such plans hold."""

    def __init__(
        self,
        lowering: Lowering,
        names: Sequence[str],
        planner: Callable[[Lowering], MakePlan],
        usable: Callable[[], bool],
    ):
        assert lowering.recorder is not None
        self._lowering, self._planner, self._usable = lowering, planner, usable
        self._recorder = lowering.recorder
        self._types = [lowering.types[name] for name in names]
        self._made: dict[Setting, tuple[Callable[[Mapping[str, int]], Plan], Callable[..., bool]] | None] = {}
        self._contiguous = template([contiguous(t.shape) for t in self._types], self._recorder.names)

    def plan(
        self,
        sizes: Mapping[str, int],
        strides: Sequence[tuple[int, ...]],
        setting: Setting,
        inputs: Mapping[str, torch.Tensor] | None = None,
    ) -> Plan:
        """The plan for these sizes and strides."""
        if self._usable() and self._contiguous(sizes) == list(map(tuple, strides)):
            if setting not in self._made:
                self._open(setting)
            made = self._made[setting]
            if made is not None and made[1](*[sizes[name] for name in self._recorder.names]):
                return made[0](sizes)
        lowering = with_numbers(replace(self._lowering, recorder=None), sizes)
        return self._planner(lowering)(strides, setting, inputs)

    def make(self, setting: Setting) -> None:
        """Make the plan for contiguous inputs, so that what it asks of the sizes counts from the start. Raises Pinned
        for sizes that it needs as numbers."""
        strides = [contiguous(t.shape) for t in self._types]
        plan = self._planner(self._lowering)(strides, setting, None)
        if named := [name for name in self._recorder.names if mentions(plan, (name,))]:
            raise Pinned(named)
        fixed = [n for t in self._types for n in t.shape if not is_symbolic(n)]
        self._made[setting] = (
            template(plan, self._recorder.names),
            predicate(self._recorder, self._recorder.names, fixed),
        )

    def _open(self, setting: Setting) -> None:
        try:
            self.make(setting)
        except (TileError, Pinned):
            self._made[setting] = None
        except Exception:  # something that does not plan with open sizes does so with numbers
            if knobs.VERIFY.value:
                raise
            self._made[setting] = None
