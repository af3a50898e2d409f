"""Kernels that differ in names alone are one kernel of a plan; others are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilec
from tilec.backends.triton.plan.lines import StoreLine, assign
from tilec.backends.triton.plan.plan import Descriptor, Launch, Plan, Pointer, Repeat, SubPlan
from tilec.backends.triton.plan.shared_kernels import share_kernels
from tilec.backends.triton.plan.source import KernelFile, KernelFunction, called, hole
from tilec.ir.program import Program


def kernel(name: str, x: str, y: str, value: str, **how: Any) -> KernelFile:
    body = (assign(f"{x}_read", f"tl.load({x} + n)"), StoreLine(f"{y} + n", value.format(x=f"{x}_read")))
    return KernelFile(KernelFunction(name, ("n", x, y), ("BM",), body, **how))


def launch(file: KernelFile, n: int = 4, x: object = Pointer("X"), y: object = Pointer("Y")) -> Launch:
    values = dict(zip(file.kernel.parameters, (n, x, y), strict=True))
    return Launch(file, (1, 1, 1), tuple(values.items()), (("BM", 8),), 4, 1, (file.kernel.name,))


def names(*launches: Launch) -> list[str]:
    return [x.kernel for x in share_kernels(Plan(launches, ("Y",))).launches()]


FIRST = kernel("first", "A", "B", "{x} * 2")


def test_other_names_alone_are_one_kernel() -> None:
    second = launch(kernel("second", "U", "V", "{x} * 2"), 5, Pointer("B"), Pointer("C"))
    _, shared = share_kernels(Plan((launch(FIRST), second), ("Y",))).launches()
    assert shared.file is FIRST and shared.statements == ("second",) and shared.constants == (("BM", 8),)
    assert shared.arguments == (("n", 5), ("A", Pointer("B")), ("B", Pointer("C")))


@pytest.mark.parametrize(
    "other",
    [
        kernel("other", "U", "V", "{x} * 3"),
        kernel("other", "U", "V", "n * 2"),
        kernel("other", "U", "V", "tl.exp({x}) * 2"),
        kernel("other", "U", "V", "{x} * 2", unspecialized=("n",)),
        kernel("other", "U", "V", "{x} * 2", contracts=False),
        KernelFile(replace(FIRST.kernel, name="other", parameters=("n", "B", "A"))),
        KernelFile(replace(FIRST.kernel, name="other"), imports=("import torch",)),
    ],
    ids=["number", "variable", "function", "divisibility", "rounding", "order", "imports"],
)
def test_others_are_not(other: KernelFile) -> None:
    assert names(launch(FIRST), launch(other)) == ["first", "other"]


def test_words_that_are_no_names_of_a_function_stay() -> None:
    """An attribute, a keyword of a call, a string that look like a variable of the other kernel."""
    for value in ("{x}.A", "f(A={x})", 'f("A", {x})'):
        file = kernel("k", "A", "B", value)
        assert names(launch(file), launch(kernel("other", "U", "V", value))) == ["k", "k"]
        assert names(launch(file), launch(kernel("other", "U", "V", value.replace("A", "U")))) == ["k", "other"]


def test_functions_of_a_kernel_are_part_of_it() -> None:
    def calling(name: str, number: int) -> KernelFile:
        inner = KernelFunction(f"{name}_inner", ("x",), (), (assign("y", f"x + {number}"), StoreLine("x", "y")))
        body = (StoreLine("X", f"{hole(inner.name)}(X)"),)
        whole = KernelFunction(name, ("n", "X", "Y"), ("BM",), body, calls=called((inner,)))
        return KernelFile(whole, (inner,))

    assert names(*(launch(calling(f"k{k}", number)) for k, number in enumerate((1, 1, 2)))) == ["k0", "k0", "k2"]


def test_a_tensor_map_keeps_its_name() -> None:
    """Which says whether its values are rounded as they are read."""
    box = Descriptor("X", 0, (8, 8), (8, 1), (8, 8), "")
    same, other = (kernel("second", x, "V", "{x} * 2") for x in ("A", "U"))
    assert names(launch(FIRST, x=box), launch(same, x=box)) == ["first", "first"]
    assert names(launch(FIRST, x=box), launch(other, x=box)) == ["first", "second"]


def test_parts_and_repeated_launches() -> None:
    body = (assign("U_read", "tl.load(U + step)"), StoreLine("V + step", "U_read * 2"))
    second = KernelFile(KernelFunction("second", ("step", "U", "V"), ("BM",), body))
    repeated = Repeat((launch(second),), ("step",), 3)
    part = SubPlan(Plan((repeated,), ("Y",)), ("X",), {}, Program(None, (), (), ()))
    shared = share_kernels(Plan((launch(FIRST), part), ("Y",)))
    (made,) = next(s.plan.steps for s in shared.steps if isinstance(s, SubPlan))
    assert isinstance(made, Repeat) and made.counters == ("n",) and made.launches[0].file is FIRST


def test_a_launch_stays_one_where_it_stands_twice() -> None:
    second = launch(kernel("second", "U", "V", "{x} * 2"))
    _, *twice = share_kernels(Plan((launch(FIRST), second, second), ("Y",))).steps
    assert twice[0] is twice[1] and isinstance(twice[0], Launch) and twice[0].file is FIRST


def sinkhorn(steps: int) -> str:
    lines, u = ["U0[i : N] = mean(X[i, j]);"], "U0"
    for k in range(steps):
        lines.append(f"V{k}[j : M] = 1 / sum(exp(-X[i, j]) * {u}[i]);")
        lines.append(f"W{k}[i : N] = 1 / sum(exp(-X[i, j]) * V{k}[j]);")
        u = f"W{k}"
    return (
        f"function (X[N, M]) -> (Y) {{ {' '.join(lines)} Y[i, j : N, M] = {u}[i] * exp(-X[i, j]) * V{steps - 1}[j]; }}"
    )


@pytest.mark.parametrize("gradient", [False, True])
def test_steps_of_an_unrolled_iteration_add_no_kernels(gradient: bool) -> None:
    def kernels(steps: int) -> tuple[int, int]:
        f, x = tilec.compile(sinkhorn(steps), backend="triton"), tilec.spec((600, 800))
        lowered = f.grad().lower(x, x, target="sm_90") if gradient else f.lower(x, target="sm_90")
        return len({k.source for k in lowered.kernels}), len(lowered.kernels)

    (few, some), (same, more) = kernels(4), kernels(7)
    assert few == same and more >= some + 6
