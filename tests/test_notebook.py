"""`%%tile` and errors in notebooks, in a shell of IPython's. The notebook of the documentation runs in test_docs.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("IPython", reason="IPython is not installed: pip install ipython")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))

import run_notebook  # noqa: E402

import tilec  # noqa: E402
from tilec.errors import InputMistake, NameMistake, TileError  # noqa: E402

TWO = "function double(X) -> (Y) { Y = 2 * X; }\nfunction twice(X) -> (Y) { Y = double(double(X)); }\n"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TILEC_FULL_TRACEBACK", raising=False)
    made = run_notebook.shell()
    made.run_line_magic("load_ext", "tilec")
    yield made
    run_notebook.forget()


def outputs(shell, source: str, *tags: str) -> list[dict]:
    return run_notebook.outputs(shell, {"source": [source], "metadata": {"tags": list(tags)}}, 1)


def raised(shell, source: str) -> list[str]:
    """The lines of the traceback that a cell shows, and nothing else."""
    (error,) = outputs(shell, source, run_notebook.RAISES)
    assert error["output_type"] == "error"
    return error["traceback"]


def test_functions_become_variables(shell) -> None:
    (shown,) = outputs(shell, f"%%tile\n{TWO}")
    assert "twice" in "".join(shown["data"]["text/html"]) and "text/plain" in shown["data"]
    assert shell.user_ns["double"](torch.ones(2)).tolist() == [2, 2]
    assert shell.user_ns["twice"](torch.ones(2)).tolist() == [4, 4]
    assert outputs(shell, f"%%tile --quiet\n{TWO}") == []


def test_names_and_options(shell) -> None:
    outputs(shell, "%%tile square --backend torch --exact\nY = X * X;")
    square = shell.user_ns["square"]
    assert square.backend == "torch" and square.exact and square(3.0) == 9.0
    (shown,) = outputs(shell, f"%%tile two --entry double\n{TWO}")
    assert shell.user_ns["two"](1.0) == shell.user_ns["double"](1.0) == 2.0 and "twice" not in shell.user_ns
    assert "double" in "".join(shown["data"]["text/html"])


@pytest.mark.parametrize(
    "cell, kind, text",
    [
        ("%%tile\nY = X;", InputMistake, "nothing names this function"),
        ("%%tile f g\nY = X;", InputMistake, "unrecognized arguments: g"),
        ("%%tile --backend cuda f\nY = X;", InputMistake, "invalid choice: 'cuda'"),
        ("%%tile 'f\nY = X;", InputMistake, "No closing quotation"),
        ("%%tile lambda\nY = X;", NameMistake, "`lambda` cannot name a variable"),
        ("%%tile\nfunction f'(X) -> (Y) { Y = X; }", NameMistake, "`f'` cannot name"),
        ("%%tile --entry g\nfunction f(X) -> (Y) { Y = X; }", NameMistake, "the source has no function `g`"),
        ("%%tile --warnings error f\nScores = X; Y = Scoers;", NameMistake, "was `Scores` meant?"),
    ],
)
def test_refusals(shell, cell: str, kind: type[TileError], text: str) -> None:
    (line,) = raised(shell, cell)
    assert line.startswith(kind.__name__) and text in line and "f" not in shell.user_ns


def test_an_error_in_a_cell_of_tile_is_its_text(shell) -> None:
    (text,) = raised(shell, "%%tile f\nY[i] = sum(X[i, j]) + 1;\nZ = Y +;")
    assert text.split("\n") == [
        "SyntaxMistake: <tile>:2:8: unexpected `;`, expected an expression",
        "    2 | Z = Y +;",
        "      |        ^",
    ]


def test_an_error_of_a_call_has_the_callers_lines(shell, tmp_path: Path) -> None:
    outputs(shell, "%%tile -q add\nfunction (A[N], B[N]) -> (C) { C = A + B; }")
    shell.run_cell("import torch\ndef call(n):\n    return add(torch.ones(2), torch.ones(n))")
    first, second, text = raised(shell, "call(2)\ncall(3)")
    assert (first, second) == ("line 2: call(3)", "line 3, in call: return add(torch.ones(2), torch.ones(n))")
    assert text.startswith("SizeMistake: <tile>:1:") and text.count("\n") == 3
    helper = tmp_path / "helper.py"
    helper.write_text("def apply(f, x):\n    return f(x)\n")
    shell.user_ns["helper"] = str(helper)
    shell.run_cell("import runpy; apply = runpy.run_path(helper)['apply']")
    _, second, _ = raised(shell, "apply(add, 1.0)")
    assert second == f"{helper}, line 2, in apply: return f(x)"


def test_a_module(shell) -> None:
    """Frames of torch between the caller and tilec are left out too."""
    text = "function (X[N, M], W[M]) -> (Y) { Y[i : N] = sum(X[i, j] * W[j]); }"
    shell.run_cell(f"import torch, tilec\nlayer = tilec.nn.Tile('{text}', parameters={{'W': (3,)}})")
    lines = raised(shell, "layer(torch.ones(2, 4))")
    assert lines[:-1] == ["line 1: layer(torch.ones(2, 4))"] and lines[-1].startswith("SizeMistake")


def test_a_defect_keeps_its_frames(shell, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = raised(shell, "from tilec.errors import InternalMistake\nraise InternalMistake('broken')")
    assert lines[0].startswith("Traceback") and lines[-1].endswith("InternalMistake: broken")
    monkeypatch.setenv("TILEC_FULL_TRACEBACK", "1")
    lines = raised(shell, "%%tile f\nY = X +")
    assert any("magic.py" in line for line in lines)


def test_help(shell) -> None:
    magic = shell.find_cell_magic("tile")
    assert "--entry" in (magic.__doc__ or "") and "becomes a variable" in (magic.__doc__ or "")


def cell(source: str, *tags: str) -> dict:
    return {"cell_type": "code", "source": [source], "metadata": {"tags": list(tags)}, "outputs": []}


def test_the_runner_finds_failures() -> None:
    """A cell that fails, and one that should and does not."""
    for cells in ([cell("1 / 0")], [cell("1", run_notebook.RAISES)], [cell("%%tile f\nY = (")], [cell("x = ")]):
        with pytest.raises(RuntimeError, match="cell 1: "):
            run_notebook.executed(json.dumps({"cells": cells}))
    found = json.loads(run_notebook.executed(json.dumps({"cells": [cell("print(1)\n2")]})))["cells"][0]
    assert [o["output_type"] for o in found["outputs"]] == ["stream", "execute_result"]


def test_programs_and_statements_print_as_tile() -> None:
    f = tilec.compile("Y[i] = sum(X[i, j]); Z = Y + 1;")
    assert str(f.program) == f.tile and str(f.program.statements[1]) == "Z = Y + 1;"
    assert str(f.lower(torch.ones(2, 2)).stages["flat"]).startswith("function (X[2, 2])")
