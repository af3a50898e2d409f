"""What a program answers after every pass and on a backend, against the oracle on its source."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilec.arguments import to_tensors
from tilec.backends import choose_backend
from tilec.errors import InternalMistake, SizeMistake, TileError, WriteConflict
from tilec.ir.evaluate import evaluate
from tilec.ir.functions import RANDOM
from tilec.ir.infer import expression_types, infer
from tilec.ir.program import Call, Expr, Program, expressions, walk
from tilec.ir.types import TensorType, is_floating
from tilec.ir.verify import verify
from tilec.language import parse, show
from tilec.pipeline import PASSES, CallContext, lower
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.autodiff.jvp import jvp
from tilec.transforms.bind.bind import size_inputs

REFUSALS = (WriteConflict, SizeMistake)  # of a program that parses; then the oracle and the passes both refuse


class Disagreement(AssertionError):
    """A stage gives another answer than the source."""


def setting_of(program: Program, arrays: Sequence[np.ndarray]) -> CallContext:
    """Types of the inputs, and values of those that are sizes."""
    inputs = dict(zip(program.input_names(), arrays, strict=True))
    types = {name: TensorType(a.shape, a.dtype.name) for name, a in inputs.items()}
    return CallContext(types, {name: int(inputs[name]) for name in size_inputs(program)})


def check(program: Program, arrays: Sequence[np.ndarray], backend: str | None = "torch"):
    """The outputs, once every stage and the backend have given the same ones; None if all refuse the program.

    Raises Disagreement, which names the first stage whose answer changed.
    """
    round_trip(program, "source")
    verify(program)
    setting = setting_of(program, arrays)
    try:
        expected = evaluate(program, arrays)
    except REFUSALS as error:
        _refused(program, setting, error)
        return None
    stage = program
    rough = any(isinstance(e, Call) and e.function in RANDOM for e in _nodes(program))  # what is made of draws alone
    for step in PASSES:
        before = stage
        try:
            stage = step.run(before, setting)
            if stage == before and step is not PASSES[0]:  # looked at already
                continue
            verify(stage, bound=True)
            got = evaluate(stage, arrays)
        except Exception as error:
            raise Disagreement(f"{step.stage}: {type(error).__name__}: {error}\n{show(before)}") from error
        _compare(step.stage, program.outputs, expected, got, False, f"{show(before)}\n{show(stage)}")
        inferred = infer(stage, setting.types)
        rough = rough or "float32" in element_types(stage, inferred)
        for name, e, output in zip(program.outputs, expected, stage.outputs, strict=True):
            t = inferred[output]
            if t.shape != e.shape or (not is_floating(t.dtype) and t.dtype != e.dtype.name):
                raise Disagreement(f"{step.stage}: {name} is {e.dtype} {e.shape}, inferred {t}")
        round_trip(stage, step.stage)
    if backend is not None:
        run_backend(program, arrays, setting, expected, backend, rough)
    return expected


def element_types(program: Program, types: Mapping[str, TensorType]) -> set[str]:
    """Those of the tensors and of the values on the way to them: `max(0.5, I)` is float32 where I holds integers."""
    typed = expression_types(types)
    roots = (r for s in program.statements for r in (s.body, s.guard, s.init) if r is not None)
    return {t.dtype for t in types.values()} | {typed(e).dtype for root in roots for e in walk(root)}


def _nodes(program: Program) -> Iterator[Expr]:
    for s in program.statements:
        for root in expressions(s):
            yield from walk(root)


def agree_with_oracle(program: Program, arrays: Sequence[np.ndarray]):
    """The outputs by the oracle, once interpreted kernels have given them too; None for a program that it refuses."""
    setting = setting_of(program, arrays)
    try:
        expected = evaluate(program, arrays)
    except REFUSALS:
        return None
    lowering = lower(program, setting.types, setting.values)
    floats = element_types(lowering.stages["flat"], lowering.types)
    rough = "float32" in floats or "rand" in show(program)  # draws are float32
    run_backend(program, arrays, setting, expected, "triton", rough)
    return expected


def agree_with_gradient(program: Program, arrays: Sequence[np.ndarray]):
    """The same of the gradient too, whose cotangents are small whole numbers."""
    results = agree_with_oracle(program, arrays)
    first = None if results is None else gradient(program, arrays)
    if first is not None:
        agree_with_oracle(first, [*arrays, *cotangents(results)])
    return results


def cotangents(results: Sequence[np.ndarray]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(-2, 3, r.shape).astype(float) for r in results]


def gradient(program: Program, arrays: Sequence[np.ndarray]) -> Program | None:
    """The gradient by the floating inputs; None where there are none. By others it would only be truncated."""
    names = [name for name, a in zip(program.input_names(), arrays, strict=True) if a.dtype.kind == "f"]
    return grad(program, tuple(names)) if names else None


def tangent(program: Program, arrays: Sequence[np.ndarray]) -> Program:
    """Values and tangents by the floating inputs."""
    names = [name for name, a in zip(program.input_names(), arrays, strict=True) if a.dtype.kind == "f"]
    return jvp(program, tuple(names))


def round_trip(program: Program, stage: str) -> None:
    """Printed and parsed, a program is itself."""
    text = show(program)
    try:
        again = parse(text)
    except TileError as error:
        raise Disagreement(f"{stage}: its text is refused: {error}\n{text}") from error
    if again != program:
        raise Disagreement(f"{stage}: its text is another program:\n{text}\n{show(again)}")


def run_backend(program, arrays, setting: CallContext, expected, backend: str, rough: bool) -> None:
    """Compare a backend's outputs, and their types, with the expected ones; `rough`: float32 is among them."""
    try:
        lowering = lower(program, setting.types, setting.values)
        executable = choose_backend(backend, "cpu", None).build(lowering)
        # NumPy, by which kernels are interpreted, warns of every division by zero
        with warnings.catch_warnings(action="error" if backend == "torch" else "ignore"):
            got = [t.numpy() for t in executable(to_tensors(program.input_names(), arrays).tensors)]
    except Exception as error:
        raise Disagreement(f"backend: {type(error).__name__}: {error}\n{show(program)}") from error
    text = show(lowering.stages["defracted"])
    for name, g, output in zip(program.outputs, got, lowering.stages["flat"].outputs, strict=True):
        if g.dtype.name != lowering.types[output].dtype:
            raise Disagreement(f"backend: {name} is {g.dtype.name}, inferred {lowering.types[output].dtype}\n{text}")
    _compare(f"backend {backend}", program.outputs, expected, got, rough, text)


