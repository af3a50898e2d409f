"""Mutated texts, compiled, called and differentiated: each ends in values or in a TileError, and soon."""

from __future__ import annotations

import contextlib
import random
import signal
import warnings
from collections.abc import Iterator

import pytest
import torch
from support.scale import scaled
from support.texts import SOURCES, mutated

import tilec
from tilec.errors import InternalMistake, TileError

SECONDS = 60  # for one text, on a machine that is busy with others; the slowest takes about one


def argument(r: random.Random, name: str, shapes: dict[str, tuple[int, ...] | int]) -> torch.Tensor | int:
    """What the source takes under that name; for a name that a mutation made, one of the others."""
    shape = shapes.get(name)
    if shape is None:
        shape = r.choice([*shapes.values(), 2, ()])
    if isinstance(shape, int):
        return shape
    shape = tuple(r.choice((0, 1)) if r.random() < 0.03 else n for n in shape)
    g = torch.Generator().manual_seed(5)
    if name == "Ix" or r.random() < 0.05:
        return torch.randint(0, 3, shape, generator=g)
    return torch.randn(shape, generator=g).to(
        r.choice((*[torch.float32] * 6, torch.float64, torch.float16, torch.bool))
    )


def run(text: str, r: random.Random, shapes: dict[str, tuple[int, ...] | int]) -> bool:
    """Whether the text has a value; raises whatever is no TileError, and InternalMistake."""
    try:
        f = tilec.compile(text)
        inputs = [argument(r, name, shapes) for name in f.inputs]
        results = f(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        f.grad()(*inputs, *[torch.ones_like(o) for o in results])
    except InternalMistake:
        raise
    except TileError:
        return False
    return True


@contextlib.contextmanager
def soon(text: str) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"still running after {SECONDS} s: {text!r}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(seeds: range) -> None:
    values, wrong = 0, []
    for seed in seeds:
        r = random.Random(seed)
        source, shapes = r.choice(SOURCES)
        text = mutated(r, source)
        with soon(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                values += run(text, r, shapes)
            except Exception as error:  # anything else than a TileError is what is looked for
                wrong.append(f"seed {seed}: {type(error).__name__}: {error}\n  {text!r}")
    assert not wrong, f"{len(wrong)} of {len(seeds)}:\n" + "\n".join(wrong[:20])
    assert len(seeds) / 10 < values < len(seeds), "mutations are to leave some texts right, and some not"


def test_sources_themselves_have_values() -> None:
    for source, shapes in SOURCES:
        assert run(source, random.Random(0), shapes), source


@pytest.mark.parametrize("part", range(2))
def test_mutated_texts(part: int) -> None:
    check(range(part * scaled(100), (part + 1) * scaled(100)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_mutated_texts_further(part: int) -> None:
    check(range(100_000 + part * 500, 100_000 + (part + 1) * 500))
