"""Sums of products as the passes hand them to a backend: matmul, convolutions, their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilec.backends.triton.matmul.hopper.form import HopperDot, HopperOperand
from tilec.backends.triton.matmul.hopper.views import TensorView
from tilec.ir.index import Affine


@dataclass(frozen=True)
class Case:
    """A HopperDot and its tensors; `kind` and `sizes` say what it computes."""

    dot: HopperDot
    shapes: dict[str, tuple[int, ...]]
    strides: dict[str, tuple[int, ...]]

    def tensors(self, dtype: str) -> dict[str, TensorView]:
        """All of one type."""
        return {name: TensorView(name, shape, self.strides[name], dtype) for name, shape in self.shapes.items()}


def form(constant: int = 0, **coefficients: int) -> Affine:
    return Affine.combine({name: c for name, c in coefficients.items() if c}, constant)


def contiguous(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides of a tensor whose axes lie in memory in `order`, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


def one_class(dot: dict, extent: dict[str, int], low: dict[str, int] | None = None) -> HopperDot:
    return HopperDot(**dot, classes=({},), low=({v: (low or {}).get(v, 0) for v in extent},), extent=(extent,))


def matmul(
    m: int, n: int, k: int, batch: int = 0, left: str = "mk", right: str = "kn", out: str = "mn", scale: float = 1.0
) -> Case:
    """C[m, n] = A[m, k] * B[k, n], each stored as its letters say."""
    sizes = {"m": m, "n": n, "k": k} | ({"b": batch} if batch else {})
    left, right, out = ("b" * bool(batch) + letters for letters in (left, right, out))
    return einsum(left, right, out, sizes, scale)


def einsum(left: str, right: str, out: str, sizes: dict[str, int], scale: float = 1.0) -> Case:
    """A product of A and B into C, each stored as its letters say."""

    def index(letters: str) -> tuple[Affine, ...]:
        return tuple(form(**{x: 1}) for x in letters)

    roles = {
        "batch": tuple(x for x in out if x in left and x in right),
        "rows": tuple(x for x in out if x not in right),
        "columns": tuple(x for x in out if x not in left),
        "summed": tuple(x for x in left if x not in out),
    }
    operands = {"left": HopperOperand("A", index(left)), "right": HopperOperand("B", index(right))}
    dot = one_class(dict(output="C", index=index(out), **operands, **roles, scale=scale), sizes)
    shapes = {t: tuple(sizes[x] for x in letters) for t, letters in (("A", left), ("B", right), ("C", out))}
    return Case(dot, shapes, {t: contiguous(shape) for t, shape in shapes.items()})


@dataclass(frozen=True)
class Convolution:
    """A convolution of [n, *space, ci] with a kernel stored [*window, ci, co] ("hwio") or [co, *window, ci]
    ("ohwi")."""

    n: int
    space: tuple[int, ...]
    ci: int
    co: int
    window: tuple[int, ...]
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    kernel: str = "hwio"

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(
            (s + 2 * self.pad - self.dilation * (w - 1) - 1) // self.stride + 1
            for s, w in zip(self.space, self.window, strict=True)
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        k = (*self.window, self.ci, self.co) if self.kernel == "hwio" else (self.co, *self.window, self.ci)
        return {"I": (self.n, *self.space, self.ci), "O": (self.n, *self.outer, self.co), "K": k}

    def weights(self, places: Sequence[Affine]) -> HopperOperand:
        inner, outer = form(i=1), form(o=1)
        return HopperOperand("K", (*places, inner, outer) if self.kernel == "hwio" else (outer, *places, inner))

    def case(self, dot: HopperDot) -> Case:
        return Case(dot, self.shapes, {t: contiguous(s) for t, s in self.shapes.items()})

    @property
    def source(self) -> HopperOperand:
        """The input at the places that the windows cover."""
        steps = ({f"y{a}": self.stride, f"j{a}": self.dilation} for a in range(len(self.space)))
        return HopperOperand("I", (form(n=1), *(form(-self.pad, **s) for s in steps), form(i=1)))

    @property
    def windows(self) -> tuple[str, ...]:
        return tuple(f"j{a}" for a in range(len(self.space)))

    @property
    def places(self) -> tuple[str, ...]:
        return ("n", *(f"y{a}" for a in range(len(self.space))))

    @property
    def extent(self) -> dict[str, int]:
        sizes = (self.n, *self.outer, *self.window, self.ci, self.co)
        return dict(zip((*self.places, *self.windows, "i", "o"), sizes, strict=True))

    @property
    def result(self) -> tuple[Affine, ...]:
        return tuple(form(**{v: 1}) for v in (*self.places, "o"))

    def forward(self) -> Case:
        dot = dict(
            output="O",
            index=self.result,
            left=self.source,
            right=self.weights([form(**{j: 1}) for j in self.windows]),
            batch=(),
            rows=self.places,
            columns=("o",),
            summed=("i", *self.windows),
        )
        return self.case(one_class(dot, self.extent))

    def kernel_gradient(self) -> Case:
        dot = dict(
            output="K",
            index=self.weights([form(**{j: 1}) for j in self.windows]).index,
            left=self.source,
            right=HopperOperand("O", self.result),
            batch=(),
            rows=(*self.windows, "i"),
            columns=("o",),
            summed=self.places,
        )
        return self.case(one_class(dot, self.extent))

    def input_gradient(self) -> Case:
        """By residue classes of the input's places modulo the stride s: place = z + s*q, window = w(z) + s/g*t with
        g = gcd(s, dilation)."""
        s, e, p = self.stride, self.dilation, self.pad
        g = math.gcd(s, e)
        step = s // g
        d = range(len(self.space))
        classes, lows, extents = [], [], []
        for residues in product(range(s), repeat=len(self.space)):
            z, low, extent = {}, {"n": 0, "i": 0, "o": 0}, {"n": self.n, "i": self.ci, "o": self.co}
            for a, r in enumerate(residues):
                z[f"z{a}"] = r
                low[f"q{a}"], extent[f"q{a}"] = 0, len(range(r, self.space[a], s))
                # r + p - e*j is a multiple of s for j = first + step*t
                fitting = [j for j in range(step) if (r + p - e * j) % s == 0]
                z[f"w{a}"] = fitting[0] if fitting else 0
                z[f"m{a}"] = (r + p - e * z[f"w{a}"]) // s
                taps = range(z[f"w{a}"], self.window[a], step) if fitting else ()
                low[f"t{a}"], extent[f"t{a}"] = 0, len(taps)
            classes.append(z)
            lows.append(low)
            extents.append(extent)
        if s == 1:
            classes, lows, extents = classes[:1], lows[:1], extents[:1]
        given = HopperOperand(
            "O", (form(n=1), *(form(**{f"q{a}": 1, f"m{a}": 1, f"t{a}": -e // g}) for a in d), form(o=1))
        )
        index = (form(n=1), *(form(**{f"z{a}": 1, f"q{a}": s}) for a in d), form(i=1))
        weights = self.weights([form(**{f"w{a}": 1, f"t{a}": step}) for a in d])
        dot = HopperDot(
            output="I",
            index=index,
            left=given,
            right=weights,
            batch=(),
            rows=("n", *(f"q{a}" for a in d)),
            columns=("i",),
            summed=(*(f"t{a}" for a in d), "o"),
            classes=tuple(classes),
            low=tuple(lows),
            extent=tuple(extents),
        )
        return self.case(dot)


def worked_example(n: int, size: int, ci: int, co: int) -> Case:
    """The input's gradient of a 3x3 convolution with stride 3 and dilation 2, as reduce and defract write it: ranges of
    the summed variables begin elsewhere in each class."""
    c = Convolution(n, (size, size), ci, co, (3, 3), stride=3, dilation=2)
    classes, lows, extents = [], [], []
    for z in product(range(3), repeat=2):
        taps = [[t for t in range(-2, 3) if 0 <= 2 * r + 3 * t < 3] for r in z]
        places = [len(range(r, size, 3)) for r in z]
        classes.append({"z0": z[0], "z1": z[1]})
        lows.append({"n": 0, "i": 0, "o": 0, "q0": 0, "q1": 0, "t0": taps[0][0], "t1": taps[1][0]})
        lengths = {"q0": places[0], "q1": places[1], "t0": len(taps[0]), "t1": len(taps[1])}
        extents.append({"n": n, "i": ci, "o": co} | lengths)
    given = (form(n=1), *(form(**{f"z{a}": -1, f"q{a}": 1, f"t{a}": -2}) for a in (0, 1)), form(o=1))
    dot = HopperDot(
        output="I",
        index=(form(n=1), form(z0=1, q0=3), form(z1=1, q1=3), form(i=1)),
        left=HopperOperand("O", given),
        right=c.weights([form(z0=2, t0=3), form(z1=2, t1=3)]),
        batch=(),
        rows=("n", "q0", "q1"),
        columns=("i",),
        summed=("t0", "t1", "o"),
        classes=tuple(classes),
        low=tuple(lows),
        extent=tuple(extents),
    )
    return c.case(dot)


def reference(case: Case, arrays: dict[str, np.ndarray], output: np.ndarray) -> np.ndarray:
    """The exact meaning in float64, point by point: points at which an operand would be read outside do not count.
    `output` gives what no element writes."""
    dot, result = case.dot, output.astype(np.float64)
    result = result.copy()
    for residues, low, extent in zip(dot.classes, dot.low, dot.extent, strict=True):
        kept = (*dot.batch, *dot.rows, *dot.columns)
        values = dict(residues)
        ranges = {v: np.arange(low[v], low[v] + extent[v]) for v in (*kept, *dot.summed)}
        grid = dict(zip(kept, np.meshgrid(*(ranges[v] for v in kept), indexing="ij"), strict=True)) | values
        total = np.zeros(tuple(extent[v] for v in kept))
        for point in product(*(ranges[v].tolist() for v in dot.summed)):
            at = grid | dict(zip(dot.summed, point, strict=True))
            valid, factors = True, []
            for operand in (dot.left, dot.right):
                places = [_at(f, at) for f in operand.index]
                for place, size in zip(places, case.shapes[operand.tensor], strict=True):
                    valid = valid & (place >= 0) & (place < size)
                clipped = tuple(np.clip(p, 0, s - 1) for p, s in zip(places, case.shapes[operand.tensor], strict=True))
                factors.append(arrays[operand.tensor][clipped].astype(np.float64))
            with np.errstate(invalid="ignore"):
                total += np.where(valid, factors[0] * factors[1], 0.0)
        result[tuple(np.broadcast_to(_at(f, grid), total.shape) for f in dot.index)] = total * dot.scale
    return result


def _at(f: Affine, values: dict) -> object:
    return sum((int(f.coefficient(v)) * values[v] for v in f.variables()), int(f.constant))
