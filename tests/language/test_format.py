"""Layout: the text's tokens and comments, in one form that formatting leaves alone."""

from __future__ import annotations

import random

import pytest
from support.scale import scaled
from support.texts import SOURCES, mutated

from tilec.cli import main
from tilec.errors import SyntaxMistake, TileError
from tilec.language import parse, show
from tilec.language.format import COMMENT, format_source
from tilec.language.grammar import tokens

BEFORE = """// A convolution.
# Second line.
function conv( I[N,H,W , CI],K[KH,KW,CI,CO] )->(O){   // the head


   O[n,y,x,co:N,H/3, W/3,CO]=+(I[n,3*y+2 * j,3*x+2*i,ci]*K[j,i,ci,co]) ,j<  3*N , -i+1<2 ;   // strides
// on a line of its own
      P=-O*2+ -3 ; [[kernel(3)]] Q[i : N]=>(P[2i ,~ 0]==O[i]?O[i]: -1)default P   no_defract;


      H[t , i : T, D] = relu(B[t, i] + H[t - 1, (i - 1) % D]) + relu(A_name_of_some_length[t, i])   // why
          + sum(A[k] // inner
            * B[k])   init H0[i];
}
function g( ) -> (X){ }
// the end
"""
AFTER = """// A convolution.
# Second line.
function conv(I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {  // the head
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]), j < 3*N, -i + 1 < 2;  // strides
    // on a line of its own
    P = -O * 2 + -3;
    [[kernel(3)]] Q[i : N] = >(P[2i, ~0] == O[i] ? O[i] : -1) default P no_defract;

    H[t, i : T, D] = relu(B[t, i] + H[t - 1, (i - 1) % D]) + relu(A_name_of_some_length[t, i])  // why
        + sum(A[k]  // inner
        * B[k]) init H0[i];
}

function g() -> (X) {}
// the end
"""  # noqa: E501
ROWS = {
    "Y=X;Z=Y": "Y = X;\nZ = Y\n",
    "O[ : ]=+(A[k])": "O[ : ] = +(A[k])\n",
    "O[] =   <(A[k])": "O[] = <(A[k])\n",
    "O[i:N]= =(A[i])": "O[i : N] = =(A[i])\n",
    "Y=(A+B)*(C - -D)": "Y = (A + B) * (C - -D)\n",
    "Y=a?-b:(c?d:e)": "Y = a ? -b : (c ? d : e)\n",
    "A=B<-C": "A = B < -C\n",
    "Y[i:N]=X[2*-i,i%2,Ix[i]/2]": "Y[i : N] = X[2*-i, i % 2, Ix[i]/2]\n",
    "Y[i:N]=f(X[i],2*i)": "Y[i : N] = f(X[i], 2 * i)\n",
    "Y\n[i]\n=\nX[i]": "Y[i] = X[i]\n",
    "\n\n\nY=X\n\n\n\nZ=Y": None,  # two statements without a semicolon are no Tile
}


def test_a_whole_source() -> None:
    assert format_source(BEFORE) == AFTER
    assert format_source(AFTER) == AFTER


@pytest.mark.parametrize("text", ROWS)
def test_rows(text: str) -> None:
    wanted = ROWS[text]
    if wanted is None:
        with pytest.raises(SyntaxMistake):
            format_source(text)
        return
    assert format_source(text) == wanted and format_source(wanted) == wanted


def test_long_statements_keep_their_breaks() -> None:
    long = "Y[i : N] =\n" + "".join(f"  + A{k}[i] *\n B{k}[i]" for k in range(12))[4:] + ";"
    text = format_source(long)
    assert text.count("\n") == long.count("\n") + 1 and format_source(text) == text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_mutated_texts() -> None:
    """Whatever parses keeps its meaning; what is formatted stays; canonical text is formatted."""
    seen = 0
    for seed in range(400):
        r = random.Random(seed)
        text = mutated(r, r.choice(SOURCES)[0])
        try:
            program = parse(text)
        except TileError:
            continue
        seen += 1
        once = format_source(text)
        assert format_source(once) == once and parse(once) == program
        assert format_source(show(program)) == show(program)
    assert seen > 50


def sprinkled(r: random.Random, source: str) -> tuple[str, list[str]]:
    """The tokens of a text with comments and white space of any kind between them, and the comments."""
    text, comments, place, often = "", [], 0, r.random()
    for number, token in enumerate(tokens(source)):
        gap = source[place : token.start_pos]
        if r.random() < 0.02 + 0.12 * often:
            comments.append(r.choice(["//", "#", "// "]) + r.choice([f"{number}", "; } ] // x", "é𝔸", ""]))
            gap = r.choice([" ", "", "\n", "\n\n  "]) + comments[-1] + r.choice([" ", "\t", ""]) + "\n"
            gap += r.choice(["", " ", "\n", "\n\n\n", "\t"])
        elif r.random() < 0.2 * often:
            gap = r.choice(["\n", " ", "\n\n", "\t", "\r\n", " \n "])
        text += gap + str(token)
        place = token.end_pos
    return text + r.choice(["", "\n", "  \n\n"]), [c.rstrip() for c in comments]


def test_comments_anywhere() -> None:
    """Every comment is kept, in order; the program is the same; formatting again changes nothing."""
    seen = 0
    for seed in range(scaled(200)):
        r = random.Random(seed)
        source = COMMENT.sub("", mutated(r, r.choice(SOURCES)[0]) if seed % 2 else r.choice(SOURCES)[0])
        text, comments = sprinkled(r, source)
        try:
            program = parse(source)
        except TileError:
            continue
        if list(map(str, tokens(text))) != list(map(str, tokens(source))):
            continue  # without a gap a comment's sign may have joined a quotient's
        seen += len(comments)
        once = format_source(text)
        assert format_source(once) == once and parse(once) == program
        assert COMMENT.findall(once) == comments, text
        assert not any(line != line.rstrip() for line in once.split("\n")) and "\t" not in COMMENT.sub("", once)
    assert seen > 100


def test_command(tmp_path, capsys, monkeypatch) -> None:
    path, good = tmp_path / "a.tile", tmp_path / "b.tile"
    path.write_text(BEFORE)
    good.write_text(AFTER)
    assert main(["fmt", "--check", str(path), str(good)]) == 1
    assert capsys.readouterr().out == f"{path}: would be formatted\n" and path.read_text() == BEFORE
    assert main(["fmt", "--diff", str(path)]) == 0
    assert "+function g() -> (X) {}" in capsys.readouterr().out and path.read_text() == BEFORE
    assert main(["fmt", str(path), str(good)]) == 0
    assert capsys.readouterr().out == f"{path}: formatted\n" and path.read_text() == AFTER
    assert main(["fmt", "-e", "Y=X"]) == 0
    assert capsys.readouterr().out == "Y = X\n"
    path.write_text("Y = X +")
    assert main(["fmt", str(path), str(good)]) == 1
    assert f"{path}:1:8: " in capsys.readouterr().err and path.read_text() == "Y = X +"


def test_a_comment_before_a_closing_brace_is_inside() -> None:
    source = "function (X) -> (Y) {\n    Y = X;\n    // the end\n}\n"
    assert format_source(source) == source
