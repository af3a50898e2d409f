"""One function called at many sizes gives, bit for bit, what a fresh compilation for each of them gives."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from support.programs import PHASES, Case, Options, programs
from support.scale import scaled
from support.shapes import PROGRAMS, check_at, drawn

import tilec
from tilec import knobs
from tilec.ir import shape_class

pytestmark = pytest.mark.filterwarnings("ignore::tilec.TileWarning")
served: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def small_sizes_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_class, "SMALLEST_OPEN", 2)
    monkeypatch.setenv(knobs.VERIFY.name, "1")  # what fails with open sizes is raised
    monkeypatch.setenv(knobs.BLOCK.name, "64")  # thresholds that small sizes cross
    find, make = shape_class.ShapeClass.find, shape_class.ShapeClass.make

    def counting_find(self, sizes):
        found = find(self, sizes)
        served["found"] += found is not None
        return found

    def counting_make(self, sizes, how):
        made = make(self, sizes, how)
        served["made" if made is not None else "fixed"] += 1
        return made

    monkeypatch.setattr(shape_class.ShapeClass, "find", counting_find)
    monkeypatch.setattr(shape_class.ShapeClass, "make", counting_make)
    served.clear()


def resized(case: Case, sizes: dict[str, int]) -> list[torch.Tensor]:
    """The case's inputs with dimensions of these names as long as that."""
    made = []
    for name, array in case.inputs.items():
        dims = re.search(rf"\b{name}\[([^\]]*)\]", case.source.split("->")[0])
        names = [d.strip() for d in dims.group(1).split(",") if d.strip()] if dims else []
        shape = [sizes.get(names[k], n) if k < len(names) else n for k, n in enumerate(np.shape(array))]
        flat = np.resize(np.asarray(array).reshape(-1), int(np.prod(shape))) if np.size(array) else np.zeros(shape)
        made.append(torch.from_numpy(np.ascontiguousarray(flat.astype(np.asarray(array).dtype).reshape(shape))))
    return made


def test_random_programs_at_many_sizes() -> None:
    @settings(max_examples=scaled(36), phases=PHASES)
    @given(programs(Options(statements=4)))
    def agree(case: Case) -> None:
        names = sorted(set(re.findall(r"\bN\d+\b", case.source.split("->")[0])))
        assume(names)
        random = Random(case.source)
        f = tilec.compile(case.source)
        smooth = random.random() < 0.4
        for step in range(10):
            sizes = {n: random.choice((2, 3, 4, 5, 6, 7, 9, 12, 16, 0, 1)) for n in names}
            if random.random() < 0.4:
                sizes = dict.fromkeys(names, random.randint(2, 20))
            check_at(case.source, f, resized(case, sizes), step if smooth else None)

    agree()
    assert served["found"] > 6 and served["made"] > 6, served


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("block", ["64", pytest.param(str(knobs.BLOCK.default), marks=pytest.mark.slow)])
@pytest.mark.one_in(8)
def test_programs_at_many_sizes(name: str, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.BLOCK.name, block)
    source, _ = PROGRAMS[name]
    f, random, sizes = tilec.compile(source), Random(name), {"p": 4}
    for step in range(scaled(6)):
        generator = torch.Generator().manual_seed(step)
        made = drawn(name, random, sizes, step)
        check_at(source, f, [torch.randn(s, generator=generator) for s in made], step if step > 1 else None)
