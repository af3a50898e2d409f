"""What people write who come from another language: each mistake is named, has its caret, and the hint says what to
write. Texts that a hint proposes are Tile."""

from __future__ import annotations

import re
import warnings

import pytest

import tilec
from tilec import errors
from tilec.errors import TileError
from tilec.language import parse
from tilec.language.grammar import parser
from tilec.language.hints.functions import IN_GALLERY
from tilec.language.hints.idioms import IDIOMS
from tilec.language.hints.tokens import WORDS

# class, text with « and » around what the caret marks, what the hint must say
CASES = [
    # the head of a function
    ("SyntaxMistake", "function (A[N]) -> «O» { O = A; }", "write `-> (O)`"),
    ("SyntaxMistake", "function (A) -> «O, P» { O = A; P = A; }", "write `-> (O, P)`"),
    ("SyntaxMistake", "«def» f(X): return X", "write `function f(A[N]) -> (O)"),
    ("SyntaxMistake", "«fn» f(X) -> (Y) { Y = X; }", "write `function"),
    ("SyntaxMistake", "function f(X) -> (Y) { «return» X; }", "write -> (X)"),
    ("SyntaxMistake", "function (X«: float32»[N]) -> (Y) { Y = X; }", "leave it out"),
    ("SyntaxMistake", "function (X[N]«: f16», W) -> (Y) { Y = X; }", "leave it out"),
    ("SyntaxMistake", "function («float »X[N]) -> (Y) { Y = X; }", "leave it out"),
    ("SyntaxMistake", "Y = X * «2.0f»", "write `2.0`"),
    ("SyntaxMistake", "Y = X * «1e-3f» + 1", "write `1e-3`"),
    ("SyntaxMistake", "Y = X * «10L»", "write `10`"),
    # statements
    ("SyntaxMistake", "«for» i in range(3): Y = X", "one statement says it for all"),
    ("SyntaxMistake", "«let» Y = X;", "write `Y = X`"),
    ("SyntaxMistake", "Z = X; «var» Y = Z;", "write `Y = Z`"),
    ("SyntaxMistake", "«let» y = X;", "write `Y = X`"),
    ("SyntaxMistake", "Y[i] = sum(X[i, j]), «j = 3»;", "write `j - 3 < 1`"),
    ("SyntaxMistake", "Y[i] = sum(X[i, j]) «where» j < 3", "write `Y[i] = sum(j < 3 ? X[i, j])`"),
    ("SyntaxMistake", "Y[i] = +(sin(X[i, j])) «if» j < 3", "write `Y[i] = +(j < 3 ? sin(X[i, j]))`"),
    ("SyntaxMistake", "Y = X «as» float32", "write `Y = float32(X)`"),
    ("SyntaxMistake", "Y«(»i) = X[i]", "write `Y[i] = ...`"),
    ("SyntaxMistake", "Y = X; «print»(Y);", "print it where the function is called"),
    ("SyntaxMistake", "«import» torch", "a list of assignments"),
    ("SyntaxMistake", "Y «:=» X;", "write `Y = X`"),
    ("SyntaxMistake", "Y[i : N] «<-» X[i];", "write `Y[i : N] = X[i]`"),
    ("SyntaxMistake", "Y[i : N] = X[i]  «Z»[i : N] = Y[i];", "write `; Z[i : N] = ...`"),
    ("SyntaxMistake", "Y = X «Z» = Y;", "write `; Z = ...`"),
    ("SyntaxMistake", "«/*» a comment */ Y = X;", "to the end of its line"),
    ("SyntaxMistake", "Y = X; «/*» a comment */", "to the end of its line"),
    # words for operators
    ("SyntaxMistake", "Y = A > 0 «and» B > 0;", "write `Y = A > 0 & B > 0`"),
    ("SyntaxMistake", "Y = A «or» B;", "write `Y = A | B`"),
    ("SyntaxMistake", "Y = A «xor» B;", "write `Y = A ^ B`"),
    ("SyntaxMistake", "Y = A «mod» 2;", "write `Y = A % 2`"),
    ("SyntaxMistake", "Y = A «is» 2;", "write `Y = A == 2`"),
    ("SyntaxMistake", "Y = A «is not» 2;", "write `Y = A != 2`"),
    ("SyntaxMistake", "Y = «not» A;", "write `Y = A == 0`"),
    ("NameMistake", "Y = «not» (A > 0);", "write `~(A > 0)`"),
    ("SyntaxMistake", "Y = «!»A;", "write `Y = A == 0`"),
    ("SyntaxMistake", "Y = A «in» B;", "any(A == B[k])"),
    ("SyntaxMistake", "Y = 1 «if» A > 0 else 0;", "write `Y = A > 0 ? 1 : 0`"),
    ("SyntaxMistake", "Y = «if» A > 0 then 1 else 0;", "write `Y = A > 0 ? 1 : 0`"),
    ("SyntaxMistake", "Y[i : N] = X[i] «if» i < 3;", "write `Y[i : N] = i < 3 ? X[i]`"),
    ("SyntaxMistake", "Y[i : N] = X[i], «where» i < 3;", "write `Y[i : N] = X[i], i < 3`"),
    ("SyntaxMistake", "Y = X «else»;", "write `condition ? value : other`"),
    # numbers and constants of other languages
    ("NameMistake", "Y = X + «0x10»;", "write `16`"),
    ("NameMistake", "Y[i] = X[i] * «0b101»;", "write `5`"),
    ("NameMistake", "Y = sum(«0o17» * X[i]);", "write `15`"),
    ("NameMistake", "Y = X * 1«j»;", "complex numbers are not supported"),
    ("AggregationMistake", "Y[i] = X[i + 2«j»];", "which aggregation?"),
    ("NameMistake", "Y = «e»^X;", "write `exp(X)`"),
    ("NameMistake", "Y[i] = «e»^(-X[i]) * 2;", "write `exp(-X[i])`"),
    ("NameMistake", "Y[i] = +(«e»^X[i, j]);", "write `exp(X[i, j])`"),
    ("NameMistake", "Y = «exp»^X;", "write `exp(...)`"),
    # signs of other languages
    ("SyntaxMistake", "C = A «@» B;", "C[i, j] = sum(A[i, k] * B[k, j])"),
    ("SyntaxMistake", "Y = A «**» 2;", "write `Y = pow(A, 2)`"),
    ("SyntaxMistake", "Y = A «&&» B;", "write `Y = A & B`"),
    ("SyntaxMistake", "Y = A «||» B;", "write `Y = A | B`"),
    ("SyntaxMistake", "Y = A «<>» B;", "write `Y = A != B`"),
    ("SyntaxMistake", "Y = A «===» B;", "write `Y = A == B`"),
    ("SyntaxMistake", "Y = A «!==» B;", "write `Y = A != B`"),
    ("SyntaxMistake", "Y = A «=>» B;", "write `Y = A >= B`"),
    ("SyntaxMistake", "Y[i] «=>» X[i];", "an assignment is written with `=`"),
    ("SyntaxMistake", "Y = A «=<» B;", "write `Y = A <= B`"),
    ("SyntaxMistake", "Y = A «≤» B;", "write `<=`"),
    ("SyntaxMistake", "Y = A «×» B;", "write `*`"),
    ("SyntaxMistake", "Y[i : N] = «Σ» X[i, j];", "write sum(...)"),
    ("SyntaxMistake", "Y = 1«_»000;", "write `Y = 1000`"),
    ("SyntaxMistake", "Y = A ^«;»", None),
    # modules, methods, attributes
    ("SyntaxMistake", "Y = torch«.»exp(X);", "write `Y = exp(X)`"),
    ("SyntaxMistake", "Y = torch«.nn.functional.»relu(X) + 1;", "write `Y = relu(X) + 1`"),
    ("SyntaxMistake", "Y = np«.»where(A > 0, A, B);", "write `Y = A > 0 ? A : B`"),
    ("SyntaxMistake", "Y = torch«.»sum(X, dim=1);", "write `Y[i] = sum(X[i, j])`"),
    ("SyntaxMistake", "Y = torch«.»fft(X);", "functions are named alone"),
    ("SyntaxMistake", "Y = X«.sum»(1);", "write `Y[i] = sum(X[i, j])`"),
    ("SyntaxMistake", "Y = X«.sum»(0);", "write `Y[j] = sum(X[i, j])`"),
    ("SyntaxMistake", "function (X[A, B, C]) -> (Y) { Y = X«.mean»(-1); }", "write `Y[i, j] = mean(X[i, j, k])`"),
    ("SyntaxMistake", "function (X[A, B, C]) -> (Y) { Y = X«.amax»(); }", "write `Y = max(X[i, j, k])`"),
    ("SyntaxMistake", "Y[b] = X[b, :]«.mean»();", "write `Y[b] = mean(X[b, j])`"),
    ("SyntaxMistake", "Y[b] = 2 * X[b]«.mean»() + 1;", "write `Y[b] = 2 * mean(X[b, j]) + 1`"),
    ("SyntaxMistake", "Y[j : N] = X[2*j, :]«.sum»();", "write `Y[j : N] = sum(X[2*j, k])`"),
    ("SyntaxMistake", "Y[b, c] = X[b, :, c]«.max»();", "write `Y[b, c] = max(X[b, j, c])`"),
    ("SyntaxMistake", "Y = X[b, :, :]«.sum»(1);", "write `Y[b, j] = sum(X[b, j, k])`"),
    ("SyntaxMistake", "Y[p, q] = X«.mean»(0);", "write `Y[p, q] = mean(X[i, p, q])`"),
    ("SyntaxMistake", "Y[c] = X«.sum»(dim=(0, 2));", "write `Y[c] = sum(X[i, c, k])`"),
    ("SyntaxMistake", "Y[n] = torch«.»sum(X[n], -1);", "write `Y[n] = sum(X[n, j])`"),
    ("SyntaxMistake", "Y[b] = X[b, 1:]«.mean»();", "as an argument: mean(X)"),
    ("SyntaxMistake", "Y[b] = X[b, :]«.relu»();", "as an argument: relu(X[b, j])"),
    ("SyntaxMistake", "Y[b, c] = X[b, c]«.exp»();", "write `Y[b, c] = exp(X[b, c])`"),
    ("SyntaxMistake", "C[i, j] = A[i, k] «@» B[k, j];", "C[i, j] = sum(A[i, k] * B[k, j])"),
    ("SyntaxMistake", "Y[i] = «not» X[i] > 0;", "write `Y[i] = ~(X[i] > 0)`"),
    ("SyntaxMistake", "Y[i] = sum(X[i, k])«[k]»;", "write `Y[i] = sum[k](X[i, k])`"),
    ("SyntaxMistake", "Y[i] = sum(«j in range(3)», X[i + j]);", "`sum[j](X[i + j]), j < 3`"),
    ("SyntaxMistake", "«Y[i], Z[i]» = X[i];", "write a statement for each"),
    ("SyntaxMistake", "Y[i] = X[i] «=» 0 ? 1 : 2;", "write `==`"),
    ("SyntaxMistake", "Y[i «=» X[i];", "write `]` before this `=`"),
    ("SyntaxMistake", "Y[«α»] = X[α];", "write `alpha`"),
    ("SyntaxMistake", "function X«[»N] -> Y { Y[i : N] = X[i]; }", "write function (X[N]) -> (Y) { ... }"),
    ("SyntaxMistake", "function (X[N]) -> (Y)«:» Y[i : N] = X[i];", "stand in braces"),
    ("SyntaxMistake", "function (X) -> (Y) { «function» g(A) -> (B) { B = A; } Y = X; }", "define it before this one"),
    ("UnboundIndex", "Y = argmax(«e» < 3 ? X[e] : -inf);", "`X[e]` bounds e only where the branch is taken"),
    ("UnboundIndex", "function (X[N]) -> (Y) { Y = argmax(«e» < 3 ? X[e] : -inf); }", "`..., e < N`"),
    ("SyntaxMistake", "C[p, k] = A «@» B;", "C[p, k] = sum(A[p, l] * B[l, k])"),
    ("SyntaxMistake", "Y = X«.exp»() * 2;", "write `Y = exp(X) * 2`"),
    ("SyntaxMistake", "Y = X«.float»();", "write `Y = float32(X)`"),
    ("SyntaxMistake", "Y = X«.to»(torch.float16);", "write `Y = float16(X)`"),
    ("SyntaxMistake", "Y = A«.T»;", "A[j, i] in the place of A[i, j]"),
    ("SyntaxMistake", "Y = X«.shape»;", "shape(X, 0), or name the dimensions"),
    ("SyntaxMistake", "Y[i : X«.shape»[1]] = X[i];", "shape(X, 1)"),
    ("SyntaxMistake", "Y[i : X«.size»(1)] = X[i];", "shape(X, 1)"),
    ("SyntaxMistake", "Y = X«.frob»;", "functions take the tensor as an argument"),
    # indices
    ("SyntaxMistake", "Y[«...»] = X[...];", "an index for each dimension"),
    ("SyntaxMistake", "Y[i, j : N, M] = X[i]«[»j];", "write `Y[i, j : N, M] = X[i, j]`"),
    ("SyntaxMistake", "Y = X[0«:»3];", "write `Y[i : 3] = X[i]`"),
    ("SyntaxMistake", "Y = X[2«:»N];", "write `Y[i : N - 2] = X[i + 2]`"),
    ("SyntaxMistake", "Y = X[«:», 0];", "as in X[i, 0]"),
    ("SyntaxMistake", "Y[b] = mean(X[b, «:»]);", "as in X[b, j]"),
    ("SyntaxMistake", "O[i : N] = A[i«//»2];", "(i - i % 2)/2"),
    ("SyntaxMistake", "O[i : N] = exp(A[i«//»2]) + 1;", "(i - i % 2)/2"),
    ("AffineMistake", "Y[i : N] = X[«floor»(i/2)];", "write `(i - i % 2)/2`"),
    ("AffineMistake", "Y[i : N] = X[«floor»((i + 1)/2)];", "write `((i + 1) - (i + 1) % 2)/2`"),
    ("AffineMistake", "Y[i : N] = X[«ceil»(i/2)];", "write `(i + -i % 2)/2`"),
    ("AffineMistake", "Y[i : N] = X[«floor»(i)];", "leave `floor` out"),
    ("AffineMistake", "Y[i : «floor»(N/2)] = X[i];", "write `N/2`"),
    ("AffineMistake", "Y[i : «n»] = X[i];", "a dimension begins with a capital: N"),
    # calls
    ("SyntaxMistake", "Y[i : N] = sum «X[i, j]»;", "write `Y[i : N] = sum(X[i, j])`"),
    ("SyntaxMistake", "Y[i] = sum(X[i, j] «for j»);", "write `Y[i] = sum(X[i, j])`"),
    ("SyntaxMistake", "Y[i] = sum(X[i, j] «for j in range(3)») + 1;", "write `Y[i] = sum(X[i, j]) + 1`"),
    ("SyntaxMistake", "Y = exp «X»;", "write `Y = exp(X)`"),
    ("SyntaxMistake", "Y[i] = exp«[»X[i]];", "write `Y[i] = exp(X[i])`"),
    ("SyntaxMistake", "Y = sum(X, «axis=1»);", "write `Y[i] = sum(X[i, j])`"),
    ("SyntaxMistake", "Y[a] = exp(sum(X, «axis=1»));", "write `Y[a] = exp(sum(X[a, j]))`"),
    ("ArityMistake", "Y[a : N] = «sum(X, 1)»;", "write `Y[a : N] = sum(X[a, j])`"),
    ("SyntaxMistake", "Y = max(X, «dim=(0, 1)»);", "write `Y = max(X[i, j])`"),
    ("SyntaxMistake", "Y = pow(X, «exponent=»2);", "give them by position"),
    ("ArityMistake", "Y = «sum(X, 1)»;", "write `Y[i] = sum(X[i, j])`"),
    ("NameMistake", "Y = «where»(A > 0, A, B) + 1;", "write `A > 0 ? A : B`"),
    ("NameMistake", "C = «dot»(A, B);", "write `C[i, j] = sum(A[i, k] * B[k, j])`"),
    ("NameMistake", "C = «matmul»(A, B);", "write `C[i, j] = sum(A[i, k] * B[k, j])`"),
    ("NameMistake", "Y = «softmax»(X, 1);", "write `Y[i, j] = exp(X[i, j] - max(X[i, k]))"),
    ("NameMistake", "Y = «square»(A + B);", "write `(A + B) * (A + B)`"),
    ("NameMistake", "Y = «log2»(A);", "write `log(A) / log(2)`"),
    ("NameMistake", "Y = «clip»(A, 0, 1);", "write `max(0, min(1, A))`"),
    ("NameMistake", "Y = «zeros»(3, 4);", "write `O[i, j : 3, 4] = 0.0`"),
    ("NameMistake", "Y[i] = «X»(i);", "X[i]"),
    ("NameMistake", "Y = A * «true»;", "comparisons give truth values"),
    ("SyntaxMistake", "Y = «einsum(\"ij,jk->ik\", A, B)»;", "write `Y[i, k] = sum(A[i, j] * B[j, k])`"),
    ("SyntaxMistake", "Y = «einsum('ij->ji', A)»;", "write `Y[j, i] = A[i, j]`"),
    ("SyntaxMistake", "Y = «einsum('i,i', A, B)»;", "write `Y = sum(A[i] * B[i])`"),
    ("SyntaxMistake", "Y = «einsum('...i->i', A)»;", "write the indices at the tensors"),
    ("SyntaxMistake", "«bij,bjk->bik»", "write `O[b, i, k] = sum(A[b, i, j] * B[b, j, k])`"),
    ("SyntaxMistake", "«b h w c -> b (h w) c»", "an index for each dimension"),
    ("SyntaxMistake", "Y = «\"abc\"»;", "stand at the tensors"),
    ("SyntaxMistake", "Y = «[»1, 2, 3];", "pass a tensor as an input"),
    # aggregations
    ("SyntaxMistake", "Y[i : N] = 0.5 * «+»(X[i, j]);", "write `Y[i : N] = 0.5 * sum(X[i, j])`"),
    ("SyntaxMistake", "Y[i : N] = B[i] + «>»(X[i, j]);", "write `Y[i : N] = B[i] + max(X[i, j])`"),
    ("SyntaxMistake", "Y[i : N] = -«+»(X[i, j]);", "write `Y[i : N] = -sum(X[i, j])`"),
    # notation of sums, loops and ranges
    ("SyntaxMistake", "Y[i] = X[i] + 1 «for i in range(N)»;", "write `Y[i] = X[i] + 1`"),
    ("SyntaxMistake", "Y = «[»x * 2 for x in X];", "one statement says it for all points"),
    ("SyntaxMistake", "Y = «lambda» x: x + 1;", "write `function f(A[N])"),
    ("SyntaxMistake", "Y = sum« over »i X[i];", "write `Y = sum[i](X[i])`"),
    ("SyntaxMistake", "Y = sum«{»i}(X[i]);", "write `Y = sum[i](X[i])`"),
    ("SyntaxMistake", "Y = sum(i)«(»X[i]);", "write `Y = sum[i](X[i])`"),
    ("SyntaxMistake", "Y = sum[i] «X[i]»;", "write `Y = sum[i](X[i])`"),
    ("NameMistake", "Y = «sum_i»(X[i]);", "write `sum[i](X[i])`"),
    ("SyntaxMistake", "Y[i «in» N] = X[i];", "write `Y[i : N] = X[i]`"),
    ("SyntaxMistake", "Y[i : N] = X[i], i «in» 0..3;", "write `Y[i : N] = X[i], i < 3`"),
    ("SyntaxMistake", "Y[i : «0..»N] = X[i];", "write `Y[i : N] = X[i]`"),
    ("SyntaxMistake", "Y[i«=»N] = X[i];", "write `Y[i : N] = X[i]`"),
    ("SyntaxMistake", "Y[i] = X«{»i};", "write `Y[i] = X[i]`"),
    ("SyntaxMistake", "Y = «|»X|;", "write `Y = abs(X)`"),
    ("SyntaxMistake", "Y = «||»X||;", "write `Y = sqrt(sum(X[i] * X[i]))`"),
    ("SyntaxMistake", "Y[i] = «\\sum»_j X[i, j];", "write `sum(...)`"),
    ("SyntaxMistake", "Y = A «\\cdot» B;", "write `*`"),
    ("SyntaxMistake", "Y = X«⊤»;", "X[j, i] in the place of X[i, j]"),
    ("SyntaxMistake", "Y = A «⊗» B;", "Y[i, j] = A[i] * B[j]"),
    ("SyntaxMistake", "Y = A «⋅» B;", "write `*`"),
    ("SyntaxMistake", "«--» a comment", "write `//`"),
    ("SyntaxMistake", "«Y, Z» = X, X;", "Y = ...; Z = ...;"),
    ("SyntaxMistake", "Y[i] = max(X[i, j], «axis=»1, keepdims=True);", "do not stand on the left"),
    ("SyntaxMistake", "Y = clamp(X, «min=»0);", "write `Y = max(0, X)`"),
    ("SyntaxMistake", "Y = X;«;»", "leave it out"),
    ("SyntaxMistake", "«{» Y = X; }", "the statements without braces"),
    ("SyntaxMistake", "X «+=» 1;", "write X1 = X + ..."),
    ("SyntaxMistake", "Y = +«X»;", "there is no unary `+`"),
    ("SyntaxMistake", "Y = X «over» Z;", None),
    ("SyntaxMistake", "function (X[«n»]) -> (Y) { Y = X; }", "write `N`"),
    ("SyntaxMistake", "Y[i : N] = X[i] «//» 2\nZ[i : N] = Y[i];", "a quotient is written with `/`"),
    # functions of other libraries
    ("SyntaxMistake", "Y = np«.»maximum(X, 0);", "write `Y = max(X, 0)`"),
    ("SyntaxMistake", "Y = X«.gather»(0, Ix);", "write `Y[i, j] = X[Ix[i, j], j]`"),
    ("SyntaxMistake", "Y = X«.unsqueeze»(0);", "write `Y[i, j : 1, N] = X[j]`"),
    ("SyntaxMistake", "Y = X«.view»(-1);", "write `Y = reshape(X, N*M)`"),
    ("NameMistake", "Y = «concat»(A, B);", "write `Y[i : N + M] = i < N ? A[i] : B[i - N]`"),
    ("NameMistake", "Y = «conv2d»(X, W);", "`tilec gallery convolution` prints one"),
    ("NameMistake", "Y = «sort»(X);", "compute it outside"),
    ("NameMistake", "Y = «range»(10);", "write `O[i : 10] = i`"),
    ("NameMistake", "Y[i, j : N, N] = «delta»(i, j);", "write `i == j`"),
    ("ArityMistake", "Y = «log(X, 2)»;", "log(X) / log(2)"),
    ("ArityMistake", "Y = «max(X, 0, 1)»;", "max(max(a, b), c)"),
    # brackets
    ("SyntaxMistake", "Y = exp(A«;»", "the `(` on line 1, column 8 is still open"),
]  # fmt: skip

