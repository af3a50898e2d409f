"""Random programs over a batch: one answer at every stage and on the backend, which is that of a loop."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences
from support.stages import check, same

from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.transforms.batching.vmap import vmap
from tilec.transforms.bind.bind import size_inputs

SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))

FAMILIES = {
    "mixed": (programs(Options()), 60),
    "structural": (programs(Options(kinds=("structural", "elementwise"), statements=3)), 60),
    "special": (programs(Options(special=True, statements=3)), 30),
}


def batch_of(array, size, random):
    """The array and others with its elements in another order."""
    others = [random.permutation(array.reshape(-1)).reshape(array.shape) for _ in range(size)]
    return np.stack([array, *others][:size]) if size else np.zeros((0, *array.shape), array.dtype)


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
        loop = [
            evaluate(program, [a[k] if b else a for a, b in zip(batches, batched, strict=True)]) for k in range(size)
        ]
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
        for e, g in zip([r[k] for r in loop], np.moveaxis(result, place, 0), strict=True):
            assert same(e, g, 1e-9), f"{program.outputs[k]}\n{e}\n{g}"
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_a_loop(family):
    drawn, count = FAMILIES[family]
    compared = []

    @settings(max_examples=count * SCALE, phases=PHASES)
    @given(drawn)
    def agree(case: Case):
        random = np.random.default_rng(len(compared))
        size = (2, 1, 3, 0)[len(compared) % 4]
        compared.append(check_batch(parse(case.source), list(case.inputs.values()), random, size))

    agree()
    assert sum(compared) >= count // 3, "hardly any program has an input to batch"


def test_a_batch_of_recurrences_is_a_loop():
    compared = []

    @settings(max_examples=25 * SCALE, phases=PHASES)
    @given(recurrences())
    def agree(case):
        source, arrays = case
        compared.append(check_batch(parse(source), arrays, np.random.default_rng(len(compared))))

    agree()
    assert sum(compared) >= 8, "hardly any recurrence has an input to batch"
