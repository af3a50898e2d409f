"""The cases of the device runner: programs with inputs, all from a seed and a name, so that a name reproduces one."""

from __future__ import annotations

import functools
import hashlib
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gpu_programs import SIZED

import tilec

TESTS = Path(__file__).resolve().parent.parent
SIZES = (1, 2, 3, 5, 7, 16, 17, 31, 33, 64, 127, 128, 129, 131, 257)
SMALL_SIZES = (1, 2, 3, 5, 7, 17)
WINDOWS = (1, 2, 3, 3, 5)
MOST_OPERATIONS = 20_000_000
LAYOUTS = ("contiguous", "contiguous", "inside", "transposed", "every second", "expanded")
SPECIAL = (float("inf"), float("-inf"), float("nan"))


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
        *(f"random/{family}/{r}" for family in families() for r in range(drawn)),
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
    from support.programs import TAPE, Writer

    drawn = Writer(rng.randbytes(TAPE), families()[names[0]]).program()
    return drawn.source, list(drawn.inputs.values()), True


def _table(names: list[str], rng: random.Random, generator: np.random.Generator, small: bool) -> Made:
    source, given = tables()[names[0]][int(names[1])]
    return source, given(generator), True


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


@functools.cache
def families() -> dict[str, object]:
    """Options of the random programs of the CPU's tests."""
    return {name: options for name, (options, _) in _module("random", "test_random_values").FAMILIES.items()}


Entry = tuple[str, Callable[[np.random.Generator], list[np.ndarray]]]


@functools.cache
def tables() -> dict[str, tuple[Entry, ...]]:
    """The programs that the CPU's tests hold in tables, with how to make inputs for each."""
    return {
        name: tuple(entries)
        for name, entries in {
            "values": _values(),
            "infinite": _infinite(),
            "indexed": _indexed(),
            "types": _types(),
            "integers": _integers(),
            "gradients": _gradients(),
            "functions": _functions(),
            "found": _found(),
            "recurrences": _recurrences(),
        }.items()
    }


def _module(folder: str, name: str):
    for path in (TESTS, TESTS / "backends", TESTS / folder):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    return importlib.import_module(name)


def _normal(*shapes: tuple[int, ...], scale: float = 1) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda generator: [scale * generator.normal(size=shape) for shape in shapes]


def _values() -> Iterator[Entry]:
    module = _module("backends", "test_values")
    for source, *shapes in module.CONTRACTIONS + module.CONVOLUTIONS + module.LOGS + module.GENERAL:
        yield source, _normal(*shapes)
    fusion = _module("backends", "test_fusion")
    for source, shapes in zip(fusion.GROUPS, fusion.SHAPES, strict=True):
        yield source, _normal(*shapes)


def _infinite() -> Iterator[Entry]:
    for source, *shapes in _module("backends", "test_values").INFINITE:
        for which in range(len(shapes)):
            for value in SPECIAL:

                def make(generator: np.random.Generator, shapes=shapes, which=which, value=value) -> list[np.ndarray]:
                    arrays = _normal(*shapes)(generator)
                    arrays[which].flat[generator.integers(arrays[which].size)] = value
                    return arrays

                yield source, make


def _indexed() -> Iterator[Entry]:
    declared = {"Ix": "Ix[K]", "U": "U[K, J]", "D": "D[R]"}
    for source in _module("backends", "test_values").INDEXED:
        names = [n for n in declared if n in source]

        def make(generator: np.random.Generator, names=names) -> list[np.ndarray]:
            made = {
                "Ix": generator.integers(-1, 7, 9),
                "U": generator.normal(size=(9, 4)),
                "D": generator.normal(size=5),
            }
            return [made[n] for n in names]

        yield f"function ({', '.join(declared[n] for n in names)}) -> (O) {{ {source} }}", make


def _types() -> Iterator[Entry]:
    """On small whole numbers, which every type holds exactly."""
    module = _module("backends", "test_types")
    for source in module.ANY + module.NUMBERS:
        shapes = [(4, 5), (5, 3)][: source.count("[M, K]") + 1]
        yield source, lambda generator, shapes=shapes: [generator.integers(-4, 5, s).astype(float) for s in shapes]


def _integers() -> Iterator[Entry]:
    module = _module("backends", "test_types")
    for source in module.ANY + module.NUMBERS + module.BITS:
        names = "A, B" if "B" in source else "A"
        whole = source if source.startswith("function") else f"function ({names}) -> (O) {{ {source} }}"
        shapes = [(4, 5), (5, 3)] if "[M, K]" in source else [(4, 5)] * (1 + ("B" in source))
        for dtype in ("uint8", "int8", "int32", "int64"):
            low = 0 if dtype == "uint8" else -4
            yield (
                whole,
                lambda generator, shapes=shapes, low=low, dtype=dtype: [
                    generator.integers(low, 5, s).astype(dtype) for s in shapes
                ],
            )


def _gradients() -> Iterator[Entry]:
    module = _module("transforms", "test_grad_values")
    for inputs, body, shapes in (*module.CONTRACTIONS.values(), *module.ELEMENTWISE.values()):
        yield f"function ({inputs}) -> (O) {{ {body}; }}", _normal(*shapes)
    for name, (inputs, body, shapes) in module.GATHERS.items():
        length = 6 if name == "whole scatter" else 5
        indices = np.resize(module.INDICES, length)
        yield (
            f"function ({inputs}) -> (O) {{ {body}; }}",
            lambda generator, shapes=shapes, indices=indices: [*_normal(*shapes)(generator), indices],
        )
    checks = _module("", "test_gradcheck")
    sizes = {"A": (6,), "X": (11,), "V": ()}
    for source in checks.CONSTRUCTS.values():
        yield source, _normal(*(sizes[n] for n in tilec.compile(source).inputs))


def _functions() -> Iterator[Entry]:
    """Every smooth scalar function, alone and in a sum, where it is smooth."""
    module = _module("", "test_gradcheck")
    for f in module.SMOOTH:
        low, high = module.DOMAINS.get(f.name, (-2, 2))
        names = "XYZ"[: f.arity[1]]
        body = module.text(f, [f"{n}[i, j]" for n in names])
        declared = ", ".join(f"{n}[I, J]" for n in names)

        def make(generator: np.random.Generator, names=names, low=low, high=high) -> list[np.ndarray]:
            return [generator.uniform(low, high, (5, 129)) for _ in names]

        yield f"function ({', '.join(names)}) -> (R) {{ R = {module.text(f, list(names))}; }}", make
        yield f"function ({declared}) -> (R) {{ R[i : I] = +(({body}) * X[i, j]); }}", make


def _recurrences() -> Iterator[Entry]:
    for source, arrays in _module("support", "recurrences").RECURRENCES.values():
        yield source, lambda generator, arrays=arrays: [np.asarray(a) for a in arrays]


def _found() -> Iterator[Entry]:
    for source, arrays in _module("random", "test_found").FOUND.values():
        yield source, lambda generator, arrays=arrays: [np.asarray(a) for a in arrays]
