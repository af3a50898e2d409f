"""Highlighting is in step with the grammar: the same tokens, each of its kind, in Pygments and in editors."""

from __future__ import annotations

import json
import random
import re

from lark.lexer import PatternStr
from support.texts import SOURCES, mutated

from tilec.display.highlight import FILE, KEYWORDS, OPERATOR_TOKENS, PUNCTUATION, TileLexer, textmate
from tilec.language.grammar import parser, tokens

TEXT = """// a comment
function conv'(I[N, H], K[3, 3]) -> (O') {  # another
    [[kernel(3)]] O'[y, x : H/3, 2*H] = +(I[3*y + 2i, x] * K[i, 0] ? .5 : 1.e-3), i < 2 default I no_defract;
    S = sum(O'[i, j]) + max(1, inf) * f(S) - logsumexp[i](pi) != functional | init_ & initial << 3 >> ~2 <= 4 >= nan;
}
"""
# kinds of Lark's terminals -> what Pygments may call them
KINDS = {
    "UPPER": {"Token.Name.Class", "Token.Name.Function"},
    "LOWER": {"Token.Name.Variable", "Token.Name.Function", "Token.Name.Builtin", "Token.Keyword.Constant"},
    "INT": {"Token.Literal.Number.Integer"},
    "FLOAT": {"Token.Literal.Number.Float"},
}


def texts() -> list[str]:
    found = [TEXT, *(source for source, _ in SOURCES)]
    for seed in range(100):
        r = random.Random(seed)
        found.append(mutated(r, r.choice(SOURCES)[0]))
    return found


def test_every_word_and_sign_of_the_grammar() -> None:
    """A terminal that the grammar gains fails here until highlighting has it."""
    fixed = {t.pattern.value for t in parser().terminals if isinstance(t.pattern, PatternStr)}
    assert fixed == {*KEYWORDS, *OPERATOR_TOKENS, *PUNCTUATION}
    patterns = {t.name for t in parser().terminals if not isinstance(t.pattern, PatternStr)}
    assert patterns - set(parser().lexer_conf.ignore) == {*KINDS}


def test_pygments_has_the_grammars_tokens() -> None:
    for text in texts():
        mine = [
            (str(kind), value)
            for _, kind, value in TileLexer(ensurenl=False, stripnl=False).get_tokens_unprocessed(text)
        ]
        shown = [t for t in mine if t[0] not in ("Token.Text.Whitespace", "Token.Comment.Single")]
        theirs = tokens(text)
        assert [value for _, value in shown] == list(map(str, theirs)), text
        assert "".join(value for _, value in mine) == text
        for (kind, value), token in zip(shown, theirs, strict=True):
            wanted = KINDS.get(token.type, {"Token.Keyword", "Token.Operator", "Token.Punctuation"})
            assert kind in wanted and (kind == "Token.Keyword") == (value in KEYWORDS), (kind, token.type, value)


def test_textmate_has_the_grammars_tokens() -> None:
    patterns = [re.compile(rule["match"]) for rule in json.loads(FILE.read_text())["patterns"]]
    for text in texts():
        found, place = [], 0
        while place < len(text):
            match = next((m for p in patterns if (m := p.match(text, place)) and m[0]), None)
            if match is not None and not match[0].startswith(("//", "#")):
                found.append(match[0])
            place = match.end() if match is not None else place + 1
        assert found == list(map(str, tokens(text))), text


def test_the_editors_file_is_what_the_rules_give() -> None:
    assert json.loads(FILE.read_text()) == textmate(), "python -m tilec.display.highlight writes it anew"
    folder = FILE.parents[1]
    package = json.loads((folder / "package.json").read_text())
    assert (folder / package["contributes"]["grammars"][0]["path"]).samefile(FILE)
    assert (folder / package["contributes"]["languages"][0]["configuration"]).is_file()


def test_aggregations_and_functions_stand_out() -> None:
    kinds = {value: str(kind) for _, kind, value in TileLexer().get_tokens_unprocessed(TEXT)}
    assert kinds["sum"] == kinds["logsumexp"] == "Token.Name.Builtin" and kinds["f"] == "Token.Name.Function"
    assert kinds["functional"] == kinds["init_"] == "Token.Name.Variable"
    assert kinds["// a comment"] == "Token.Comment.Single" and kinds["pi"] == kinds["inf"] == "Token.Keyword.Constant"
