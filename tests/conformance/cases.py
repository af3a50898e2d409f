"""The conformance list: every program that all ways to run one must agree on, by table and number.

`test_conformance.py` and the device's runner (`tests/gpu/run.py`) run over it. A program is added once, here or to the
data that is read here, and is then run at every stage, by the torch backend, by both interpreters and on a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from conformance import programs
from support.chains import VARIANTS, inputs_of
from support.conditionals import CONDITIONALS
from support.found import FOUND
from support.recurrences import RECURRENCES
from support.totals import TOTALS

import tilec
from tilec import gallery

Arrays = list[np.ndarray]
Draw = Callable[[np.random.Generator], Arrays]

SPECIAL = (float("inf"), float("-inf"), float("nan"))
WIDE = ("float64",)
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
ATTENTION_SIZES = {"B": 2, "N": 40, "M": 21, "E": 20, "F": 17}
INDEXED_INPUTS = {"Ix": "Ix[K]", "U": "U[K, J]", "D": "D[R]"}

# who runs a program; the device's runner takes all of them
STAGES, TORCH, BLOCKS, TRITON = "stages", "torch", "block programs", "interpreted kernels"
EVERYWHERE = frozenset((TORCH, TRITON))


@dataclass(frozen=True)
class ConformanceCase:
    """`draw`: inputs, floating ones in float64, to be rounded to one of `dtypes`. `runners`: who runs it by default
    beside a device. `small`: enough for the oracle; elsewhere the torch backend in float64 says what is exact."""

    name: str
    source: str
    draw: Draw
    runners: frozenset[str] = EVERYWHERE
    dtypes: tuple[str, ...] = WIDE
    small: bool = True


@functools.cache
def tables() -> dict[str, tuple[ConformanceCase, ...]]:
    """All cases, by table."""
    made = {
        "values": _values,
        "infinite": _infinite,
        "indexed": _indexed,
        "types": _types,
        "integers": _integers,
        "gradients": _gradients,
        "functions": _functions,
        "found": _found,
        "recurrences": _recurrences,
        "branches": _branches,
        "attention": _attention,
        "gallery": _gallery,
        "totals": _totals,
    }
    return {table: tuple(make(table)) for table, make in made.items()}


def cases(runner: str) -> list[ConformanceCase]:
    """Those that this runner takes."""
    return [case for table in tables().values() for case in table if runner in case.runners]


def _normal(*shapes: Sequence[int]) -> Draw:
    return lambda generator: [generator.normal(size=shape) for shape in shapes]


def _given(arrays: Sequence[object]) -> Draw:
    return lambda generator: [np.asarray(a) for a in arrays]


def _values(table: str) -> Iterator[ConformanceCase]:
    statements = programs.CONTRACTIONS + programs.CONVOLUTIONS + programs.LOGS + programs.GENERAL
    for n, (source, *shapes) in enumerate(statements):
        yield ConformanceCase(f"{table}/{n}", source, _normal(*shapes))
    for n, (source, shapes) in enumerate(zip(programs.GROUPS, programs.SHAPES, strict=True), len(statements)):
        yield ConformanceCase(f"{table}/{n}", source, _normal(*shapes))


def _infinite(table: str) -> Iterator[ConformanceCase]:
    """One element of one input is special: padding multiplies by zero, and 0 * inf must not appear there."""
    n = 0
    for source, *shapes in programs.INFINITE:
        for which in range(len(shapes)):
            for value in SPECIAL:

                def draw(generator: np.random.Generator, shapes=shapes, which=which, value=value) -> Arrays:
                    arrays = _normal(*shapes)(generator)
                    arrays[which].flat[generator.integers(arrays[which].size)] = value
                    return arrays

                yield ConformanceCase(f"{table}/{n}", source, draw)
                n += 1


def _indexed(table: str) -> Iterator[ConformanceCase]:
    for n, statement in enumerate(programs.INDEXED):
        names = [name for name in INDEXED_INPUTS if name in statement]

        def draw(generator: np.random.Generator, names=names) -> Arrays:
            made = {
                "Ix": generator.integers(-1, 7, 9),
                "U": generator.normal(size=(9, 4)),
                "D": generator.normal(size=5),
            }
            return [made[name] for name in names]

        declared = ", ".join(INDEXED_INPUTS[name] for name in names)
        yield ConformanceCase(f"{table}/{n}", f"function ({declared}) -> (O) {{ {statement} }}", draw)


def _whole_shapes(source: str) -> list[tuple[int, int]]:
    return [(4, 5), (5, 3)] if "B[M, K]" in source else [(4, 5)] * (1 + ("A, B" in source))


def _types(table: str) -> Iterator[ConformanceCase]:
    """On small whole numbers, which every type holds exactly."""
    for n, source in enumerate(programs.ANY + programs.NUMBERS):
        shapes = _whole_shapes(source)

        def draw(generator: np.random.Generator, shapes=shapes) -> Arrays:
            return [generator.integers(-4, 5, s).astype(float) for s in shapes]

        yield ConformanceCase(f"{table}/{n}", source, draw, dtypes=FLOATS)


def _integers(table: str) -> Iterator[ConformanceCase]:
    bits = [f"function ({'A, B' if 'B' in s else 'A'}) -> (O) {{ {s} }}" for s in programs.BITS]
    n = 0
    for source in programs.ANY + programs.NUMBERS + bits:
        for dtype in (*INTEGERS, *(("bool",) if source in programs.ANY else ())):
            low, high = {"uint8": (0, 5), "bool": (0, 2)}.get(dtype, (-4, 5))
            drawn = _whole_shapes(source), low, high, dtype

            def draw(generator: np.random.Generator, drawn=drawn) -> Arrays:
                shapes, low, high, dtype = drawn
                return [generator.integers(low, high, s).astype(dtype) for s in shapes]

            yield ConformanceCase(f"{table}/{n}", source, draw)
            n += 1


def _gradients(table: str) -> Iterator[ConformanceCase]:
    """Programs whose gradients are compared with finite differences elsewhere."""
    made: list[tuple[str, Draw]] = []
    for inputs, body, shapes in (*programs.DIFFERENTIATED.values(), *programs.BROADCAST.values()):
        made.append((f"function ({inputs}) -> (O) {{ {body}; }}", _normal(*shapes)))
    for name, (inputs, body, shapes) in programs.GATHERS.items():
        indices = np.resize(programs.INDICES, 6 if name == "whole scatter" else 5)

        def draw(generator: np.random.Generator, shapes=shapes, indices=indices) -> Arrays:
            return [*_normal(*shapes)(generator), indices]

        made.append((f"function ({inputs}) -> (O) {{ {body}; }}", draw))
    sizes = {"A": (6,), "X": (11,), "V": ()}
    made += [(s, _normal(*(sizes[n] for n in tilec.compile(s).inputs))) for s in programs.CONSTRUCTS.values()]
    for n, (source, draw_inputs) in enumerate(made):
        yield ConformanceCase(f"{table}/{n}", source, draw_inputs)


def _functions(table: str) -> Iterator[ConformanceCase]:
    """Every smooth scalar function, alone and in a sum, where it is smooth."""
    n = 0
    for f in programs.SMOOTH:
        low, high = programs.DOMAINS.get(f.name, (-2, 2))
        names = "XYZ"[: f.arity[1]]
        body = programs.applied(f, [f"{x}[i, j]" for x in names])
        declared = ", ".join(f"{x}[I, J]" for x in names)

        def draw(generator: np.random.Generator, names=names, low=low, high=high) -> Arrays:
            return [generator.uniform(low, high, (5, 129)) for _ in names]

        for source in (
            f"function ({', '.join(names)}) -> (R) {{ R = {programs.applied(f, list(names))}; }}",
            f"function ({declared}) -> (R) {{ R[i : I] = +(({body}) * X[i, j]); }}",
        ):
            yield ConformanceCase(f"{table}/{n}", source, draw)
            n += 1


def _found(table: str) -> Iterator[ConformanceCase]:
    for name, (source, arrays) in FOUND.items():
        yield ConformanceCase(f"{table}/{name}", source, _given(arrays), frozenset((STAGES, TRITON)))


def _recurrences(table: str) -> Iterator[ConformanceCase]:
    for name, (source, arrays) in RECURRENCES.items():
        yield ConformanceCase(f"{table}/{name}", source, _given(arrays))


def _branches(table: str) -> Iterator[ConformanceCase]:
    """`tests/language/test_branches.py` has them at every stage, with what some of them must give."""
    for name, (source, arrays, _) in CONDITIONALS.items():
        yield ConformanceCase(f"{table}/{name}", source, _given(arrays), frozenset((TRITON,)))


def _attention(table: str) -> Iterator[ConformanceCase]:
    """Chains of products, in float32, in which each is one kernel; their gradients are chains too."""
    for name, a in VARIANTS.items():

        def draw(generator: np.random.Generator, a=a) -> Arrays:
            made = inputs_of(a, "float32", ATTENTION_SIZES, int(generator.integers(2**31)))
            return [x if n in a.integers else x.astype(float) for n, x in made.items()]

        yield ConformanceCase(f"{table}/{name}", a.text, draw, frozenset((BLOCKS, TRITON)), ("float32",))


def _gallery(table: str) -> Iterator[ConformanceCase]:
    """`tests/gallery` compares their values and gradients with torch's on the CPU."""
    for name in gallery.names():

        def draw(generator: np.random.Generator, name=name) -> Arrays:
            example = gallery.entry(name).example(int(generator.integers(2**31)), torch.float64)
            return [np.asarray(a) for a in example]

        source = gallery.entry(name).source
        yield ConformanceCase(f"{table}/{name}", source, draw, frozenset((TRITON,)), ("float32",), small=False)


def _totals(table: str) -> Iterator[ConformanceCase]:
    """With enough points that programs share them."""
    for name, (source, shape) in TOTALS.items():
        dtypes = ("bfloat16", "float32")
        yield ConformanceCase(f"{table}/{name}", source, _normal(shape), frozenset((TRITON,)), dtypes, small=False)
