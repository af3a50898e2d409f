"""Compiling takes as many steps as a program has statements: calls of our functions are counted, not time."""

from __future__ import annotations

import cProfile
import math
import pstats
from collections import Counter

import pytest
from support.tiers import slow_but

import tilec
from tilec.backends.common.code import FreshNames
from tilec.backends.torch import rules, sharing
from tilec.backends.triton.schedule import candidates


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


@pytest.mark.parametrize("program", slow_but(PROGRAMS, ("residual_blocks",)))
def test_steps_grow_as_the_program_does(program: str) -> None:
    """By default of products with elementwise statements between them: chains of either alone are parts of it."""
    assert exponent(COUNTS[1:3], program, False) < LARGEST


@pytest.mark.parametrize("program", slow_but(("sinkhorn", "normalised_twice"), ("sinkhorn",)))
def test_steps_of_kernels_grow_as_the_program_does(program: str) -> None:
    """Groups are sought near their seeds; a search through the whole program for each had an exponent of 1.4."""
    assert exponent(COUNTS[1:3], program, False, "triton") < LARGEST


def lowered(program: str, n: int, backend: str | None, **how: str) -> tilec.Lowered:
    source = f"function (X[N, M]) -> (Y) {{ {PROGRAMS[program](n)} }}"
    return tilec.compile(source, backend=backend).lower(tilec.spec((600, 800)), **how)


@pytest.mark.parametrize("program", ["elementwise", "layer_norms", "sinkhorn"])
def test_special_rules_are_tried_once_a_statement(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of statements that are looked at for the sake of those before them."""
    tried: Counter[str] = Counter()
    monkeypatch.setattr(rules, "SPECIAL", (lambda task: tried.update([task.flat.output]), *rules.SPECIAL))
    lowered(program, 20, "torch")
    assert len(tried) > 20 and set(tried.values()) == {1}


def test_a_library_is_asked_once_about_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    library_steps = candidates.library_steps
    monkeypatch.setattr(
        candidates, "library_steps", lambda d, s, *x: asked.update([s.output]) or library_steps(d, s, *x)
    )
    lowered("products", 9, None, target="sm_90").source()
    assert len(asked) == 10 and set(asked.values()) == {1}


def test_stored_values_are_sought_in_statements_that_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in all that follow, which took steps by the square of the statements."""
    sought = []
    reading = sharing._reading
    monkeypatch.setattr(sharing, "_reading", lambda *given: (sought.append(given), reading(*given))[1])
    lowered("layer_norms", 40, "torch")
    assert not sought
    source = "Y = sin(exp(tanh(X)) + 1); Z = cos(sin(exp(tanh(X)) + 1)) * X;"
    program = tilec.compile(f"function (X[N, M]) -> (Y, Z) {{ {source} }}", backend="torch")
    assert program.lower(tilec.spec((600, 800))).source().count("torch.tanh") == 1 and sought


def test_names_are_numbered_on_from_those_given_before() -> None:
    names = FreshNames(["a", "a2", "b1"])
    assert [names.fresh(stem) for stem in ("a", "a", "b", "b", "a1", "a", "a1")] == "a1 a3 b b2 a11 a4 a12".split()
    assert names.inner().fresh("a") == "a5"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_steps_of_long_programs_and_their_gradients(program: str, gradient: bool, backend: str) -> None:
    """From 20 statements on: shorter programs may have another form, such as gradients of few taps."""
    assert exponent(COUNTS[1:], program, gradient, backend) < LARGEST
