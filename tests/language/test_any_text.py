"""Any text either parses to a program that verifies and prints, or ends in a TileError with a place in the text."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.scale import scaled

from tilec.errors import InternalMistake, TileError
from tilec.ir.program import Program
from tilec.ir.verify import verify
from tilec.language import parse, show

TOKENS = (
    "function default init no_defract A B N Y i j k sum max argmax logsumexp mean in pad clamp shape index reshape "
    "gather tuple element exp cond rand as_float builtin_softmax float32 0 1 2 3.5 1e9 ( ) [ ] { } [[ ]] , ; : ? = == "
    "!= < > <= >= + - * / % & | ^ ~ << >> -> A[i] B[i,j] Y[i:N] = = +( ) //x\n # $ ' é \x00"
).split(" ")


SOURCES = [
    "function (I[N, H, C], K[M, C, D]) -> (O) { O[n, y, d : N, H/3, D] = +(I[n, 3*y + 2*j, c] * K[j, c, d]); }",
    "O[i, j] = +(A[i, k] * B[k, j]), k < 3; Y = tanh(O) + 1;",
    "function (W[N, M], H[M], B[N]) -> (Y) { Y[i : N] = tanh(sum(W[i, j] * H[j]) + B[i]), j < 3, i < 2 default B; }",
    "function (A[N]) -> (O) { P = max(0, N - 1)/2; O[i : N] = pad(A[i - P], 0.5) + (A[i] > 0 ? in(A[i + 1])); }",
    "H[t, i : T, D] = relu(B[t, i] + H[t - 1, (i - 1) % D]) init H0[i];",
    "function f(A[N], S) -> (B) { B = A * S; } "
    "function g(A, Ix) -> (B, C) { C = f(reshape(A, 3), 2); B = gather(C, Ix); }",
    "function (A[N, M]) -> (R, S) { T = tuple(A, A + 1); R = element(T, 1); S = builtin_softmax(R, N, M) ? 1 : 2; }",
    "[[a(b)]] O[Ix[k], 2*k : V, 4] = >(A[k] == B[k] ? C[clamp(k, 0, 3)]) no_defract;",
]


def check(text: str) -> None:
    try:
        p = parse(text)
    except TileError as error:
        assert not isinstance(error, InternalMistake)
        assert error.span is None or 0 <= error.span.start <= len(text)
        assert error.span is None or "^" in str(error)
        return
    assert isinstance(p, Program)
    verify(p)
    assert parse(show(p)) == p


@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.sampled_from(["", " "]))
@settings(max_examples=scaled(250))
def test_tokens_in_any_order(tokens, between):
    check(between.join(tokens))


@given(st.text(max_size=40))
@settings(max_examples=scaled(100))
def test_any_characters(text):
    check(text)


@st.composite
def mutated(draw):
    """A valid source with a few pieces replaced, doubled, swapped or taken away."""
    pieces = draw(st.sampled_from(SOURCES)).replace("(", " ( ").replace(")", " ) ")
    for mark in "[],;:?=*+-/":
        pieces = pieces.replace(mark, f" {mark} ")
    words = pieces.split(" ")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(words) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                del words[at : at + draw(st.integers(1, 3))]
            case 1:
                words.insert(at, words[at])
            case 2:
                words.insert(at, draw(st.sampled_from(TOKENS)))
            case 3:
                other = draw(st.integers(0, len(words) - 1))
                words[at], words[other] = words[other], words[at]
            case 4:
                words[at] = draw(st.sampled_from(TOKENS))
        words = words or [""]
    return " ".join(words)


@given(mutated())
@settings(max_examples=scaled(400))
def test_mutated_programs(text):
    check(text)


@given(st.sampled_from(SOURCES), st.integers(0, 400), st.integers(0, 3), st.text(max_size=2))
@settings(max_examples=scaled(150))
def test_mutated_characters(source, at, width, text):
    check(source[:at] + text + source[at + width :])


@given(st.sampled_from(SOURCES), st.integers(0, 400))
@settings(max_examples=scaled(100))
def test_cut_short(source, at):
    check(source[:at])
