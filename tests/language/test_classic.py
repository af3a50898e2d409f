"""Programs in the forms that PlaidML v0 users write, accepted as they are."""

import pytest

from tilec.ir.verify import verify
from tilec.language import parse, show

PROGRAMS = {
    "matmul": "function (A[M, L], B[L, N]) -> (C) { C[i, j: M, N] = +(A[i, k] * B[k, j]); }",
    "no blanks": "function(A[M,L],B[L,N])->(C){C[i,j:M,N]=+(A[i,k]*B[k,j]);}",
    "global minimum": "function (I[X, Y, Z]) -> (O) { Neg = -I; O_Neg[] = >(Neg[x, y, z]); O = -O_Neg; }",
    "mean": "function (I[X, Y]) -> (O) { S[y: Y] = +(I[x, y]); O = S / X; }",
    "max pool": "function (I[N]) -> (O) { O[i: N/2] = >(I[2*i + j]), j < 2; }",
    "rounded up": "function (I[N]) -> (O) { O[i: (N + 1)/2] = >(I[2*i + j]), j < 2; }",
    "skipping": "function (I[N, M]) -> (O) { O[2*n: N] = +(I[2*n, m]); }",
    "cumulative sum": "function (I[N]) -> (O) { O[i: N] = +(I[i - j]), j < N; }",
    "convolution": (
        "function (I[N, L, CI], K[LK, CI, CO]) -> (O) {\n"
        "    O[n, x, co: N, L - LK + 1, CO] = +(I[n, x + k, ci] * K[k, ci, co]);\n}"
    ),
    "dilated": (
        "function (I[N, Lx, Ly, CI], K[LKx, LKy, CI, CO]) -> (O) { O[n, x, y, co: N, Lx - 2 * (LKx - 1), Ly - 3 * "
        "(LKy - 1), CO] = +(I[n, x + 2 * kx, y + 3 * ky, ci] * K[kx, ky, ci, co]); }"
    ),
    "same padding": (
        "function (I[N, L, CI], K[LK, CI, CO]) -> (O) {\n"
        "    O[n, x, co : N, L, CO] = +(I[n, x + k - LK/2, ci] * K[k, ci, co]);\n}"
    ),
    "grouped": (
        "function (I[N, X, G, GCI], K[XK, G, GCI, GCO]) -> (O) {\n"
        "    O[n, x, g, gco: N, X, G, GCO] = +(I[n, x + k - XK/2, g, gci] * K[k, g, gci, gco]);\n}"
    ),
    "hard maximum": (
        "function (I[X, Y]) -> (O) { MAXX[x : X] = >(I[x, y]); MAX[x, y : X, Y] = =(MAXX[x]); "
        "O = (MAX == I ? 1.0 : 0.0); }"
    ),
    "one hot": "function (Ix[], Count[C]) -> (O) { O[i : C] = +(Ix[] == Count[i] ? Count[i]); }",
    "where equal": "function (A[N], B[M], C[M]) -> (O) { O[i : N] = >(A[i] == B[j] ? C[j]); }",
    "equal": "function (A[N], B[N]) -> (O) { O[i : N] = *(A[i] == B[i]); }",
    "minimum of sums": "function (D[N, N]) -> (O) { O[i, j : N, N] = <(D[i, k] + D[k, j]); }",
    "concatenation": (
        "function (A[N, M], B[L, M]) -> (O) { OA[n, m : N + L, M] = =(A[n, m]); "
        "OB[n + N, m : N + L, M] = =(B[n, m]); O = OA + OB; }"
    ),
    "default": "function (A[N], P[M]) -> (O) { O[i + 1 : M] = =(A[i]) default P; }",
    "no defract": "function (A[N]) -> (O) { O[3*i + j : 3*N] = +(A[i]), j < 3 no_defract; }",
    "repeated": "function (A[N, M]) -> (O) { O[3*n + k, m : 3*N, M] = =(A[n, m]), k < 3; }",
    "reversed": "function (A[N]) -> (O) { O[N - 1 - i : N] = =(A[i]); }",
    "every third": "function (A[N]) -> (O) { O[i : (N + 2)/3] = =(A[3*i]); }",
    "without an operator": "function (A[N]) -> (O) { O[i : N/2] = +(A[2i]); }",
    "rank zero": "function (X[], Y[N]) -> (O) { O[i : N] = +(X[] * Y[i]); }",
    "colon alone": "function (A[N]) -> (O) { O[ : ] = +(A[i]); }",
    "leak": "function (I[D], Leak) -> (O) { O = (I < 0 ? Leak * I : I); }",
    "clip": "function (I, LO, HI) -> (O) { M = (I < HI ? I : HI); O = (M < LO ? LO : M); }",
    "flatten": "function (I[N0, N1]) -> (O) { O = reshape(I, N0*N1); }",
    "expand": "function (I[N0, N1]) -> (O) { O = reshape(I, N0, 1, N1); }",
    "tuples": (
        "function (A[I, K], B[K, J]) -> (O) { T = tuple(A, B); C = element(T, 0); D = element(T, 1); "
        "O[i, j : I, J] = +(C[i, k] * D[k, j]); }"
    ),
    "attributes": "function (A[N]) -> (O) { [[hello(world)]] O[i : N] = +(A[i]); }",
    "cast": "function (I) -> (O) { O = as_float(as_int(I, 32), 64); }",
    "primes in names": "function (A'[N]) -> (O') { O'[i' : N] = +(A'[i']); }",
    "two constraints": "function (A[X], B[X]) -> (O) { O[] = +(A[x] * B[y]), x+ y< 9, x < 2; }",
    "rational": "function (I[N, N], J[N]) -> (O) { O[i/5+j : N] = +(I[i/3+j,i/2]*J[i/18]); }",
    "divided sum": "function (A[N]) -> (O) { O[x : N] = +(A[(x/3 - 1)/5 + 4]); }",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_accepted(name):
    p = parse(PROGRAMS[name])
    verify(p)
    assert parse(show(p)) == p


def test_tuple_elements_are_the_tensors():
    p = parse(PROGRAMS["tuples"])
    assert [s.output for s in p.statements] == ["C", "D", "O"]
