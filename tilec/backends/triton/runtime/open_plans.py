"""Plans with open sizes (dynamic shapes): made once for a layout, filled in with the sizes of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilec import knobs
from tilec.backends.base import Lowering
from tilec.backends.triton.plan.check_lines import MalformedKernel
from tilec.backends.triton.plan.plan import Plan, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime.bound import Operation
from tilec.backends.triton.runtime.open_native import OpenNative, fits
from tilec.errors import TileError
from tilec.ir.at_sizes import NAMESPACE, Template, mentions, with_numbers
from tilec.ir.program import reads
from tilec.ir.shape_class import predicate
from tilec.ir.symbolic import Pinned, is_symbolic

MakePlan = Callable[[Sequence[tuple[int, ...]], Setting, Mapping[str, torch.Tensor] | None], Plan]


ManySizes = tuple[tuple[int, ...], ...]
MOST_LAYOUTS = 16  # combinations of strides for which plans are made with open sizes


@dataclass(frozen=True)
class OpenPlan:
    """A plan of open sizes, `symbols`. `at`: that of a call, whose sizes it `holds` for. `natives`: what runs it, by
    the inputs' devices and alignments; None where only the plan at its sizes can."""

    plan: Plan
    symbols: tuple[str, ...]
    at: Callable[[Mapping[str, int]], Plan]
    holds: Callable[..., bool]
    natives: dict[object, OpenNative | None] = field(default_factory=dict)

    def filled_in(
        self, sizes: Mapping[str, int], inputs: Mapping[str, torch.Tensor], operation: Callable[[Any], Operation]
    ) -> Any | None:
        """The library's plan for these sizes and for inputs like these, if it can be made of what has run."""
        key = placed_as(inputs.values())
        if key not in self.natives:
            able = fits(self.plan, tuple(inputs))
            self.natives[key] = OpenNative(self.plan, self.symbols, inputs, operation) if able else None
        found = self.natives[key]
        return None if found is None else found.at(sizes)


def placed_as(inputs: Iterable[torch.Tensor]) -> tuple:
    """What the library's plans depend on beside sizes and strides."""
    return tuple([(t.device, t.data_ptr() & 15) for t in inputs])


class OpenPlans:
    """Plans by settings and layouts of the inputs, made with open sizes where that can be. `planner` gives what makes
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
        flat = lowering.stages["flat"]
        read = {*flat.outputs, *(n for s in flat.statements for n in reads(s))}
        self._read = [name in read for name in names]
        self._made: dict[object, OpenPlan | None] = {}
        self._contiguous = Template(tuple([contiguous(t.shape) for t in self._types]), self._recorder.names)
        self._shapes = Template(tuple([t.shape for t in self._types]), self._recorder.names)

    def find(self, sizes: Mapping[str, int], strides: Sequence[tuple[int, ...]], setting: Setting) -> OpenPlan | None:
        """The plan that serves these sizes and strides, made where it is not there yet; None where that cannot be."""
        if not self._usable():
            return None
        own = self._contiguous(sizes)
        given = tuple([tuple(s) if r else c for s, c, r in zip(strides, own, self._read, strict=True)])
        layout = None if given == own else self._layout(given, self._shapes(sizes))
        key = setting, layout
        if key not in self._made and len(self._made) < MOST_LAYOUTS:
            self._open(setting, layout, given, sizes)
        made = self._made.get(key)
        return made if made is not None and made.holds(*[sizes[name] for name in self._recorder.names]) else None

    def filled_in(
        self, setting: Setting, placed: tuple, sizes: Mapping[str, int], tensors: Sequence[torch.Tensor]
    ) -> Any | None:
        """The library's plan for these sizes and tensors, if one for such tensors has been made."""
        made = self.find(sizes, [t.stride() for t in tensors], setting)
        native = None if made is None else made.natives.get(placed)
        return None if native is None else native.at(sizes)

    def plan(
        self,
        sizes: Mapping[str, int],
        strides: Sequence[tuple[int, ...]],
        setting: Setting,
        inputs: Mapping[str, torch.Tensor] | None = None,
    ) -> Plan:
        made = self.find(sizes, strides, setting)
        if made is not None:
            return made.at(sizes)
        lowering = with_numbers(replace(self._lowering, recorder=None), sizes)
        return self._planner(lowering)(strides, setting, inputs)

    def make(self, setting: Setting, layout: str | None = None, strides: Sequence[tuple[int, ...]] = ()) -> None:
        """Make the plan for inputs of a layout (None: contiguous) and its strides, so that what it asks of the sizes
        counts from the start. Raises Pinned for sizes that it needs as numbers."""
        if layout is None:
            strides = [contiguous(t.shape) for t in self._types]
        try:
            plan = self._planner(self._lowering)(strides, setting, None)
        except MalformedKernel as error:
            sizes = error.undefined & {*self._recorder.names}
            if sizes and error.undefined <= sizes | NAMESPACE.keys():
                raise Pinned(sizes) from error  # a kernel's text holds these sizes
            raise
        if named := [name for name in self._recorder.names if mentions(plan, (name,))]:
            raise Pinned(named)
        fixed = [n for t in self._types for n in t.shape if not is_symbolic(n)]
        symbols = self._recorder.names
        holds = predicate(self._recorder, symbols, fixed)
        self._made[setting, layout] = OpenPlan(plan, symbols, Template(plan, symbols), holds)

    def _layout(self, strides: ManySizes, shapes: ManySizes) -> str:
        """Which strides follow from the sizes inside them, and those that do not."""
        return repr([packed_axes(t, s) for t, s in zip(strides, shapes, strict=True)])

    def _open(self, setting: Setting, layout: str | None, strides: ManySizes, sizes: Mapping[str, int]) -> None:
        try:
            shapes = zip([t.shape for t in self._types], strides, self._shapes(sizes), strict=True)
            self.make(setting, layout, [packed_strides(packed_axes(t, s), shape) for shape, t, s in shapes])
        except (TileError, Pinned):
            self._made[setting, layout] = None
        except Exception:  # something that does not plan with open sizes does so with numbers
            if knobs.VERIFY.value:
                raise
            self._made[setting, layout] = None


PackedAxes = tuple[tuple[int, int], ...]  # an axis, and its stride or -1: as many as the elements of the axes before


def packed_axes(strides: Sequence[int], shape: Sequence[int]) -> PackedAxes:
    """A layout of any sizes: axes from the innermost on, each beside the last one or at a stride of its own."""
    found, step = [], 1
    for axis in sorted(range(len(shape)), key=lambda a: (strides[a], shape[a])):
        beside = strides[axis] == step
        found.append((axis, -1 if beside else strides[axis]))
        step = strides[axis] * shape[axis] or step
    return tuple(found)


def packed_strides(axes: PackedAxes, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a layout at these sizes."""
    found, step = [0] * len(shape), 1
    for axis, stride in axes:
        found[axis] = step if stride < 0 else stride
        step = found[axis] * shape[axis] or step
    return tuple(found)
