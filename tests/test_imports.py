"""What `import tilec` brings in, and what is done to modules that come later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fresh import run_fresh

from tilec.language.grammar import parser
from tilec.late import when_imported

LATE = ("torch._dynamo", "torch._inductor", "sympy", "triton", "islpy")
CALL = f"""
import sys
import tilec, torch
f = tilec.compile("function (A[I, K], B[K, J]) -> (C) {{ C[i, j : I, J] = +(A[i, k] * B[k, j]); }}")
f(torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)).sum().backward()
print(*[name for name in {LATE} if name in sys.modules])
from torch._inductor import config
print(type(config.post_grad_custom_pre_pass).__name__)
"""


def test_compilers_are_imported_by_those_who_use_them() -> None:
    done = run_fresh(CALL)
    assert done.stdout == "\nFuseNeighbours\n", done.stderr


def test_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []

    def note() -> None:
        seen.append(sys.modules["imported_late"].value)

    when_imported("imported_late", note)
    assert not seen
    import imported_late  # type: ignore[import-not-found]

    assert imported_late.value == 1 and seen == [1]
    when_imported("imported_late", note)
    assert seen == [1, 1]
    del sys.modules["imported_late"]


def test_tables_of_the_parser_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))
    text = "Y = X + 1;"
    made = parser.__wrapped__()
    wanted = list(made.lex(text))
    (kept,) = tmp_path.glob("grammar-*")
    loaded = parser.__wrapped__()
    assert list(loaded.lex(text)) == wanted and len(loaded.parse(text)) == 1
    kept.write_bytes(kept.read_bytes()[:1000])
    assert list(parser.__wrapped__().lex(text)) == wanted
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path / "file"))
    assert list(parser.__wrapped__().lex(text)) == wanted
