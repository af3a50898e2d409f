"""Sources, and what mutations make of them."""

from __future__ import annotations

import random

from tilec.language.grammar import tokens

# what is mutated, and shapes of its inputs (an integer is itself)
SOURCES: tuple[tuple[str, dict[str, tuple[int, ...] | int]], ...] = (
    (
        "function (I[N, H, C], K[M, C, D]) -> (O) { O[n, y, d : N, H/2, D] = +(I[n, 2*y + j, c] * K[j, c, d]); }",
        {"I": (2, 5, 2), "K": (3, 2, 2)},
    ),
    ("C[i, j] = +(A[i, k] * B[k, j]), k < 3; Y = tanh(C) + 1;", {"A": (3, 4), "B": (4, 2)}),
    ("Y[i : N] = tanh(sum(W[i, j] * H[j]) + B[i]), j < 3 default B;", {"N": 3, "W": (3, 4), "H": (4,), "B": (3,)}),
    ("function (A[N]) -> (O) { P = max(0, N - 1)/2; O[i : N] = pad(A[i - P], 0.5) + A[i]; }", {"A": (5,)}),
    ("H[t, i : 4, 3] = relu(B[t, i] + H[t - 1, (i - 1) % 3]) init H0[i];", {"B": (4, 3), "H0": (3,)}),
    ("Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])));", {"X": (3, 4)}),
    ("O[Ix[k], j : 4, 2] = +(U[k, j]); P[i : 3] = argmax(U[i, j]);", {"Ix": (3,), "U": (3, 2)}),
    ("Y = rand(S) < 0.5 ? 0 : X / 2; Z[i : 3] = >(Y[i, j] == X[i, j] ? X[i, j]);", {"S": 3, "X": (3, 2)}),
    (
        "S[i : N] = +(X[k]), i - k < N; M[n : N/2] = mean(S[2*n + j]), j < 2; R = reshape(M, 2, 1) * X;",
        {"N": 4, "X": (4,)},
    ),
    (
        "function f(A) -> (B) { B = A * A; } function g(X[N]) -> (Y) { Y[i : N] = prod(f(X[i - j])), j < 2; }",
        {"X": (4,)},
    ),
)  # fmt: skip
ANY = (
    "N M 0 1 2 3 7 -1 0.5 1e30 i j k X A ( ) [ ] { } , ; : ? = == < > <= >= + - * / % & | ^ ~ << >> sum max min prod "
    "mean argmax logsumexp any pad clamp in exp log abs rand cond float16 int8 index shape reshape gather default init "
    "no_defract function -> A[i] X[i] [i] : 0 (i) , i < 2 , j < 3 tuple element 1/2 2*i -i i+1 (i)%2 \n inf nan [j]"
).split(" ")
ALIKE = (  # what takes the place of a token most often: another of its kind
    "0 1 2 3 4 7 0.5 -1 1e30 inf 2*i N (i+1) (j) 1/2".split(),
    "i j k n t (i+1) 2*j -i 0 (i-1) i/2 (i)%3 abs(i) min(i,2) Ix[i]".split(),
    "+ - * / % == != < > <= >= & | ^ << >>".split(),
    "sum max min prod mean argmax argmin logsumexp any all".split(),
    "exp log abs tanh relu floor sign sqrt float16 int8 int64 bool".split(),
)


def mutated(r: random.Random, text: str) -> str:
    """The text with one to three pieces replaced, doubled, exchanged or taken away."""
    words = [str(t) for t in tokens(text)]
    names = sorted({w for w in words if w[0].isupper()})
    kinds = (*ALIKE, names)
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        alike = [(at, kind) for at, word in enumerate(words) for kind in kinds if word in kind]
        if alike and r.random() < 0.7:
            at, kind = r.choice(alike)
            words[at] = r.choice(kind)
            continue
        at = r.randrange(len(words))
        match r.randrange(5):
            case 0:
                del words[at : at + r.choice((1, 1, 2))]
            case 1:
                words.insert(at, r.choice(words))
            case 2:
                words.insert(at, r.choice(ANY))
            case 3:
                other = r.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 4:
                words[at] = r.choice(ANY)
        words = words or [";"]
    return " ".join(words)
