"""Lines of kernels: how they are printed, and which are no function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.kernel_cases import KernelCase

import tilec
from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.emit.kernel import KERNEL_NAMES
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
def test_lines_that_are_no_function(lines, what, monkeypatch):
    monkeypatch.setenv("TILEC_VERIFY", "1")
    with pytest.raises(MalformedKernel, match=what):
        free_names("kernel", ("x", "n", "Y"), lines)


@pytest.mark.parametrize(
    "parameters, what", [(("x", "acc"), "acc is a parameter, which a line changes"), (("x", "x"), "have one name")]
)
def test_parameters_that_are_none(parameters, what):
    with pytest.raises(MalformedKernel, match=what):
        free_names("kernel", parameters, [START])


def test_lines_that_are(monkeypatch):
    monkeypatch.setenv("TILEC_VERIFY", "1")
    both = If("x", (START,), (assign("acc", "x"),))
    assert free_names("kernel", ("x", "n", "Y"), [both, StoreLine("Y", "acc")]) == {"tl", "BM"}
    leaves = If("x", (Return(),), (START,))
    assert free_names("kernel", ("x", "Y"), [leaves, StoreLine("Y", "acc")]) == {"tl", "BM"}
    shared = Assignment(("y",), "acc + 1", shared=True)
    carried = [START, shared, ForLoop("t", "range(n)", (StoreLine("Y", "y"), STEP, assign("y", "acc")))]
    assert free_names("kernel", ("x", "n", "Y"), carried) == {"tl", "BM", "range"}
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


WHOLE = ("matmul/hopper/", "blocks/", "scatter/sort", "fusion/horizontal_fusion.py")  # name their parameters too


def test_names_that_writers_give_are_reserved_and_no_others():
    """A tensor or an index variable of that name gets another one in the kernel."""
    folder = Path(tilec.__file__).parent / "backends" / "triton"
    found: dict[str, str] = {}
    texts: set[object] = set()
    for path in folder.rglob("*.py"):
        where = path.relative_to(folder).as_posix()
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        if path.name != "kernel.py" or path.parent.name != "emit":
            texts |= {n.value for n in nodes if isinstance(n, ast.Constant)}
        for node in nodes if not where.startswith(WHOLE) else ():
            match node:
                case ast.Call(ast.Name("assign" | "ForLoop"), [first, *_]):
                    names = [first]
                case ast.Call(ast.Attribute(ast.Name("self"), "_name"), [first, *_]):
                    names = [first]
                case ast.Call(ast.Attribute(ast.Name("k") | ast.Attribute(attr="k" | "kernel"), call), [first, *_]):
                    names = [first] if call in ("assign", "close") else []
                case ast.Assign([ast.Attribute(attr="constants")], ast.Dict(keys)):
                    names = keys
                case ast.Subscript(ast.Attribute(attr="constants"), key):
                    names = [key]
                case _:
                    names = []
            found |= {n.value: where for n in names if isinstance(n, ast.Constant)}
    assert len(found) > 60
    assert not {n: where for n, where in found.items() if n not in KERNEL_NAMES}
    assert not {*KERNEL_NAMES} - {*found} - texts, "no writer says these"


def test_a_tensor_may_be_called_as_a_constant_is():
    source = "function (BINS[N]) -> (O) { O[BINS[n] : 8] = +(1); }"
    text = KernelCase("histogram", source, (((100000,), "int64"),)).text()
    assert "def O_counts(share, n_n, BINS1," in text and "BINS: tl.constexpr" in text
