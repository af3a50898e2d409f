"""The grammar is LALR(1) without conflicts, and is found in a checkout and in an installed package."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import lark
import pytest
from support.effort import counted

from tilec import gallery
from tilec.language import parse
from tilec.language.grammar import grammar_text, parse_text, parser

ROOT = Path(__file__).parents[2]


def conflicts(grammar: str, start: str) -> list[str]:
    """What Lark says of the conflicts it settles silently: shift/reduce on its log, reduce/reduce as an error."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    handler, level = Collect(), lark.logger.level
    lark.logger.addHandler(handler)
    lark.logger.setLevel(logging.DEBUG)
    try:
        lark.Lark(grammar, parser="lalr", lexer="basic", start=start, debug=True)
    except lark.exceptions.GrammarError as error:
        messages.append(str(error))
    finally:
        lark.logger.removeHandler(handler)
        lark.logger.setLevel(level)
    return [m for m in messages if "conflict" in m.lower() or "collision" in m.lower()]


def test_no_conflicts():
    assert conflicts(grammar_text(), "source") == []


def test_a_dangling_colon_would_be_noticed():
    """The same check on the grammar with its two kinds of conditional made one."""
    text = grammar_text()
    ambiguous = text.replace("QMARK full COLON expr", "QMARK expr COLON expr").replace("COLON full ", "COLON expr ")
    assert ambiguous != text
    assert conflicts(ambiguous, "source")


@pytest.mark.parametrize("rule", ["start: a | b\na: X\nb: X\nX: /x/", "start: start start | X\nX: /x/"])
def test_conflicts_are_noticed(rule):
    assert conflicts(rule, "start")


def test_found_beside_and_inside_the_package(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tilec.language import grammar\n"
        "print(grammar.__file__, len(grammar.grammar_text()))"
    )
    for place in ("grammar", "tilec/grammar"):
        root = tmp_path / place.replace("/", "-")
        for package in ("errors", "language", "ir"):
            shutil.copytree(ROOT / "tilec" / package, root / "tilec" / package)
        shutil.copy(ROOT / "tilec" / "knobs.py", root / "tilec")
        (root / "tilec" / "__init__.py").write_text("")
        shutil.copytree(ROOT / "grammar", root / place)
        run = subprocess.run([sys.executable, "-I", "-c", program, str(root)], capture_output=True, text=True)
        file, length = run.stdout.split()
        assert Path(file).is_relative_to(root), run.stderr
        assert length == str(len(grammar_text()))


def test_the_convolution_parses_with_little_effort():
    source = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
        O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
    }"""
    parse(source)  # loads the grammar
    assert counted(lambda: parse(source))[1] < 15_000  # some 3 ms


def test_functions_are_those_that_lark_builds():
    """Of texts that it parses; those that it does not, it refuses itself."""
    for text in (gallery.entry(name).source for name in gallery.names()):
        assert parse_text(text) == parser().parse(text)
