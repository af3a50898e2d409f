"""The autotuner of products: candidates measured on the device, and what it found before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tilec.backends.base import Lowering
from tilec.backends.triton.plan.plan import Allocate, Plan, Setting, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime.executable import PlannedCall
from tilec.backends.triton.schedule.candidates import Choice, product_configs, shape_class, statement_text
from tilec.backends.triton.schedule.problem import Problem, product_task
from tilec.backends.triton.tuning.benchmark import measure_candidates
from tilec.backends.triton.tuning.store import Environment, Tuned, TuningKey, default_store
from tilec.ir.program import reads

TOLERANCES = {"float64": 1e-9, "float32": 2e-3, "float16": 1e-2, "bfloat16": 5e-2}  # tf32 counts as float32


def known_choice(task: Problem) -> Choice | None:
    """What was found for such a product before, by this process or another; None off the device."""
    if not task.setting.device.capability or not torch.cuda.is_available():
        return None
    found = default_store().get(_key(task))
    return None if found is None else found.choice


def tune_products(lowering: Lowering, strides: Sequence[tuple[int, ...]], setting: Setting, inputs: Mapping) -> None:
    """Measure the ways of every product that nothing is known of, on the inputs and, for what is computed, random
    numbers; keep the winners. `inputs`: tensors by name, on the device."""
    flat = lowering.stages["flat"]
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    known = {name: tuple(s) for name, s in zip(flat.input_names(), strides, strict=True)}
    for s in flat.statements:
        known[s.output] = contiguous(lowering.types[s.output].shape)
        task = product_task(defracted[s.output], s, lowering.types, known, setting)
        if task is None or known_choice(task) is not None:
            continue
        found = product_configs(task)
        if len(found) < 2:
            continue
        tensors = {n: inputs[n] if n in inputs else _random(lowering, n, inputs) for n in reads(s)}
        _measure(task, found, tensors)


def _measure(task: Problem, found: list[tuple[Choice, list[Step]]], tensors: dict[str, torch.Tensor]) -> None:
    output = task.flat.output
    t = task.types[output]
    device = next(iter(tensors.values())).device
    results: dict[int, torch.Tensor] = {}
    calls = {}
    for number, (_, steps) in enumerate(found):
        plan = Plan((Allocate(output, t.shape, t.dtype), *steps), (output,))
        calls[number] = PlannedCall(plan, tuple(tensors), device)

    def run(number: int):
        def launch() -> None:
            results[number] = calls[number](tuple(tensors.values()))[0]

        return launch

    def close(number: int) -> bool:
        reference = results.setdefault(-1, results[number].double())
        difference = (results.pop(number).double() - reference).norm()
        return bool(difference <= TOLERANCES.get(t.dtype, 0) * reference.norm())

    winner, times = measure_candidates(list(calls), run, check=close, label=f"tuning {output}")
    microseconds = times[winner]
    assert microseconds is not None
    default_store().put(_key(task), Tuned(found[winner][0], microseconds))


def _key(task: Problem) -> TuningKey:
    return TuningKey.of(Environment.of(torch.cuda.current_device()), "product", statement_text(task), shape_class(task))


def _random(lowering: Lowering, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    t = lowering.types[name]
    device = next(iter(inputs.values())).device
    dtype = getattr(torch, t.dtype)
    if dtype.is_floating_point:
        return torch.randn(t.shape, device=device, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2, t.shape, device=device).to(dtype)
