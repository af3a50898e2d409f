"""A plan of open sizes that is filled in for a call is, number for number, the library's of the plan at its sizes."""

from __future__ import annotations

from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.no_device import stand_in

import tilec
from tilec.backends.triton.runtime import executable, launcher, native_plan, open_native
from tilec.backends.triton.runtime.aten_calls import AtenStep
from tilec.bench.overheads import LENGTH_CASES, LengthCase


class Made:
    """What stands for the library, and for its plan: `given` is what it was made of."""

    def plan(self, *given: Any) -> Made:
        made = Made()
        like, workspace, slots, steps, outputs = given
        numbers = [tuple(_number(x) for x in step if type(x) is not torch.Tensor) for step in steps]
        made.given = like.device, workspace, slots, numbers, outputs  # type: ignore[attr-defined]
        return made

    def filled(self, workspace: int, numbers: tuple, functions: list) -> Made:
        """With numbers in their places."""
        made, own = Made(), iter(functions)
        device, _, slots, steps, outputs = self.given  # type: ignore[attr-defined]
        steps = [_with_own(step, numbers, next(own) if step[0] == "python" else None) for step in steps]
        made.given = device, workspace, slots, steps, outputs  # type: ignore[attr-defined]
        return made

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *_, steps, outputs = self.given  # type: ignore[attr-defined]
        shapes = {step[1]: step[2] for step in steps if step[0] == "empty"}
        return tuple(torch.empty(shapes.get(slot, ()), device="meta") for slot in outputs)


def _with_own(step: tuple, numbers: tuple, function: object) -> tuple:
    def own(x: Any) -> Any:
        if type(x) is tuple and len(x) == 1 and type(x[0]) is int:
            return numbers[x[0]]
        return type(x)(map(own, x)) if type(x) in (tuple, list) else x

    kind, first, *rest = map(own, step)
    return kind, first if function is None else _number(function), *rest


def _number(x: Any) -> Any:
    """What of a step depends on sizes: of torch's own lines, the numbers that they are given."""
    if isinstance(x, AtenStep):
        return getattr(x._function, "keywords", None)
    return None if callable(x) else x


OUTPUTS = {
    "softmax": lambda n: (n, 256),
    "layer norm": lambda n: (n, 256),
    "attention": lambda n: (n, 64),
    "product": lambda n: (n, 128),
    "recurrence": lambda n: (n, 64),
    "convolution": lambda n: (2, n // 4, 9, 16),
    "log product": lambda n: (n, 64),
    "mean over rows": lambda n: (256,),
    "bias + gelu": lambda n: (n, 256),
}


@pytest.mark.parametrize("case", LENGTH_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_numbers_are_those_of_the_plan(case: LengthCase, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    compiled, handles = launcher.assembled, count(1)

    def own_handle(*given: Any) -> SimpleNamespace:
        return SimpleNamespace(**vars(compiled(*given)) | {"function": next(handles)})

    monkeypatch.setattr(launcher, "assembled", own_handle)
    for module in (executable, native_plan, open_native):
        monkeypatch.setattr(module, "native", Made)
    filled = executable.TritonProgram._filled_in
    served: list[int] = []

    def checked(self, inputs, setting, device):
        found = filled(self, inputs, setting, device)
        if found is not None:
            plan = self._open_plans.find(self._sizes, [t.stride() for t in inputs], setting).at(self._sizes)
            call = executable.PlannedCall(plan, self._names, device)
            call._compile(inputs)
            wanted = native_plan.native_plan(plan, self._names, call.bound.operations, device)
            assert found.given == wanted.given
            served.append(1)
        return found

    monkeypatch.setattr(executable.TritonProgram, "_filled_in", checked)
    f = tilec.compile(case.source, backend="triton")
    shape = OUTPUTS[case.name]
    lengths = list(range(256, 768, 16))
    Random(case.name).shuffle(lengths)
    for n in lengths:
        shapes = case.shapes(n)
        inputs = [torch.empty(s, device="meta") for s in shapes]
        if gradient:
            inputs.append(torch.empty(shape(n), device="meta"))
        (f.grad() if gradient else f)(*inputs)
    assert len(served) > len(lengths) // 2