def _refused(program: Program, setting: CallContext, error: TileError) -> None:
    try:
        lower(program, setting.types, setting.values)
    except InternalMistake:
        raise
    except type(error):
        return
    raise Disagreement(f"the oracle refuses the program, the passes do not: {type(error).__name__}: {error}")


def _compare(stage: str, names, expected, got, rough: bool, text: str) -> None:
    if len(got) != len(expected):
        raise Disagreement(f"{stage}: {len(got)} outputs, not {len(expected)}")
    for name, e, g in zip(names, expected, got, strict=True):
        if not same(e, g, 3e-5 if rough else 1e-9):
            values = f"expected {e.dtype} {e.shape}\n{e}\ngot {g.dtype} {g.shape}\n{g}"
            raise Disagreement(f"{stage}: {name} changed\n{values}\n{text}")


def same(e: np.ndarray, g: np.ndarray, relative: float) -> bool:
    """Integers equal; floating values equal up to rounding, which for small integers held exactly is equality. What
    cancels to nothing keeps the errors of its terms."""
    if e.shape != g.shape:
        return False
    if not is_floating(e.dtype.name):
        return not is_floating(g.dtype.name) and bool((e == g).all())
    finite = e[np.isfinite(e)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(g, e, rtol=relative, atol=relative * max(1e-2, scale), equal_nan=True))
