"""Which statement each line of a kernel serves, and that the lines are those of its text."""

from __future__ import annotations

import pytest
from support.kernel_cases import KernelCase, kernel_cases

import tilec
from tilec.backends.triton.plan.lines import ForLoop, If, StoreLine, assign
from tilec.backends.triton.plan.plan import Launch, Pointer
from tilec.backends.triton.plan.served import lines_with_outputs, stored_outputs
from tilec.backends.triton.plan.source import KernelFile, KernelFunction


def launch(
    body, statements: tuple[str, ...], own: tuple[KernelFunction, ...] = (), shared=(), **tensors: str
) -> Launch:
    heading = tuple((f"{s}[i] = ...", s) for s in statements)
    kernel = KernelFunction("k", tuple(tensors), (), tuple(body), heading=heading)
    arguments = tuple((name, Pointer(tensor)) for name, tensor in tensors.items())
    return Launch(KernelFile(kernel, own, shared), (1, 1, 1), arguments, (), 4, 1, statements)


def test_lines_of_fused_kernels() -> None:
    """Two outputs of one kernel: what only the second needs is the second's, whatever its parameters are called."""
    made = launch(
        [
            assign("i", "tl.program_id(0)"),
            ForLoop("step", "range(3)", (assign("x", "tl.load(X + i + step)"), StoreLine("first + i", "x"))),
            If("i < 3", (assign("y", "x * 2"),), (assign("y", "x"),)),
            assign("to", "second + i"),
            StoreLine("to", "y"),
            assign("unread", "1"),
        ],
        ("A", "B", "C"),
        first="A",
        second="B.parts",
        X="X",
    )
    served = dict(lines_with_outputs(made))
    assert {text.strip() for text, own in served.items() if own == "A"} == {
        *("# A[i] = ...", "i = tl.program_id(0)", "for step in range(3):", "x = tl.load(X + i + step)"),
        "tl.store(first + i, x)",
    }
    assert {text.strip() for text, own in served.items() if own == "B"} == {
        *("# B[i] = ...", "y = x * 2", "y = x", "to = second + i", "tl.store(to, y)"),
    }
    assert served["    unread = 1"] == "" and stored_outputs(made) == {"A", "B"}


def test_functions_of_a_kernel_serve_its_statement() -> None:
    own = KernelFunction("copy", ("O",), (), (assign("x", "1"),))
    made = launch(
        [assign("y", "2")], ("O",), (own,), (("divide_", "@triton.jit\ndef divide_(a, b):\n    return a / b\n"),)
    )
    served = dict(lines_with_outputs(made))
    assert served["    x = 1"] == served["    y = 2"] == served["def copy(O):"] == "O"
    assert served["    return a / b"] == served["@triton.jit"] == "" and stored_outputs(made) == {"O"}


@pytest.mark.parametrize("case", kernel_cases(), ids=lambda c: c.name)
@pytest.mark.one_in(12)
def test_the_lines_are_those_of_the_text(case: KernelCase) -> None:
    for kernel in case.lowered().kernels:
        text = [line for line, _ in kernel.lines]
        assert kernel.source.splitlines()[-len(text) :] == text
        owners = {own for _, own in kernel.lines if own}
        assert owners and owners <= set(kernel.statements) and kernel.stored <= set(kernel.statements)


def test_calls_of_launches_in_one_serve_their_own_statement() -> None:
    """Two products in one launch: each call is its statement's."""
    f = tilec.compile(
        "function (A[I, K], B[K]) -> (P, Q) { P[i : I] = +(A[i, k] * B[k]); Q[k : K] = +(A[i, k]); }", backend="triton"
    )
    kernels = f.lower(tilec.spec((64, 32)), tilec.spec((32,)), target="sm_90").kernels
    assert {own for k in kernels for _, own in k.lines if own} == {"P", "Q"}
