"""Gradients against finite differences of the oracle's values, along random directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.ir.evaluate import evaluate
from tilec.ir.program import Program
from tilec.ir.verify import verify
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad

STEP = 1e-4  # of a stencil of fourth order: its error and the rounding are both below 1e-9 for values near 1


def check_gradient(
    program: Program | str,
    *inputs: np.ndarray,
    order: int = 2,
    wrt: Sequence[str] | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> Program:
    """Check the gradient by the inputs in `wrt` (default: the floating ones), and its own gradients up to `order`.

    `inputs` are as the program takes them; kinks (ties, relu at 0) must be farther than 2 * STEP away. Every gradient
    must print, and its text must parse to the same program. Returns the first-order gradient.
    """
    if isinstance(program, str):
        program = parse(program)
    arrays = [np.asarray(a, float) if np.asarray(a).dtype.kind == "f" else np.asarray(a) for a in inputs]
    names = program.input_names()
    wanted = tuple(n for n, a in zip(names, arrays, strict=True) if a.dtype.kind == "f") if wrt is None else tuple(wrt)
    gradient = grad(program, wanted)
    verify(gradient)
    text = show(gradient)
    assert parse(text) == gradient, f"the gradient does not survive its text:\n{text}"
    random = np.random.default_rng(seed)
    outputs = evaluate(program, arrays)
    cotangents = [random.normal(size=o.shape) if o.dtype.kind == "f" else np.zeros(o.shape) for o in outputs]
    results = evaluate(gradient, [*arrays, *cotangents])
    assert len(results) == len(wanted)

    def value(position: int, direction: np.ndarray, step: float) -> float:
        moved = [a + step * direction if k == position else a for k, a in enumerate(arrays)]
        return sum(float(np.sum(c * o)) for c, o in zip(cotangents, evaluate(program, moved), strict=True))

    for name, result in zip(wanted, results, strict=True):
        position = names.index(name)
        array = arrays[position]
        assert result.shape == array.shape, f"D{name} has shape {result.shape}, {name} has {array.shape}:\n{text}"
        direction = random.normal(size=array.shape)
        near = value(position, direction, STEP) - value(position, direction, -STEP)
        far = value(position, direction, 2 * STEP) - value(position, direction, -2 * STEP)
        expected = (8 * near - far) / (12 * STEP)
        got = float(np.sum(result * direction))
        assert abs(got - expected) <= tolerance * max(1.0, abs(expected)), (
            f"by {name}: {got}, finite differences give {expected}\n{show(program)}{text}"
        )
    if order > 1:
        again = (*wanted, *gradient.input_names()[len(names) :])
        check_gradient(gradient, *arrays, *cotangents, order=order - 1, wrt=again, tolerance=tolerance, seed=seed + 1)
    return gradient
