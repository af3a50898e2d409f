"""The ways to carry out a product, for the tuner and for what it found: torch's own, Hopper's kernels, pointer kernels.

A choice is a small table of numbers and words, so that it can be kept on disk; `steps_of` turns it into steps again, or
None where it no longer fits (a choice holds for a class of shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tilec.backends.triton.matmul.blocks import TILES, Config, choose_config
from tilec.backends.triton.matmul.dot import MatrixProduct, OperandRewrite, worthwhile
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.steps import candidates, hopper_steps
from tilec.backends.triton.matmul.library import library_steps
from tilec.backends.triton.matmul.pack import packed
from tilec.backends.triton.matmul.steps import dot_steps
from tilec.backends.triton.plan.heading import without_sizes
from tilec.backends.triton.plan.plan import Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.schedule.problem import Problem
from tilec.ir.program import kept_with, reads
from tilec.ir.types import ITEM_BYTES
from tilec.language.show import show_statement

Choice = Mapping[str, int | str]
MOST_TILES = 10  # of Hopper's candidates, the likeliest first


def statement_text(p: Problem) -> str:
    """The statement without sizes."""
    return show_statement(without_sizes(p.flat))


def shape_class(p: Problem) -> str:
    """What a choice depends on beside the text: counts (those of rows and batch up to a power of two), types, which
    axis of each tensor is contiguous and whether the others are aligned, the precision and what may serve."""
    d, s = _product(p).dot, p.space
    counts = [power_of_two(s.count(d.batch)), power_of_two(s.count(d.rows)), s.count(d.columns), s.count(d.summed)]
    layouts = []
    for name in (s.statement.output, *reads(s.statement)):
        if name in p.view.types:
            moves = "".join("1" if n == 1 else "a" if n % 16 == 0 else "x" for n in p.view.strides[name])
            layouts.append(f"{p.view.types[name].dtype}:{moves}")
    settings = f"{p.setting.precision} {'library' if p.setting.library else 'own'}"
    return f"{counts} {len(s.classes)} {' '.join(layouts)} {settings}"


def _product(p: Problem) -> MatrixProduct:
    assert p.product is not None, "the tuner is asked of products alone"
    return p.product


def product_configs(p: Problem) -> list[tuple[Choice, list[Step]]]:
    """Every way to carry out a product, the untuned one first."""
    return [(choice, steps) for choice in _choices(p) if (steps := steps_of(p, choice)) is not None]


def _choices(p: Problem) -> Iterator[Choice]:
    return (choice for way in WAYS.values() for choice in way.choices(p))


def steps_of(p: Problem, choice: Choice) -> list[Step] | None:
    """The steps that a choice stands for, None where it does not fit."""
    way = WAYS.get(str(choice.get("family")))
    return None if way is None else way.steps(p, choice)


def by_library(p: Problem) -> list[Step] | None:
    """Steps by torch's own operation, where the statement is one and a library may serve."""
    found = kept_with(p, "_by_library", _by_library)
    return None if found is None else [*found]


def _by_library(p: Problem) -> list[Step] | None:
    if p.product is None or not p.setting.library:
        return None
    return library_steps(p.defracted, p.flat, p.types, p.product)


def _along(p: Problem) -> OperandRewrite:
    """The product over operands that lie along the reduction, where that takes a copy."""
    product = _product(p)
    return packed(product) or product.as_it_is


def _hopper_choice(c: HopperConfig) -> Choice:
    boxes = " ".join(f"{v}:{n}" for v, n in c.boxes)
    rest = {f.name: int(getattr(c, f.name)) for f in fields(c) if f.name not in ("boxes", "unrolled")}
    name, count = c.unrolled or ("", 1)
    return {"family": "hopper", "boxes": boxes, **rest, "unrolled": name, "values": count}


def _hopper_config(choice: Choice) -> HopperConfig:
    pairs = (pair.split(":") for pair in str(choice["boxes"]).split())
    numbers = [f for f in fields(HopperConfig) if f.name not in ("boxes", "unrolled")]
    rest: dict[str, Any] = {f.name: type(f.default)(choice[f.name]) for f in numbers}  # type: ignore[misc]
    name = str(choice.get("unrolled", ""))
    unrolled = (name, int(choice["values"])) if name else None
    return HopperConfig(boxes=tuple((v, int(n)) for v, n in pairs), unrolled=unrolled, **rest)


def _dot_choice(c: Config) -> Choice:
    sizes = {"bm": c.bm, "bn": c.bn, "bk": c.bk}
    return {"family": "dot", **sizes, "warps": c.warps, "stages": c.stages, "parts": c.parts}


def _hopper_choices(p: Problem) -> Iterator[Choice]:
    prepared = _along(p)
    return map(_hopper_choice, candidates(prepared.product, p.setting)[:MOST_TILES])


def _of_hopper_choice(p: Problem, choice: Choice) -> list[Step] | None:
    prepared = _along(p)
    steps = hopper_steps(prepared.product, p.setting, _hopper_config(choice))
    return None if steps is None else prepared.around(steps)


def _dot_choices(p: Problem) -> Iterator[Choice]:
    product = _product(p)
    if not worthwhile(product.dot, p.space):
        return
    first = choose_config(product, p.setting.device.shared)
    for bm, bn, bk, warps, stages in TILES[ITEM_BYTES[product.dot.dtype]]:
        own = replace(first, bm=min(bm, first.bm * 2), bn=min(bn, first.bn * 2), bk=bk, warps=warps, stages=stages)
        yield _dot_choice(own)
    yield _dot_choice(first)


def _of_dot_choice(p: Problem, choice: Choice) -> list[Step] | None:
    if not worthwhile(_product(p).dot, p.space):
        return None
    names = ("bm", "bn", "bk", "warps", "stages", "parts")
    config = Config(**{n: int(choice[n]) for n in names})
    return dot_steps(_product(p), p.flat, p.setting, config=config)


@dataclass(frozen=True)
class Way:
    """`choices`: what of this way is worth measuring for a product. `steps`: those of a choice, None where it does not
    fit."""

    choices: Callable[[Problem], Iterable[Choice]]
    steps: Callable[[Problem, Choice], list[Step] | None]


# by what a choice calls its family; the first choice of all is the one that others are checked against
WAYS = {
    "library": Way(lambda p: [{"family": "library"}] if p.setting.library else [], lambda p, choice: by_library(p)),
    "hopper": Way(_hopper_choices, _of_hopper_choice),
    "dot": Way(_dot_choices, _of_dot_choice),
}
