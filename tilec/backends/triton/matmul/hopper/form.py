"""Products of two tensors, summed: what the Hopper kernels are generated from, in the kernels' own names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilec.ir.index import Affine
from tilec.ir.rational import as_int
from tilec.lattice.sets import interval_of

Same = tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class HopperOperand:
    """A tensor and, for each of its axes, an integral affine form over a HopperDot's variables and residues. `shape`,
    `strides`: of the axes where they are not the tensor's own, some of which are one."""

    tensor: str
    index: tuple[Affine, ...]
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Digit:
    """A variable of the output's index that is a digit of one of rows or columns: `of // divisor % size`."""

    name: str
    of: str
    divisor: int
    size: int


@dataclass(frozen=True)
class HopperDot:
    """Out[index] = sum over the summed variables of left * right * scale, for every residue class.

    The left operand holds the rows, the right one the columns. `classes` assigns the residues, once a class ({} alone
    where there are none);
    `low` and `extent` give, for each class, the exact range of every variable over the class's valid points (of rows
    and columns: over the elements of the output). `same`: a variable of rows or columns and a summed one, each with a
    divisor; where the quotients differ an operand is zero, and the point is no part of the sum. `digits`: of rows and
    columns that an operand walks as one and the output does not, the least first; its index holds these.
    """

    output: str
    index: tuple[Affine, ...]
    left: HopperOperand
    right: HopperOperand
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    classes: tuple[Mapping[str, int], ...]
    low: tuple[Mapping[str, int], ...]
    extent: tuple[Mapping[str, int], ...]
    scale: float = 1.0
    same: Same | None = None
    digits: tuple[Digit, ...] = ()

    def owner(self, variable: str) -> str:
        """The variable of rows or columns that one of the output's index is, or is a digit of."""
        return next((d.of for d in self.digits if d.name == variable), variable)

    @cached_property
    def normalised(self) -> HopperProblem | None:
        """The product in the kernels' names."""
        return normalise(self)

    def turned(self) -> HopperDot:
        """The same with the operands exchanged."""
        return replace(self, left=self.right, right=self.left, rows=self.columns, columns=self.rows)


@dataclass(frozen=True)
class HopperConfig:
    """Choices that change speed, not meaning.

    `boxes` is a tile's extent in each variable, a power of two, 1 where a variable is not named; `warps` multiply a
    tile;
    `stages` counts buffers; `split` shares the sum among programs; `group` rows of tiles are walked column by column.
    With `consumers` 1 or 2, copies have a warp of their own and programs stay for many tiles; two consumers take turns.
    `mapped` stores the elements of residue classes through tensor maps too, one a class, which the host has to make.
    `merged`: rows and columns are variables that the operands walk as one. `tf32` allows float32 operands to be
    multiplied as tf32. `unrolled`: a column variable, and how many boxes of it side by side a program computes, in sums
    of their own, from one copy of the rows.
    """

    boxes: tuple[tuple[str, int], ...]
    warps: int = 8
    stages: int = 4
    split: int = 1
    group: int = 8
    consumers: int = 0
    mapped: bool = False
    tf32: bool = False
    merged: bool = False
    unrolled: tuple[str, int] | None = None


@dataclass(frozen=True)
class Variable:
    """A variable under its name in the kernel. It counts from 0 to `size` - 1; in a class where a summed one varies,
    its first value is `<name>_low`
    and its size `<name>_n`, both from the table of classes; elsewhere its first value is already part of the forms."""

    name: str
    source: str
    size: int
    varies: bool


