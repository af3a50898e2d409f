"""Compiling takes as many steps as a program has statements: calls of our functions are counted, not time."""

from __future__ import annotations

import cProfile
import math
import pstats

import pytest
from support.tiers import slow_but

import tilec


def sinkhorn(n: int) -> str:
    lines, u = ["K = exp(-X);", "U0[i : N] = mean(X[i, j]);"], "U0"
    for k in range(n // 2):
        lines.append(f"V{k}[j : M] = 1 / sum(K[i, j] * {u}[i]);")
        lines.append(f"U{k + 1}[i : N] = 1 / sum(K[i, j] * V{k}[j]);")
        u = f"U{k + 1}"
    return f"{' '.join(lines)} Y[i, j : N, M] = {u}[i] * K[i, j] * V{n // 2 - 1}[j];"


def normalised_twice(n: int) -> str:
    lines, x = [], "X"
    for k in range(n // 2):
        lines.append(f"A{k}[i, j : N, M] = {x}[i, j] - logsumexp({x}[i, l]);")
        lines.append(f"B{k}[i, j : N, M] = A{k}[i, j] - logsumexp(A{k}[l, j]);")
        x = f"B{k}"
    return f"{' '.join(lines)} Y = exp({x});"


def elementwise(n: int) -> str:
    lines = ["T0 = X * 2;"]
    for k in range(n):
        lines.append(f"T{k + 1} = {('tanh(T%d) + X', 'T%d * X', 'sin(T%d)', 'T%d / (1 + X*X)')[k % 4] % k};")
    return f"{' '.join(lines)} Y = T{n};"


def products(n: int) -> str:
    lines = ["T0[i, j : N, N] = +(X[i, k] * X[j, k]);"]
    lines += [f"T{k + 1}[i, j : N, N] = +(T{k}[i, k] * T0[k, j]);" for k in range(n)]
    return f"{' '.join(lines)} Y = T{n};"


def layer_norms(n: int) -> str:
    lines, x = [], "X"
    for k in range(n // 3):
        lines.append(f"M{k}[i : N] = mean({x}[i, j]);")
        lines.append(f"V{k}[i : N] = mean(({x}[i, j] - M{k}[i]) * ({x}[i, j] - M{k}[i]));")
        lines.append(f"T{k}[i, j : N, M] = ({x}[i, j] - M{k}[i]) / sqrt(V{k}[i] + 0.001);")
        x = f"T{k}"
    return f"{' '.join(lines)} Y = {x};"


def residual_blocks(n: int) -> str:
    lines, x = ["W[i, j : M, M] = +(X[k, i] * X[k, j]);"], "X"
    for k in range(n // 3):
        lines.append(f"H{k}[i, j : N, M] = +({x}[i, k] * W[k, j]);")
        lines.append(f"A{k} = relu(H{k});")
        lines.append(f"T{k} = {x} + A{k} * 0.1;")
        x = f"T{k}"
    return f"{' '.join(lines)} Y = {x};"


def taps(n: int) -> str:
    return f"Y[i, j : N, M] = {' + '.join(f'X[i + {k}, j] * {k}' for k in range(n))};"


STATEMENTS = (sinkhorn, normalised_twice, elementwise, products, layer_norms, residual_blocks, taps)
PROGRAMS = {f.__name__: f for f in STATEMENTS}
COUNTS = (10, 20, 40, 80)
LARGEST = 1.2  # exponent of the steps by the statements
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # calls up to Python 3.11, none since


def steps(source: str, gradient: bool, backend: str) -> int:
    """Calls of this package's functions while a program is compiled, for the CPU or into kernels' text."""
    function = tilec.compile(f"function (X[N, M]) -> (Y) {{ {source} }}", backend="torch")
    x = tilec.spec((600, 800))
    profile = cProfile.Profile()
    given = [x, tilec.spec(function.lower(x).outputs[0].shape)] if gradient else [x]
    profile.enable()
    function = tilec.compile(function.source, backend=backend)
    (function.grad() if gradient else function).lower(*given).source()
    profile.disable()
    calls = pstats.Stats(profile).stats.items()
    return sum(n for (file, _, name), (_, n, *_) in calls if "/tilec/" in file and name not in COMPREHENSIONS)


def exponent(counts: tuple[int, ...], program: str, gradient: bool, backend: str = "torch") -> float:
    """The slope of a line through the logarithms."""
    steps(PROGRAMS[program](6), gradient, backend)  # what is made once
    points = [(math.log(n), math.log(steps(PROGRAMS[program](n), gradient, backend))) for n in counts]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


@pytest.mark.parametrize("program", slow_but(PROGRAMS, ("products", "residual_blocks")))
def test_steps_grow_as_the_program_does(program: str) -> None:
    assert exponent(COUNTS[1:3], program, False) < LARGEST


@pytest.mark.parametrize("program", slow_but(("sinkhorn", "normalised_twice"), ("sinkhorn",)))
def test_steps_of_kernels_grow_as_the_program_does(program: str) -> None:
    """Groups are sought near their seeds; a search through the whole program for each had an exponent of 1.4."""
    assert exponent(COUNTS[1:3], program, False, "triton") < LARGEST


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_steps_of_long_programs_and_their_gradients(program: str, gradient: bool, backend: str) -> None:
    """From 20 statements on: shorter programs may have another form, such as gradients of few taps."""
    assert exponent(COUNTS[1:], program, gradient, backend) < LARGEST
