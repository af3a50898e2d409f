"""Which way a sum at places that are data takes, on a device that need not be there."""

import pytest

import tilec
from tilec.backends.triton.plan.plan import Pointer
from tilec.backends.triton.runtime.executable import _typed

POINTS, ELEMENTS = 2**20, 2**17
SORTED, FIXED, EACH = "sort_digits", "rounded", "each"
SOURCE = "function (X[M, D], T[M], Z[N]) -> (Y) {{ Y[T[m], d : N, D] = {}; }}"


def ways(source: str, shapes: dict[str, tuple[int, ...]], dtype: str) -> list[str]:
    """Those of which a plan has kernels."""
    declared = source[source.index("(") + 1 : source.index(")")]
    names = [text.strip()[0] for text in declared.split("], ")]
    specs = [tilec.spec(shapes[n], "int64" if n in "TU" else dtype) for n in names]
    kernels = [k.name for k in tilec.compile(source).lower(*specs, target="sm_90").kernels]
    return [way for way in (SORTED, FIXED, EACH) if any(way in k for k in kernels)]


CASES = {  # aggregate, columns, points, elements, type, the way
    "one column": ("+(X[m, d])", 1, POINTS, ELEMENTS, "float32", FIXED),
    "eight columns": ("+(X[m, d])", 8, POINTS, ELEMENTS, "float32", FIXED),
    "rows": ("+(X[m, d])", 32, POINTS, ELEMENTS, "float32", SORTED),
    "float64": ("+(X[m, d])", 1, POINTS, ELEMENTS, "float64", FIXED),
    "float64, nine columns": ("+(X[m, d])", 9, POINTS, ELEMENTS, "float64", SORTED),
    "bfloat16": ("+(X[m, d])", 1, POINTS, ELEMENTS, "bfloat16", FIXED),
    "product": ("*(X[m, d])", 1, POINTS, ELEMENTS, "float32", SORTED),
    "greatest": (">(X[m, d])", 8, POINTS, ELEMENTS, "float32", EACH),
    "least": ("<(X[m, d])", 1, POINTS, ELEMENTS, "float64", EACH),
    "greatest of rows": (">(X[m, d])", 9, POINTS, ELEMENTS, "float32", SORTED),
    "greatest of bfloat16": (">(X[m, d])", 1, POINTS, ELEMENTS, "bfloat16", SORTED),
    "greatest of few": (">(X[m, d])", 1, 8192, ELEMENTS, "float32", SORTED),
    "few points": ("+(X[m, d])", 1, 8192, ELEMENTS, "float32", SORTED),
    "few elements": ("+(X[m, d])", 1, POINTS, 500, "float32", SORTED),
    "more elements than are cached": ("+(X[m, d])", 1, POINTS, 2**23, "float32", SORTED),
    "more points than an integer holds": ("+(X[m, d])", 1, 2**30 + 1, ELEMENTS, "float32", SORTED),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sum(name: str) -> None:
    body, columns, points, elements, dtype, way = CASES[name]
    shapes = {"X": (points, columns), "T": (points,), "Z": (elements,)}
    assert ways(SOURCE.format(body), shapes, dtype) == [way]


@pytest.mark.parametrize(
    "points, elements", [(8192, ELEMENTS), (POINTS, ELEMENTS), (POINTS, 2**17 - 1), (8192, 2**33 - 1)]
)
def test_passes_of_a_sort_are_compiled_once(points: int, elements: int) -> None:
    """The first pass reads keys as they are given, later ones what was moved, by the same kernels."""
    specs = [tilec.spec((points, 64)), tilec.spec((points,), "int64"), tilec.spec((elements,))]
    executable = tilec.compile(SOURCE.format("+(X[m, d])")).lower(*specs, target="sm_90")._executable
    passes = [
        (k, t) for k, t in _typed(executable.plan, executable._types) if k.kernel in ("sort_digits", "sort_moved")
    ]
    kinds = {
        (k.text, k.constants, k.warps, tuple(t[p.tensor] for _, p in k.arguments if isinstance(p, Pointer)))
        for k, t in passes
    }
    assert len(passes) > len(kinds) == 2


SHARED = {  # statements, the way of all of them
    "a row and a column at one place": (
        "A[T[m], d : N, D] = +(X[m, d]); B[T[m] : N] = +(X[m, 0]); Y[n, d] = A[n, d] / B[n];",
        SORTED,
    ),
    "two columns at two places": ("A[T[m] : N] = +(X[m, 0]); B[U[m] : N] = +(X[m, 1]); Y = A + B;", FIXED),
    "two columns beside each other": ("A[T[m] : N] = +(X[m, 0]); B[T[m] + 1 : N] = +(X[m, 1]); Y = A + B;", FIXED),
    "four columns beside each other": (
        "A[T[m] : N] = +(X[m, 0]); B[T[m] + 1 : N] = +(X[m, 1]); C[T[m] + 2 : N] = +(X[m, 2]); "
        "E[T[m] + 3 : N] = +(X[m, 3]); Y = A + B + C + E;",
        SORTED,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_sums_that_could_share_a_sort_go_one_way(name: str) -> None:
    body, way = SHARED[name]
    shapes = {"X": (POINTS, 32), "T": (POINTS,), "U": (POINTS,), "Z": (ELEMENTS,)}
    assert ways(f"function (X[M, D], T[M], U[M], Z[N]) -> (Y) {{ {body} }}", shapes, "float32") == [way]
