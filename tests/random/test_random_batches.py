"""Random programs over a batch: one answer at every stage and on the backend, which is that of a loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from support.derivatives import check_tangents
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences
from support.scale import scaled
from support.stages import check, gradient, same

from tilec.ir.evaluate import evaluate
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.batching.vmap import vmap
from tilec.transforms.bind.bind import size_inputs

FAMILIES = {
    "mixed": (programs(Options()), 28),
    "structural": (programs(Options(kinds=("structural", "elementwise"), statements=3)), 28),
    "special": (programs(Options(special=True, statements=3)), 14),
}


def batch_of(array, size, random):
    """The array and others with its elements in another order."""
    others = [random.permutation(array.reshape(-1)).reshape(array.shape) for _ in range(size)]
    return np.stack([array, *others][:size]) if size else np.zeros((0, *array.shape), array.dtype)


def element(batches, batched, k):
    return [a[k] if b else a for a, b in zip(batches, batched, strict=True)]


def check_batch(program, arrays, random, size=2):
    """Compare a batch with a loop over it, with the batch's dimension anywhere in a few of the inputs."""
    names = program.input_names()
    fixed = size_inputs(program)
    batched = [name not in fixed and random.random() < 0.7 for name in names]
    if not any(batched):
        return False
    axes = [int(random.integers(0, a.ndim + 1)) if b else None for a, b in zip(arrays, batched, strict=True)]
    batches = [batch_of(a, size, random) if b else a for a, b in zip(arrays, batched, strict=True)]
    try:
        loop = [evaluate(program, element(batches, batched, k)) for k in range(size)]
        shapes = evaluate(program, arrays)
    except Exception:
        return False  # refused for its sizes or writers: the other tests look at those
    places = [int(random.integers(0, r.ndim + 1)) for r in shapes]
    ranks = {name: a.ndim for name, a in zip(names, arrays, strict=True)}
    whole = vmap(program, axes, places, ranks=ranks)
    moved = [np.moveaxis(a, 0, axis) if axis is not None else a for a, axis in zip(batches, axes, strict=True)]
    got = check(whole, moved)
    assert got is not None
    for k, (result, place) in enumerate(zip(got, places, strict=True)):
        assert {r[k].dtype for r in loop} <= {result.dtype}, f"{program.outputs[k]}: {result.dtype}\n{show(whole)}"
        for e, g in zip([r[k] for r in loop], np.moveaxis(result, place, 0), strict=True):
            assert same(e, g, 1e-9), f"{program.outputs[k]}\n{e}\n{g}\n{show(program)}{show(whole)}"
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_a_loop(family):
    drawn, count = FAMILIES[family]
    compared = []

    @settings(max_examples=scaled(count), phases=PHASES)
    @given(drawn)
    def agree(case: Case):
        random = np.random.default_rng(len(compared))
        size = (2, 1, 3, 0)[len(compared) % 4]
        compared.append(check_batch(parse(case.source), list(case.inputs.values()), random, size))

    agree()
    assert sum(compared) >= scaled(count) // 3, "hardly any program has an input to batch"


def test_a_batch_of_recurrences_is_a_loop():
    compared = []

    @settings(max_examples=scaled(16), phases=PHASES)
    @given(recurrences())
    def agree(case):
        source, arrays = case
        compared.append(check_batch(parse(source), arrays, np.random.default_rng(len(compared))))

    agree()
    assert sum(compared) >= 5, "hardly any recurrence has an input to batch"


def test_a_batch_of_gradients_is_a_loop():
    compared = []

    @settings(max_examples=scaled(20), phases=PHASES)
    @given(programs(Options(statements=2)))
    def agree(case: Case):
        random = np.random.default_rng(len(compared))
        program, arrays = parse(case.source), list(case.inputs.values())
        first = gradient(program, arrays)
        if first is not None:
            cotangents = [random.integers(-2, 3, r.shape).astype(float) for r in answers(program, arrays)]
            compared.append(len(cotangents) > 0 and check_batch(first, arrays + cotangents, random))

    agree()
    assert sum(compared) >= 5, "hardly any gradient has an input to batch"


def answers(program, arrays):
    try:
        return evaluate(program, arrays)
    except Exception:
        return []


def test_gradients_of_a_batch_are_a_loop():
    """By what is batched they are each element's, by what is shared their sum."""
    compared = []

    @settings(max_examples=scaled(20), phases=PHASES)
    @given(programs(Options(statements=2)))
    def agree(case: Case):
        random = np.random.default_rng(len(compared))
        program, arrays = parse(case.source), list(case.inputs.values())
        names = [n for n, a in zip(program.input_names(), arrays, strict=True) if a.dtype.kind == "f"]
        fixed = size_inputs(program)
        batched = [n not in fixed and random.random() < 0.6 for n in program.input_names()]
        results = answers(program, arrays)
        if not names or not results or not any(batched):
            return
        batches = [batch_of(a, 2, random) if b else a for a, b in zip(arrays, batched, strict=True)]
        ranks = {n: a.ndim for n, a in zip(program.input_names(), arrays, strict=True)}
        axes = [0 if b else None for b in batched]
        whole = grad(vmap(program, axes, [0] * len(results), ranks=ranks), names)
        cotangents = [random.integers(-2, 3, (2, *r.shape)).astype(float) for r in results]
        got = check(whole, [*batches, *cotangents])
        single = grad(program, names)
        each = [
            evaluate(
                single,
                [*(a[k] if b else a for a, b in zip(batches, batched, strict=True)), *[c[k] for c in cotangents]],
            )
            for k in range(2)
        ]
        for k, name in enumerate(names):
            parts = np.stack([e[k] for e in each])
            expected = parts if batched[program.input_names().index(name)] else parts.sum(0)
            assert same(expected, got[k], 1e-9), f"{name}\n{expected}\n{got[k]}"
        compared.append(True)

    agree()
    assert sum(compared) >= 5, "hardly any program has an input to batch"


def test_tangents_of_a_batch():
    compared = []

    @settings(max_examples=scaled(14), phases=PHASES)
    @given(programs(Options(statements=2)))
    def agree(case: Case):
        random = np.random.default_rng(len(compared))
        program, arrays = parse(case.source), list(case.inputs.values())
        results, fixed = answers(program, arrays), size_inputs(program)
        axes = [None if n in fixed or random.random() < 0.4 else 0 for n in program.input_names()]
        if not results or set(axes) == {None}:
            return
        batches = [a if x is None else batch_of(a, 2, random) for a, x in zip(arrays, axes, strict=True)]
        ranks = {n: a.ndim for n, a in zip(program.input_names(), arrays, strict=True)}
        compared.extend(check_tangents(vmap(program, axes, [0] * len(results), ranks=ranks), batches))

    agree()
    assert sum(compared) >= 2, "hardly any program has a derivative to compare"
