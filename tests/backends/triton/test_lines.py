"""Lines of kernels: how they are printed, and which are no function."""

from __future__ import annotations

import pytest

from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.plan.check_lines import MalformedKernel, free_names
from tilec.backends.triton.plan.lines import (
    Assignment,
    Effect,
    ForLoop,
    If,
    Return,
    StoreLine,
    WhileLoop,
    assign,
    names_read,
    printed,
)
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction

START = assign("acc", "tl.zeros((BM,), tl.float32)")
STEP = assign("acc", "x", "+=")


def test_text():
    lines = [
        assign(["a", "b"], "pair_(x)"),
        ForLoop("t", "range(n)", (If("t > 0", (STEP,), (If("t < -1", (Return(),), (assign("c", "1"),)),)),)),
        WhileLoop("busy"),
        If("a", (StoreLine("Y + a", "b", "a < n"),), (StoreLine("Y", "b", call="atomic_add", how=', sem="relaxed"'),)),
    ]
    assert "\n".join(printed(lines)) == "\n".join([
        "a, b = pair_(x)",
        "for t in range(n):",
        "    if t > 0:",
        "        acc += x",
        "    elif t < -1:",
        "        return",
        "    else:",
        "        c = 1",
        "while busy:",
        "    pass",
        "if a:",
        "    tl.store(Y + a, b, mask=a < n)",
        "else:",
        '    tl.atomic_add(Y, b, sem="relaxed")',
    ])  # fmt: skip


def test_names_of_an_expression():
    text = (
        f"tl.load(X + {PROGRAM[0]} * n, mask=row_in[:, None], other=1.5e3).to(tl.float32) if a == b else float('inf')"
    )
    assert names_read(text) == {"tl", "X", "n", "row_in", "a", "b", "float"}


@pytest.mark.parametrize(
    "lines, what",
    [
        ([STEP], "acc may have no value"),
        ([assign("y", "acc"), START], "acc may have no value"),
        ([If("x", (START,)), StoreLine("Y", "acc")], "acc may have no value"),
        ([ForLoop("t", "range(n)", (START,)), StoreLine("Y", "acc")], "acc may have no value"),
        ([ForLoop("t", "range(n)", (STEP, START))], "acc may have no value"),
        ([ForLoop("t", "range(n)", (START,)), StoreLine("Y", "t")], "t may have no value"),
        ([ForLoop("t", "range(n)", ())], "an empty block"),
        ([If("x", ())], "an empty block"),
        ([Return(), START], "no program gets here"),
        ([If("x", (Return(),), (Return(),)), START], "no program gets here"),
        ([START, Assignment(("y",), "acc + 1", shared=True), STEP, StoreLine("Y", "y")], "y stands for a text"),
        (
            [START, Assignment(("y",), "acc + 1", shared=True), ForLoop("t", "range(n)", (StoreLine("Y", "y"), STEP))],
            "y stands for a text",
        ),
    ],
)
def test_lines_that_are_no_function(lines, what):
    with pytest.raises(MalformedKernel, match=what):
        free_names("kernel", ("x", "n", "Y"), lines)


def test_lines_that_are():
    both = If("x", (START,), (assign("acc", "x"),))
    assert free_names("kernel", ("x", "n", "Y"), [both, StoreLine("Y", "acc")]) == {"tl", "BM"}
    leaves = If("x", (Return(),), (START,))
    assert free_names("kernel", ("x", "Y"), [leaves, StoreLine("Y", "acc")]) == {"tl", "BM"}
    shared = Assignment(("y",), "acc + 1", shared=True)
    again = ForLoop("t", "range(n)", (shared, StoreLine("Y", "y"), STEP))
    assert free_names("kernel", ("x", "n", "Y", "BM"), [START, again]) == {"tl", "range"}


def test_what_nothing_defines_is_found_before_a_kernel_is_compiled():
    def file(text):
        return kernel_file(
            KernelFunction("kernel", ("X", "Y"), (), (StoreLine("Y", text), Effect("tl.debug_barrier()")))
        )

    assert "def maximum_(" in file("maximum_(tl.load(X), 0)").text
    with pytest.raises(MalformedKernel, match="nothing defines Z, undefined_"):
        file("undefined_(tl.load(Z), 0)")
