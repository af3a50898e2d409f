"""A plan made with open sizes is, at other sizes, the plan that is made for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from support.shapes import PROGRAMS

import tilec
from tilec import knobs
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.plan.plan import Launch, Plan, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime import open_plans
from tilec.ir.at_sizes import Template
from tilec.ir.shape_class import Recorder
from tilec.ir.symbolic import Pinned
from tilec.ir.types import TensorType
from tilec.pipeline import lower

OPEN = 200  # the sizes that plans are made for
FIXED = {"reshape", "flattened"}  # quotients ask for these sizes
IN_TEXT = {"roll"}  # kernels hold a size in an index
AS_VALUES = {
    "triangle",
    "mean",
    "groups",
    "argmax",
    "random",
    "indices",
}  # sizes are parameters where they are open, else text


def types_of(name: str, sizes: dict[str, int]) -> dict[str, TensorType]:
    source, shapes = PROGRAMS[name]
    names = tilec.compile(source).inputs
    dims = [tuple(int(d) if d.isdigit() else sizes[d] for d in shape.split()) for shape in shapes]
    return {n: TensorType(s, "float32") for n, s in zip(names, dims, strict=True)}


def fresh(name: str, sizes: dict[str, int]) -> Plan:
    lowering = lower(tilec.compile(PROGRAMS[name][0]).program, types_of(name, sizes), {})
    return TritonBackend("sm_90").build(lowering).plan


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(8)
def test_open_plans_are_the_plans_of_their_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.VERIFY.name, "1")
    served = []

    def counting(x: object, names: tuple[str, ...]) -> Callable:
        filled = Template(x, names)
        if not isinstance(x, Plan):
            return filled
        return lambda sizes: served.append(sizes) or filled(sizes)

    monkeypatch.setattr(open_plans, "Template", counting)
    recorder, random = Recorder(), Random(name)
    letters = [letter for letter in "nm" if letter in "".join(PROGRAMS[name][1])]
    values = dict(zip("nm", (OPEN, OPEN + 60), strict=True))
    sizes = {letter: recorder.symbol(f"size_{letter}", values[letter]) for letter in letters}
    try:
        lowering = lower(tilec.compile(PROGRAMS[name][0]).program, types_of(name, {**sizes, "p": 4}), {})
        program = TritonBackend("sm_90").build(replace(lowering, recorder=recorder))
    except Pinned:
        assert name in FIXED | IN_TEXT, "these sizes can be left open"
        return
    for step in range(6):
        numbers = {letter: random.choice((random.randint(8, 40), 16 * random.randint(2, 40))) for letter in letters}
        if step < 2:
            numbers = {letter: values[letter] + 16 * step for letter in letters}
        types = types_of(name, {**numbers, "p": 4})
        given = {f"size_{letter}": n for letter, n in numbers.items()}
        made = program.at(given)._make_plan([contiguous(t.shape) for t in types.values()], Setting(), None)
        wanted = fresh(name, {**numbers, "p": 4})
        if name in AS_VALUES:
            assert without_values(made) == without_values(wanted)
        else:
            assert made == wanted
    assert served, "where it was made, it serves"


def without_values(plan: Plan) -> list[object]:
    """The steps without texts of kernels, and without the numbers that values are computed with."""

    def plain(step: object) -> object:
        if not isinstance(step, Launch):
            return step
        given = [(n, v) for n, v in step.arguments if not n.startswith("number")]
        return step.kernel, step.grid, given, step.constants, step.warps, step.stages

    return [plain(step) for step in plan.steps]


def test_kernels_of_chains_are_one_text_for_all_lengths() -> None:
    texts = [[launch.text for launch in fresh("attention", {"n": n, "m": n, "p": 16}).launches()] for n in (1000, 1040)]
    assert texts[0] == texts[1]


def test_tiles_that_cannot_be_are_compared_with_no_others() -> None:
    text = "O[n, y, x, o : N, H/16, W/16, 64] = +(I[n, 16*y + j, 16*x + i, c] * K[o, j, i, c])"
    program = tilec.compile(f"function (I[N, H, W, 3], K[64, 16, 16, 3]) -> (O) {{ {text}; }}").program
    recorder = Recorder()
    height, width = recorder.symbol("size0", 160), recorder.symbol("size1", 272)
    types = {
        "I": TensorType((32, height, width, 3), "bfloat16"),
        "K": TensorType((64, 16, 16, 3), "bfloat16"),
    }
    lowering = replace(lower(program, types, {}), recorder=recorder)
    TritonBackend("sm_90").build(lowering)
    assert 50 < len(recorder.guards) < 1000, "of 1,000 ways of tiling, one question each at most"
