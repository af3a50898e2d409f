"""The ways to carry out a product, for the tuner and for what it found: torch's own, Hopper's kernels, pointer kernels.

A choice is a small table of numbers and words, so that it can be kept on disk; `steps_of` turns it into steps again, or
None where it no longer fits (a choice holds for a class of shapes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.blocks import TILES, Config, choose_config
from tilec.backends.triton.matmul.dot import Dot, OperandRewrite, worthwhile
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.steps import candidates, hopper_steps
from tilec.backends.triton.matmul.kernel import dot_steps
from tilec.backends.triton.matmul.library import library_steps
from tilec.backends.triton.matmul.pack import packed
from tilec.backends.triton.plan.heading import without_sizes
from tilec.backends.triton.plan.plan import Setting, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.ir.program import Statement, reads
from tilec.ir.types import ITEM_BYTES, TensorType
from tilec.language.show import show_statement

Choice = Mapping[str, int | str]
MOST_TILES = 10  # of Hopper's candidates, the likeliest first


@dataclass(frozen=True)
class MatmulProblem:
    """A product to carry out, in the statement's two forms and in the planner's."""

    defracted: Statement
    flat: Statement
    types: Mapping[str, TensorType]
    dot: Dot
    space: Space
    view: StridedView
    int64_index: bool
    setting: Setting

    @property
    def text(self) -> str:
        """The statement without sizes."""
        return show_statement(without_sizes(self.flat))

    @property
    def shape_class(self) -> str:
        """What a choice depends on beside the text: counts (those of rows and batch up to a power of two), types, which
        axis of each tensor is contiguous and whether the others are aligned, the precision and what may serve."""
        d, s = self.dot, self.space
        counts = [power_of_two(s.count(d.batch)), power_of_two(s.count(d.rows)), s.count(d.columns), s.count(d.summed)]
        layouts = []
        for name in (s.statement.output, *reads(s.statement)):
            if name in self.view.types:
                moves = "".join("1" if n == 1 else "a" if n % 16 == 0 else "x" for n in self.view.strides[name])
                layouts.append(f"{self.view.types[name].dtype}:{moves}")
        settings = f"{self.setting.precision} {'library' if self.setting.library else 'own'}"
        return f"{counts} {len(s.classes)} {' '.join(layouts)} {settings}"


def product_configs(task: MatmulProblem) -> list[tuple[Choice, list[Step]]]:
    """Every way, the untuned one first."""
    found = []
    for choice in _choices(task):
        steps = steps_of(task, choice)
        if steps is not None:
            found.append((choice, steps))
    return found


def _choices(task: MatmulProblem) -> Iterator[Choice]:
    yield from [{"family": "library"}] if task.setting.library else []
    prepared = _along(task)
    for tiles in candidates(prepared.product, prepared.space, prepared.view, task.setting)[:MOST_TILES]:
        yield _hopper_choice(tiles)
    if worthwhile(task.dot, task.space):
        first = choose_config(task.dot, task.space, task.setting.device.shared)
        for bm, bn, bk, warps, stages in TILES[ITEM_BYTES[task.dot.dtype]]:
            own = replace(first, bm=min(bm, first.bm * 2), bn=min(bn, first.bn * 2), bk=bk, warps=warps, stages=stages)
            yield _dot_choice(own)
        yield _dot_choice(first)


def steps_of(task: MatmulProblem, choice: Choice) -> list[Step] | None:
    """The steps that a choice stands for, None where it does not fit."""
    match choice.get("family"):
        case "library" if task.setting.library:
            return library_steps(
                task.defracted, task.flat, task.types, task.dot, task.space, task.view, task.int64_index
            )
        case "hopper":
            prepared = _along(task)
            tiles = _hopper_config(choice)
            steps = hopper_steps(prepared.product, prepared.space, prepared.view, task.setting, tiles)
            return None if steps is None else [*prepared.before, *steps, *prepared.after]
        case "dot" if worthwhile(task.dot, task.space):
            names = ("bm", "bn", "bk", "warps", "stages", "parts")
            config = Config(**{n: int(choice[n]) for n in names})
            return dot_steps(task.dot, task.space, task.view, task.flat, task.int64_index, task.setting, config=config)
    return None


def _along(task: MatmulProblem) -> OperandRewrite:
    """The product over operands that lie along the reduction, where that takes a copy."""
    copied = packed(task.dot, task.space, task.view, task.int64_index)
    return copied or OperandRewrite(task.view, task.space, dot=task.dot)


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