STATEMENT = re.compile(r"[A-Z]\w*'?\s*(\[.*?\])?\s*=\s*[^=]")


def strip(marked: str) -> tuple[str, tuple[int, int]]:
    start = marked.index("«")
    return marked.replace("«", "").replace("»", ""), (start, marked.index("»") - 1)


def mistake(kind: str, source: str) -> TileError:
    with pytest.raises(TileError) as caught:
        parse(source)
    assert type(caught.value) is getattr(errors, kind), str(caught.value)
    return caught.value


@pytest.mark.parametrize("kind, marked, hint", CASES)
def test_case(kind: str, marked: str, hint: str | None) -> None:
    source, place = strip(marked)
    error = mistake(kind, source)
    assert error.span is not None and (error.span.start, error.span.stop) == place, str(error)
    assert hint is None or hint in (error.hint or ""), str(error)
    for text in re.findall(r"write `([^`]*)`", error.hint or ""):
        if STATEMENT.match(text) and "..." not in text:
            parse(text)


def test_every_idiom_has_a_case() -> None:
    texts = [str(mistake(kind, strip(marked)[0])) for kind, marked, _ in CASES]
    for idiom in IDIOMS:
        fixed = re.split(r"\{\w+\}", idiom.message)
        assert any(all(part in text for part in fixed) for text in texts), f"no case for: {idiom.message}"


