"""What a program answers after every pass and on a backend, against the oracle on its source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tilec.arguments import to_tensors
from tilec.backends import choose
from tilec.errors import InternalMistake, SizeMistake, TileError, WriteConflict
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.program import Program
from tilec.ir.types import TensorType, kind
from tilec.ir.verify import verify
from tilec.language import parse, show
from tilec.pipeline import PASSES, Setting
from tilec.transforms.bind import size_inputs

REFUSALS = (WriteConflict, SizeMistake)  # what a program that parses may still be refused for, by oracle and passes alike


class Disagreement(AssertionError):
    """A stage gives another answer than the source."""


def types_of(program: Program, arrays: Sequence[np.ndarray]) -> dict[str, TensorType]:
    """Types of the inputs."""
    return {
        name: TensorType(a.shape, a.dtype.name) for name, a in zip(program.input_names(), arrays, strict=True)
    }


def check(program: Program, arrays: Sequence[np.ndarray], backend: str | None = "torch") -> tuple[np.ndarray, ...] | None:
    """The outputs, once every stage and the backend have given the same ones; None if all refuse the program.

    Raises Disagreement, which names the first stage whose answer changed.
    """
    text = show(program)
    if parse(text) != program:
        raise Disagreement(f"parse(show(p)) is another program than p:\n{text}\n{show(parse(text))}")
    try:
        expected = evaluate(program, arrays)
    except REFUSALS as error:
        _refused(program, arrays, error)
        return None
    types = types_of(program, arrays)
    values = {name: int(arrays[program.input_names().index(name)]) for name in size_inputs(program)}
    setting = Setting(types, values)
    verify(program)
    stage = program
    lowest: dict[str, str] = {}
    for step in PASSES:
        before = stage
        try:
            stage = step.run(before, setting)
            verify(stage, bound=step.bound)
            got = evaluate(stage, arrays)
        except Exception as error:
            raise Disagreement(f"{step.stage}: {type(error).__name__}: {error}\n{show(before)}") from error
        _compare(step.stage, program.outputs, expected, got, lowest, f"{show(before)}\n{show(stage)}")
        if step.bound:
            inferred = infer(stage, types)
            for name, e, output in zip(program.outputs, expected, stage.outputs, strict=True):
                dtype = inferred[output].dtype
                lowest[name] = dtype
                if inferred[output].shape != e.shape or (kind(dtype) != 2 and dtype != e.dtype.name):
                    raise Disagreement(f"{step.stage}: {name} is {e.dtype} {e.shape}, inferred {inferred[output]}")
        again = parse(show(stage))
        if again != stage:
            raise Disagreement(f"parse(show(p)) differs after {step.stage}:\n{show(stage)}\n{show(again)}")
    if backend is not None:
        run_backend(program, arrays, setting, expected, backend, lowest)
    return expected


def run_backend(program, arrays, setting, expected, backend, lowest) -> None:
    """Compare a backend's outputs with the expected ones."""
    from tilec.pipeline import lower

    try:
        lowering = lower(program, setting.types, setting.values)
        executable = choose(backend, "cpu", None).build(lowering)
        got = [t.numpy() for t in executable(to_tensors(program.input_names(), arrays).tensors)]
    except Exception as error:
        raise Disagreement(f"backend: {type(error).__name__}: {error}\n{show(program)}") from error
    for name, g in zip(program.outputs, got, strict=True):
        if g.dtype.name != lowest[name]:
            raise Disagreement(f"backend: {name} has type {g.dtype.name}, inferred {lowest[name]}")
    _compare(f"backend {backend}", program.outputs, expected, got, lowest, show(lowering.stages["defracted"]))


def _refused(program: Program, arrays: Sequence[np.ndarray], error: TileError) -> None:
    from tilec.pipeline import lower

    values = {name: int(arrays[program.input_names().index(name)]) for name in size_inputs(program)}
    try:
        lower(program, types_of(program, arrays), values)
    except InternalMistake:
        raise
    except type(error):
        return
    raise Disagreement(f"the oracle refuses the program, the passes do not: {type(error).__name__}: {error}")


def _compare(stage: str, names, expected, got, dtypes: dict[str, str], text: str) -> None:
    if len(got) != len(expected):
        raise Disagreement(f"{stage}: {len(got)} outputs, not {len(expected)}")
    for name, e, g in zip(names, expected, got, strict=True):
        if not same(e, g, "float32" if dtypes.get(name) == "float32" and g.dtype == np.float32 else "float64"):
            raise Disagreement(f"{stage}: {name} changed\nexpected {e.dtype} {e.shape}\n{e}\ngot {g.dtype} {g.shape}\n{g}\n{text}")


def same(e: np.ndarray, g: np.ndarray, dtype: str) -> bool:
    """Integers equal; floating values equal up to rounding, which for small integers held exactly is equality."""
    if e.shape != g.shape:
        return False
    if kind(e.dtype.name) != 2:
        return bool((e == g).all()) and kind(g.dtype.name) != 2
    relative = 3e-5 if dtype == "float32" else 1e-9
    finite = e[np.isfinite(e)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(g, e, rtol=relative, atol=relative * max(1e-3, scale * 1e-2), equal_nan=True))


def inputs_of(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)
