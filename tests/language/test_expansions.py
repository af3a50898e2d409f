"""What is expanded at parse: whole-tensor calls, tuples, softmax, crossentropy, calls of the source's functions."""

import pytest

from tilec.ir.verify import verify
from tilec.language import parse, show

EXPANSIONS = {
    # statements as written: statements as they come out
    "Y = gather(A + 1, Ix) * 2;": "Operand = A + 1; Gather = gather(Operand, Ix); Y = Gather * 2;",
    "Y = reshape(A, N, 2);": "Y = reshape(A, N, 2);",
    "Y = -reshape(reshape(A, N), shape(B));": (
        "Reshape = reshape(A, N); Reshape_1 = reshape(Reshape, shape(B)); Y = -Reshape_1;"
    ),
    "Y = simple_reduce(A * B, B);": "Operand = A * B; Y = simple_reduce(Operand, B);",
    "Y = scatter(A, Ix, B) + scatter(A, Ix, B);": (
        "Scatter = scatter(A, Ix, B); Scatter_1 = scatter(A, Ix, B); Y = Scatter + Scatter_1;"
    ),
    "Y = shape(A) + shape(A, 1) + shape(A + B);": (
        "Shape = shape(A); Operand = A + B; Shape_1 = shape(Operand); Y = Shape + shape(A, 1) + Shape_1;"
    ),
    "Y = index(A * 2, 1);": "Operand = A * 2; Y = index(Operand, 1);",
    "T = tuple(A, A + B); Y = element(T, 1) * element(T, 0);": "T_1 = A + B; Y = T_1 * A;",
    "Y = element(tuple(A, B + 1), 1);": "Y = B + 1;",
    "Operand = B; Y = index(A * 2, 1) + Operand;": "Operand = B; Operand_1 = A * 2; Y = index(Operand_1, 1) + Operand;",
    "Y = index(A * 2, 1); Operand = B;": "Operand_1 = A * 2; Y = index(Operand_1, 1); Operand = B;",
    "Y = builtin_softmax(A, N, M);": (
        "Maximum[i, 0 : N, 1] = >(A[i, j]); Exponential = exp(A - Maximum); "
        "Normalizer[i, 0 : N, 1] = +(Exponential[i, j]); Y = Exponential / Normalizer;"
    ),
    "Y = builtin_logsoftmax(A * 2, N, M);": (
        "Operand = A * 2; Maximum[i, 0 : N, 1] = >(Operand[i, j]); Exponential = exp(Operand - Maximum); "
        "Normalizer[i, 0 : N, 1] = +(Exponential[i, j]); Y = Operand - (Maximum + log(Normalizer));"
    ),
    "Y = builtin_binary_crossentropy(A, B, N * M);": (
        "Prediction = reverse_grad(A, -(1.0 / (N * M))); Y = -B * log(Prediction) - (1 - B) * log(1 - Prediction);"
    ),
    "Y = as_float(A, 64) + as_bool(B, 8);": "Y = float64(A) + bool(B);",
}


@pytest.mark.parametrize("written", EXPANSIONS)
def test_expansion(written):
    p = parse(f"function (A[N, M], B[N, M], Ix[K]) -> (Y) {{ {written} }}")
    verify(p)
    lines = [line.strip() for line in show(p).splitlines()[1:-1]]
    assert " ".join(lines) == EXPANSIONS[written]
    assert parse(show(p)) == p


FUNCTIONS = """
function conv(I[N, L, C], K[M, C, D]) -> (O) { O[n, x, d : N, L - M + 1, D] = +(I[n, x + k, c] * K[k, c, d]); }
function scale(X, S) -> (Y) { Z = X * S; Y = relu(Z); }
function resize(A[N], P) -> (B) { B[i : P] = A[i]; }
function same3(A[3]) -> (A) {}
function gated(X, G[]) -> (Y) { Y[i : shape(X, 0)] = X[i] * G default X; }
function gate(X, S[]) -> (Y) { Z = X * sigmoid(S); Y = Z * Z; }
function steps(B[T]) -> (H) { H[t : T] = H[t - 1] + B[t]; }
"""
CALLS = {
    "O = conv(A, K);": "O[n, x, d : B, L - 3 + 1, D] = +(A[n, x + k, c] * K[k, c, d]);",
    "P = A * 2; O = conv(P, K) + 1;": (
        "P = A * 2; Conv_C = same(shape(P, 2), C); "
        "Conv_O[n, x, d : shape(P, 0), shape(P, 1) - 3 + 1, D] = +(P[n, x + k, c] * K[k, c, d]); O = Conv_O + 1;"
    ),
    "O = scale(scale(A, 2), B);": (
        "Argument = 2; Scale_Z = A * Argument; Scale_Y = relu(Scale_Z); Scale_Z_1 = Scale_Y * B; O = relu(Scale_Z_1);"
    ),
    "O = resize(V, 2*D) + resize(V, D);": (
        "Argument = 2 * D; Resize_B[i : Argument] = V[i]; Resize_B_1[i : D] = V[i]; O = Resize_B + Resize_B_1;"
    ),
    "O = same3(V);": "Same3_A_0 = same(D, 3); O = V;",
    "O = gated(V, S);": "O[i : shape(V, 0)] = V[i] * S default V;",
    "O[i : D] = +(gate(V[i] + 1, K[j, k, i]) * 2);": (
        "O[i : D] = +((V[i] + 1) * sigmoid(K[j, k, i]) * ((V[i] + 1) * sigmoid(K[j, k, i])) * 2);"
    ),
    "O = sum(gate(V[i], V[i] > 0 ? V[i]));": ("O = sum(V[i] > 0 ? V[i] * sigmoid(V[i]) * (V[i] * sigmoid(V[i])));"),
    "O = steps(V);": "O[t : D] = O[t - 1] + V[t];",
}


@pytest.mark.parametrize("written", CALLS)
def test_call_of_a_function_of_the_source(written):
    p = parse(f"{FUNCTIONS} function main(A[B, L, C], K[3, C, D], V[D], S[]) -> (O) {{ {written} }}")
    verify(p)
    lines = [line.strip() for line in show(p).splitlines()[1:-1]]
    assert " ".join(lines) == CALLS[written]
    assert parse(show(p)) == p