@dataclass(frozen=True)
class HopperProblem:
    """A HopperDot in the kernel's names: b0.. batch, r0.. rows, c0.. columns, s0.. summed, z0.. residues.

    `table` gives, for each class, the values of residues and of the summed variables' `_low` and `_n` that vary;
    `ranges` the first and last value of everything
    a form may hold, None where a class sums over nothing; `views` what operands were found to be for boxes.
    """

    batch: tuple[Variable, ...]
    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    summed: tuple[Variable, ...]
    out: tuple[Affine, ...]
    left: tuple[Affine, ...]
    right: tuple[Affine, ...]
    table: tuple[Mapping[str, int], ...]
    ranges: tuple[Mapping[str, tuple[int, int]] | None, ...]
    digits: tuple[Digit, ...] = ()
    views: dict[tuple, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return self.batch + self.rows + self.columns + self.summed

    def digits_of(self, name: str) -> tuple[Digit, ...]:
        return tuple(d for d in self.digits if d.of == name)

    def named(self, source: str) -> str:
        """The kernel's name of a variable of the product."""
        return next(v.name for v in self.variables if v.source == source)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return {v.name: v.size for v in self.variables}

    def summing(self) -> Iterator[Mapping[str, tuple[int, int]]]:
        """The ranges of the classes that sum over something."""
        return (r for r in self.ranges if r is not None)


def form_bounds(form: Affine, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Least and greatest value of a form over a box."""
    low, high = interval_of(form, lambda v: ranges[v.name])
    return as_int(low), as_int(high)


def coefficients(form: Affine) -> list[tuple[str, int]]:
    return [(name, int(form.coefficient(name))) for name in form.variables()]


def normalise(dot: HopperDot) -> HopperProblem | None:
    """The HopperDot in the kernel's names; None where a range of rows or columns varies in its first value, or a batch
    variable varies at all."""
    groups: dict[str, list[Variable]] = {"b": [], "r": [], "c": [], "s": []}
    renamed: dict[str, Affine] = {}
    live = [k for k in range(len(dot.classes)) if all(dot.extent[k][v] > 0 for v in dot.batch + dot.rows + dot.columns)]
    if not live:
        return None
    table: list[dict[str, int]] = [{} for _ in live]
    ranges: list[dict[str, tuple[int, int]]] = [{} for _ in live]
    for number, source in enumerate(dot.classes[0]):
        if len(live) == 1:
            renamed[source] = Affine() + dot.classes[live[0]][source]
            continue
        renamed[source] = Affine.variable(f"z{number}")
        for k, row, span in zip(live, table, ranges, strict=True):
            row[f"z{number}"] = dot.classes[k][source]
            span[f"z{number}"] = (row[f"z{number}"],) * 2
    for role, sources in (("b", dot.batch), ("r", dot.rows), ("c", dot.columns), ("s", dot.summed)):
        for number, source in enumerate(sources):
            name = f"{role}{number}"
            lows = [dot.low[k][source] for k in live]
            extents = [max(dot.extent[k][source], 0) for k in live]
            varies = len({*zip(lows, extents, strict=True)}) > 1
            if varies and (role == "b" or (role != "s" and len({*lows}) > 1)):
                return None
            groups[role].append(Variable(name, source, max(extents), varies))
            lifted = varies and role == "s"
            renamed[source] = Affine.variable(name) + (Affine.variable(f"{name}_low") if lifted else lows[0])
            for row, span, low, extent in zip(table, ranges, lows, extents, strict=True):
                span[name] = (0, extent - 1)
                if lifted:
                    row |= {f"{name}_low": low, f"{name}_n": extent}
                    span[f"{name}_low"] = (low, low)
    digits = tuple(_renamed_digits(dot, {v.source: v.name for group in groups.values() for v in group}))
    renamed |= {d.name: Affine.variable(own.name) for d, own in zip(dot.digits, digits, strict=True)}
    for span in ranges:
        span |= {d.name: (0, d.size - 1) for d in digits}
    empty = [any(span[v.name][1] < 0 for v in groups["s"]) for span in ranges]
    out, left, right = (
        tuple(f.substitute(renamed) for f in forms) for forms in (dot.index, dot.left.index, dot.right.index)
    )
    batch, rows, columns, summed = (tuple(groups[role]) for role in "brcs")
    kept = tuple(None if e else span for e, span in zip(empty, ranges, strict=True))
    return HopperProblem(batch, rows, columns, summed, out, left, right, tuple(table), kept, digits)


def _renamed_digits(dot: HopperDot, names: Mapping[str, str]) -> Iterator[Digit]:
    """The digits in the kernel's names: c0_d0, the least of column c0, and so on."""
    for d in dot.digits:
        place = [x for x in dot.digits if x.of == d.of].index(d)
        yield replace(d, name=f"{names[d.of]}_d{place}", of=names[d.of])
