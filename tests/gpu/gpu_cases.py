"""The cases of the device runner: programs with inputs, all from a seed and a name, so that a name reproduces one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from conformance.cases import tables
from gpu_programs import SIZED
from support.programs import FAMILIES, TAPE, Writer

import tilec

SIZES = (1, 2, 3, 5, 7, 16, 17, 31, 33, 64, 127, 128, 129, 131, 257)
SMALL_SIZES = (1, 2, 3, 5, 7, 17)
WINDOWS = (1, 2, 3, 3, 5)
MOST_OPERATIONS = 20_000_000
LAYOUTS = ("contiguous", "contiguous", "inside", "transposed", "every second", "expanded")


@dataclass(frozen=True)
class Case:
    """`arrays`: floating ones in float64, to be rounded to `dtype`. `oracle`: is it small enough for the oracle."""

    name: str
    source: str
    arrays: tuple[np.ndarray, ...]
    dtype: torch.dtype
    layouts: tuple[str, ...]
    oracle: bool


def dice(seed: int, *names: object) -> random.Random:
    return random.Random(hashlib.sha256(repr((seed, *names)).encode()).hexdigest())


def plan(seed: int, dtypes: Sequence[str], rounds: int = 4, drawn: int = 250, only: str = "") -> list[str]:
    """Names of all cases in an order that the seed says: whatever part of it is run is a sample."""
    programs = [
        *(f"table/{table}/{n}/{r}" for table, entries in tables().items() for n in range(len(entries)) for r in (0, 1)),
        *(f"sized/{name}/{r}" for name in SIZED for r in range(rounds)),
        *(f"random/{family}/{r}" for family in FAMILIES for r in range(drawn)),
    ]
    names = [name for p in programs for dtype in dtypes if only in (name := f"{p}/{dtype}")]
    dice(seed, "plan").shuffle(names)
    return names


def make(name: str, seed: int, small: bool = False) -> Case:
    """The case of this name. `small`: sizes for an interpreter."""
    kind, *rest, dtype = name.split("/")
    rng = dice(seed, name)
    generator = np.random.default_rng(rng.getrandbits(64))
    source, arrays, oracle = MAKERS[kind](rest, rng, generator, small)
    layouts = tuple(rng.choice(LAYOUTS) for _ in arrays)
    return Case(name, source, tuple(arrays), getattr(torch, dtype), layouts, oracle)


Made = tuple[str, list[np.ndarray], bool]


def _random(names: list[str], rng: random.Random, generator: np.random.Generator, small: bool) -> Made:
    drawn = Writer(rng.randbytes(TAPE), FAMILIES[names[0]]).program()
    return drawn.source, list(drawn.inputs.values()), True


def _table(names: list[str], rng: random.Random, generator: np.random.Generator, small: bool) -> Made:
    case = tables()[names[0]][int(names[1])]
    return case.source, case.draw(generator), case.small


def _sized(names: list[str], rng: random.Random, generator: np.random.Generator, small: bool) -> Made:
    """Sizes that keep the work small enough to be done again in float64 on the CPU."""
    source = SIZED[names[0]]
    function = tilec.compile(source, backend="torch")
    dims = sorted({d for i in function.program.inputs for d in i.dims or () if isinstance(d, str)})
    sizes = {d: rng.choice(WINDOWS if d in "RST" else SMALL_SIZES if small else SIZES) for d in dims}
    most = MOST_OPERATIONS // 1000 if small else MOST_OPERATIONS
    while True:
        shapes = {i.name: [int(sizes.get(str(d), d)) for d in i.dims or ()] for i in function.program.inputs}
        try:
            if _operations(function, [tilec.spec(shape, _type(name)) for name, shape in shapes.items()]) <= most:
                break
            target = max(dims, key=lambda d: (sizes[d], rng.random()))
        except tilec.SizeMistake:  # an image smaller than its window
            target = next(d for d in "RST" if sizes.get(d, 1) > 1)
        smaller = [n for n in (WINDOWS if target in "RST" else SIZES) if n < sizes[target]]
        sizes[target] = rng.choice(sorted(smaller)[len(smaller) // 2 :])
    return source, [values(name, tuple(shape), generator) for name, shape in shapes.items()], False


MAKERS: dict[str, Callable[..., Made]] = {"random": _random, "table": _table, "sized": _sized}


def _operations(function: tilec.Function, specs: list[tilec.Spec]) -> int:
    """Of the values and of the gradient, which of a product is quadratic."""
    lowered = function.lower(*specs)
    names = tuple(n for n, s in zip(function.inputs, specs, strict=True) if s.dtype.startswith("float"))
    if not names or not any(t.dtype.startswith("float") for t in lowered.outputs):
        return lowered.cost().flops
    cotangents = [tilec.spec(t.shape, t.dtype) for t in lowered.outputs]
    return lowered.cost().flops + function.grad(names).lower(*specs, *cotangents).cost().flops


def _type(name: str) -> str:
    return {"I": "int64", "L": "int64", "U": "int32", "B": "bool"}.get(name[0], "float32") if _kind(name) else "float32"


def _kind(name: str) -> str:
    """Which values an input of this name takes; "" for floating ones."""
    return name[:2] if name.startswith("Ix") else name[0] if name in ("B", "L") or name[0] == "U" else ""


def values(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Elements of a sized program's input."""
    match _kind(name):
        case "Ix":
            return generator.integers(-2, 19, shape)
        case "L":
            return generator.integers(0, 140, shape)
        case "U":
            return generator.integers(-4, 5, shape).astype(np.int32)
        case "B":
            return generator.integers(0, 2, shape).astype(bool)
    return generator.normal(size=shape)