def test_messages(golden) -> None:
    golden("language/idioms.txt", "\n".join(f"{k}: {mistake(k, strip(m)[0])}\n" for k, m, _ in CASES))


def test_every_token_has_a_word() -> None:
    """A token's name in the grammar never stands in a message."""
    assert {t.name for t in parser().terminals} - set(parser().lexer_conf.ignore) <= set(WORDS)


def test_a_long_line_is_looked_at_in_part() -> None:
    """Text of any length around a mistake costs next to nothing, and is not printed back."""
    for filler in ("x" * 50_000, " " * 50_000, "A[" * 10_000, "if " * 15_000, "a=" * 25_000, "(" * 250):
        error = mistake("SyntaxMistake", f"Y = {filler} @ B; {filler}")
        assert len(error.hint or "") < 400


def test_what_the_gallery_holds() -> None:
    from tilec import gallery

    assert set(IN_GALLERY.values()) <= set(gallery.names())


def test_a_quotient_that_began_a_comment() -> None:
    with pytest.warns(tilec.TileWarning, match="begins a comment, and the statement ends before it"):
        tilec.compile("Y = X // 2;")
    for text in (
        "Y = X; // 2;",
        "Y = X // twice, then some;",
        "Y[i : N] = X[i] // http://a.b/c\n",
        "# Y = X // 2;\nY = X;",
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tilec.compile(text)
