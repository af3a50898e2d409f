"""Programs that random testing, or reading, once found to go wrong at some stage: source and inputs."""

import numpy as np

F = np.arange(1.0, 7.0)
ONE = np.array(2.0)
IX = np.arange(6)

FOUND = {
    "float32 on the way to a result in float64": (
        "function (A[3]) -> (T) { L[] = logsumexp(q == q ? A[0]), q < 2;"
        " T[i : 3] = 3 < 2 ? A[i] : L[] * max(0.5, int64(A[i])); }",
        [np.array([1.1534264, 1.0, 6.0])],
    ),
    "a recurrence whose time turns in a read that is never inside": (
        "function (A[4]) -> (H) { H[t, i, j : 3, 4, 1] = H[(t + 1) % 3, i, j - 1] + H[t - 1, i, j] init A[t + 1]; }",
        [np.arange(4.0)],
    ),
    "a sum over a gather from nothing": (
        "function (A[N, 2], I[M, 3]) -> (T) { G = gather(A, I); T[] = +(exp(G[i, j, k])); }",
        [np.zeros((0, 2)), IX[:3].reshape(1, 3)],
    ),
    "a logsumexp over a gather that is partly outside": (
        "function (A[N, 2], I[M], B[M]) -> (T) { G = gather(A, I); T[] = logsumexp(max(G[i, k] * B[i], 0.5)); }",
        [F.reshape(3, 2), IX, F],
    ),
    "a maximum over elements that nothing writes": (
        "function (A[N]) -> (T) { U[i : N + 2] = -A[i + 1]; T[] = >(U[i] - 1); }",
        [F],
    ),
    "a product over a guarded assignment": (
        "function (A[N], B[]) -> (T) { U[i : N] = A[i] > 2 ? A[i] * B[]; T[] = *(U[i] + 1); }",
        [F, ONE],
    ),
    "an extremum's gradient where no point is": (
        """function (I[H, W], K[R, S]) -> (O) {
            O[y, x : H - R + 1, W - S + 1] = >(I[y + j, x + i] + K[j, i]);
        }""",
        [F[:3].reshape(3, 1), F[:4].reshape(2, 2)],
    ),
    "a condition in a branch that reads out of bounds": (
        "function (A[], B[N, M], C[2, 2]) -> (T)"
        " { T[i : 5] = sum(A[] ? -1 : B[p, i - 1/2] != B[p, i] ? C[i, i] : C[i, p]), p < 2; }",
        [ONE, F.reshape(3, 2), F[:4].reshape(2, 2)],
    ),
    "a pad of what one reduction alone reads": (
        "function (A[N, N, M], I[K]) -> (T)"
        " { G = gather(A, I); T[i, j : 2, 2] = min(sum[p, q](ceil(pad(G[p, q, i], 1.5)))), p < 2, q < 2; }",
        [np.zeros((3, 3, 0)), np.zeros(0, np.int64)],
    ),
    "a tensor that one reduction alone asks whether it is inside": (
        "function (A[]) -> (V, T) { U[i, j, k : 4, 4, 2] = sum(j < 1 ? A[] : A[]); V = U - U;"
        " T[i : 3] = sum(U[-1*j, -2*k - 1, k + 1]); }",
        [ONE],
    ),
    "one side of a tensor that a constraint gives already": (
        "function (A[N, M], B[]) -> (T)"
        " { U[i - 2, k : 4, 3] = +(A[j, i] - 2.0);"
        " T[] = +(pad(U[i, -1*i - 1], pad(B[], B[]))), i - i + 1 < 3, i < 2; }",
        [F[:5].reshape(5, 1), ONE],
    ),
    "places of a scatter that are added up in 16 bits": (
        "function (A[M, N, K], I[J]) -> (T) { T[i : 2] = +(A[I[j], k, i] * A[k, j, k]); }",
        [np.arange(48.0).reshape(4, 3, 4) - 20, np.array([2, -1, 0, 3], np.int32)],
    ),
    "a summed variable that the guard alone names": (
        "function (A[N], B[M]) -> (T) { T[1 : 2] = sum(A[j] != A[i] ? B[k] * A[j] : B[k]), k < 3; }",
        [F[:3], F[:3]],
    ),
    "a fraction that an access in a branch seems to bound": (
        "function (A[N, M, K]) -> (T) { T[1 : 2] = prod(i != 0 ? A[i, -i, 3*i] : 0.5), (3*i)/2 < M; }",
        [np.arange(36.0).reshape(4, 3, 3)],
    ),
    "no view of nothing": (
        "function (A[N]) -> (T) { U[i, j : 3, 0] = A[i]; T[i : 3] = +(i < 1 ? U[i, -1 - i]) default A; }",
        [F[:3]],
    ),
    "a variable lost on the left that a nested aggregation reads": (
        "function (A[N], B[M]) -> (T) { T[2*i - 2*i : 2] = >(sum(A[p] * B[i])), i < 3; }",
        [-F[:2], F[:2]],
    ),
    "beyond a clamp lies what a constraint says": (
        "function (B[N]) -> (T) { T[] = >(B[clamp(j + 2, 0, 1)]), j < 3; }",
        [F],
    ),
    "a count whose variable only an extremum is left to bound": (
        "function (A[N, M]) -> (T)"
        " { U[i, j : 0, 3] = sum(A[j, j]); T[] = mean(U[i, j] * A[k, max(2*j - 1, 1 - j)]), i < 3; }",
        [F[:2].reshape(1, 2)],
    ),
    "a branch's range for a variable that another aggregation binds too": (
        "function (A[N], B[M, M]) -> (T)"
        " { T[i : 2] = <(max(A[p]) + sum[p](i < 1 ? B[-p, p - 2] : -A[i])), p < 2, i + 2 < 3; }",
        [F, F[:4].reshape(2, 2)],
    ),
    "one range asked twice of a tensor that is not read": (
        "function (A[]) -> (T) { U[i, j : 4, 4] = A[] + i*j;"
        " T[i, j : 3, 4] = +(sum(tanh(U[p, p]) + pad(A[], U[i - 2*j + 3, 1 - j]))), i < 4, j < 2; }",
        [ONE],
    ),
    "half an odd number in an index's extremum, where a branch is not taken": (
        "function (A[N]) -> (T) { T[p : 5] = p > 1 ? A[2 - min((p - 1)/2, 0)] : 0; }",
        [F[:3]],
    ),
    "a gather of a part of an input": (
        "function (A[N], I[M]) -> (S) { V[i : 3] = A[i]; G[j] = V[I[j]]; S[] = +(G[j]); }",
        [np.arange(1.0, 5.0), np.array([0, 3, 1, -1])],
    ),
    "neighbours in a part of an input": (
        "function (A[N], B[M, K]) -> (S, T) {"
        " V[i : 3] = A[i + 1]; S[j : 3] = +(V[j + k - 1] * B[j, k]), k < 3; T[j] = +(exp(B[j, k]) * V[k]), k < 3; }",
        [np.arange(1.0, 6.0), np.arange(12.0).reshape(3, 4) / 8],
    ),
    "sums over rows of which one has fewer": (
        "function (A[N, M], D[4, 3, 2]) -> (S, T)"
        " { S[] = +(k >= 1 ? D[j, i, k]); T[] = +(-D[j, i, k] * (k >= 2 ? 1 : in(A[i, i]))); }",
        [F[:4].reshape(1, 4), np.arange(24.0).reshape(4, 3, 2)],
    ),
    "a sum over a window into a single element": (
        "function (A[N]) -> (T) { T[] = +(0.5 * pad(in(A[i]), 0)), i < 2; }",
        [F[:1]],
    ),
    "no point, and variables that only branches bound": (
        "function (A[N, N], B[M, M]) -> (T) { T[i : 3] = >(i < 0 ? A[3*j - 2, j] : B[1 - i, j]), i - i + 1 < 1; }",
        [F[:4].reshape(2, 2), F[:4].reshape(2, 2)],
    ),
    "an order of bound variables that a guard changes": (
        "function (A[2, 2], B[], C[3, 3]) -> (T)"
        " { T = sum(cond(B > 0 ? C[p, p/2 - q] > 0 : B > 1, A[q, p], A[q, 3*q + 1])) + A, p < 3, q < 2; }",
        [F[:4].reshape(2, 2), ONE, np.arange(9.0).reshape(3, 3)],
    ),
    "an intermediate read in a branch that is never taken": (
        "function (A[], B[4], G[4, 4]) -> (D) { T[i, j : 4, 4] = +(pad(A[], 3.0)); U = 0 ? T : B; D[] = +(U[i, j]); }",
        [ONE, F[:4], np.ones((4, 4))],
    ),
    "a mean under a fraction, differentiated": (
        "function (A[N, K], B[M]) -> (T) { T[i : 4] = mean(A[p, clamp((p - 1)/2, 0, 2)]) * B[i + 3]; }",
        [F.reshape(2, 3), F],
    ),
    "variables in constraints alone after reduce": (
        "function (A[]) -> (T) { T[i + 2*j - 1 : 3] = mean(A[]), i < 2; }",
        [ONE],
    ),
    "a variable whose coefficients cancel": (
        "function (A[N]) -> (T) { T[i : 3] = *(A[2*j - 2*j + 2]), j < 1; }",
        [F],
    ),
    "a statement equal to another": (
        "function (A[6]) -> (T, U) { P = (6 + 6) / 2; T = reshape(A, P); U = A; }",
        [F],
    ),
    "bound variables in another order once canonical": (
        "function (A[N], B[M]) -> (T) { T[i : 2] = A[i] * mean(B[(1*q - 1*p + 2)/2] * in(B[q])); }",
        [F[:2], F[:3]],
    ),
    "a size told by a padded access": ("function (A[N]) -> (T) { T[i] = assign(pad(A[i], 1.5)); }", [F]),
    "a sum of one int8 term": ("function (A[N]) -> (T) { T[i : N] = +(A[i]); }", [np.array([3, -1], np.int8)]),
    "gather from nothing": ("function (A, I) -> (T) { T = gather(A, I); }", [np.zeros((0, 3)), IX[:4]]),
    "pad in the value of pad": (
        "function (A[], B[N, M]) -> (T) { T = prod(pad(A[], pad(B[N - 1 - p, 2*p - q], 0.5))) + A, p < 2, q < 1; }",
        [ONE, F.reshape(2, 3)],
    ),
    "constraints of nested aggregations in everyone's order": (
        "function (A[N, M]) -> (T) { T = max(A[q, 0]) * mean(A[p, q]) * sum(A[p, q] + A[r, p]), p < 2, r < 2, q < 2; }",
        [F.reshape(2, 3)],
    ),
    "the order of nested constraints, once bound": (
        "function (A[4, 3]) -> (T) { T = max(A[p, q]) * A * mean(A[clamp((q + 3)/2, -1, 3), p]), p < 3, q < 2; }",
        [np.arange(12.0).reshape(4, 3)],
    ),
    "a default and sums of which some have no point": (
        "function (A[N], B[N], D[M], E[K], F[3, M]) -> (S, T, U) { S[A[i] : M] = +(B[i] * E[B[j]]) default D;"
        " T[A[i] : M] = >(E[j] > 5 ? B[i] * E[j]) default D;"
        " U[A[i] % 3, j : 3, M] = *(i > k + 2 ? D[j] * E[k]) default F; }",
        [np.array([0, 0, 1, -1]), np.array([3, 4, -1, 7]), F[:2], F[:3], np.arange(6.0).reshape(3, 2)],
    ),
    "a turned place beside one that elements of the same variable say": (
        "function (A[N], C[N]) -> (S, T) { S[(i - k) % 5, A[i] % 4 : 5, 4] = >(C[i]), k < 3;"
        " T[A[i], (k - i + 1) % 5 : 4, 5] = +(C[i]), k < 2; }",
        [np.array([1, 3, 3, -1, 2]), F[:5]],
    ),
    "the order of nested constraints": (
        "function (A[2]) -> (T) { T[] = *(A[1] - A[(k + 1) % 2] + A[i]), (i + i)/2 < 4, k < 1; }",
        [F[:2]],
    ),
    "a default and an output that elements place": (
        "function (A[N], Ix[N], D[M]) -> (T) { T[Ix[i] - 2 : M] = >(A[i] * A[i]) default D; }",
        [F[:4], np.array([3, 2, 3, 9]), F[:3]],
    ),
    "a scalar in the place of its access": ("function (A[N]) -> (T) { U = ceil(3.0) != 1.5; T = min(U[]); }", [F]),
    "minus one next to uint8": (
        "function (A[N], S[]) -> (T, U) { T = min(S, A); U = A > S; }",
        [np.array([3, 255], np.uint8), np.array(-1)],
    ),
    "the reciprocal of an integer": (
        "function (A[2, 3], B[2, 4]) -> (T) { T[] = >(-min(A[i, k % 2], A[B[j, k], j])); }",
        [F.reshape(2, 3) * 0, np.zeros((2, 4), int)],
    ),
    "a value without axes for an output that has one": (
        "function (A[]) -> (T) { T[i : 3] = +(round(0.5 * A[])), i < 1; }",
        [ONE],
    ),
    "fractions under clamp, padded": (
        "function (A[2]) -> (T) { T[i : 6] = pad(A[clamp((i - 3)/2, 0, 1)], 9); }",
        [F[:2]],
    ),
    "fractions under clamp, kept": (
        "function (A[2]) -> (T) { T[i : 6] = A[clamp((i - 3)/2, 0, 1)] no_defract; }",
        [F[:2]],
    ),
    "fractions of elements under clamp": (
        "function (A[2], Ix[K]) -> (T) { T[i : 6] = A[clamp((Ix[i] - 1)/2, 0, 1)]; }",
        [F[:2], IX],
    ),
    "fractions under clamp in an output": (
        "function (A[N]) -> (T) { T[clamp((i - 1)/2, 0, 1) : 3] = +(A[i]); }",
        [F],
    ),
    "a condition about one of an axis of one": (
        "function (A[3, 3, 1], D[2, 2]) -> (T) { T[i : 2] = +(pad(in(A[0, i, j]), 0) == 0 ? D[i, j]); }",
        [np.zeros((3, 3, 1)), F[:4].reshape(2, 2)],
    ),
    "what in() says to a convolution": (
        "function (D[4, 4], A[4], B[2]) -> (T) { T[i : 2] = +(D[i, j] * A[j] * in(B[j])); }",
        [np.arange(16.0).reshape(4, 4), F[:4], F[:2]],
    ),
    "what in() says to a convolution with a window": (
        "function (D[9], K[3], B[2]) -> (T) { T[i : 7] = +(D[i + k] * -(K[k] * in(B[k]) * 2)); }",
        [np.arange(9.0), F[:3], F[:2]],
    ),
    "fractions under clamp in what in() says to a convolution": (
        "function (D[9], K[3], B[2]) -> (T) { T[i : 7] = +(D[i + k] * K[k] * in(B[clamp(i/2, 0, 1)])) no_defract; }",
        [np.arange(9.0), F[:3], F[:2]],
    ),
    "fractions under clamp in a constraint on a convolution": (
        "function (D[9], K[3]) -> (T) { T[i : 7] = +(D[i + k] * K[k]), clamp(i/2, 0, 1) < 2 no_defract; }",
        [np.arange(9.0), F[:3]],
    ),
    "a variable of a convolution that stands in in() alone": (
        "function (D[9], K[3], B[2]) -> (T) { T[i : 7] = +(D[i + k] * K[k] * in(B[q])); }",
        [np.arange(9.0), F[:3], F[:2]],
    ),
    "a scale of reverse_grad with more elements": (
        "function (A, B) -> (T) { T = reverse_grad(A, B); }",
        [F[:1], F[:3]],
    ),
    "the scale of reverse_grad in a convolution": (
        "function (D[9], K[3], B[2]) -> (T) { T[i : 7] = +(D[i + k] * reverse_grad(K[k], B[k])); }",
        [np.arange(9.0), F[:3], F[:2]],
    ),
    "minus the negative of uint8": (
        "function (A[N], B[N], C[N]) -> (S, T, U, V) { S = A - -B; T = C - -B; U = C + -B; V = A - -C; }",
        [np.array([-3, 200, 7], np.int16), np.array([200, 0, 255], np.uint8), F[:3]],
    ),
    "minus the negative of the least int8": (
        "function (A[N], B[N]) -> (T, U) { T[i : N] = A[i] - -B[i]; U[i : N] = float64(A[i]) + -B[i]; }",
        [np.array([1, -2, 3], np.int32), np.array([-128, 127, 1], np.int8)],
    ),
    "zero added to minus zero": (
        "function (A[N]) -> (T, U) { T = 1 / (A + 0); U[i : N] = 1 / (0 + A[i]); }",
        [np.array([-0.0, 0.0, 2.0])],
    ),
    "a literal of 2^63": ("function (A[N]) -> (T) { T = A + --9223372036854775808; }", [np.array([2, -1])]),
    "a negative power of integers": ("function (A[N]) -> (T) { T = pow(A, -1); }", [np.array([2, 1, -1])]),
    "one condition for all points, and a default": (
        """function (A[N], D[M, 2], C[]) -> (T, U) {
            T[i, j : M, 2] = +(C[] > 0 ? A[k]) default D; U[i, j : M, 2] = >(C[] > 3 ? A[k] * 2) default D;
        }""",
        [F, np.arange(6.0).reshape(3, 2), ONE],
    ),
    "no points, one condition and a default": (
        "function (A[N], D[M], C[]) -> (T) { T[i : M] = +(C[] > 0 ? A[k]) default D; }",
        [F[:0], F, ONE],
    ),
    "an element padded at its own place": (
        "function (A[N], B[M]) -> (T) { S[i : N/2] = +(min(A[j], B[0])); T[i] = +(pad(S[i], 1.5)); }",
        [F, F[:5]],
    ),
    "an element that is an index too": (
        """function (A[N], B[M]) -> (T) {
            S[i : N] = +(int64(min(A[j], B[0])) + i); T[i : N] = pad(B[S[i]], 0.5) + S[i];
        }""",
        [F, F[:5]],
    ),
    "softplus of nothing": (
        "function (A[N]) -> (T) { S[i : 2] = >(A[i + N]); T[i : 2] = softplus(S[i]) + sum(A[j]); }",
        [F],
    ),
    "a quotient in a constraint of a recurrence": (
        "function (U[5, 3], I[4]) -> (O) {"
        " O[t, n : 5, 4] = O[t - 1, (n - 2) % 4]/2 + U[t, n], (t + 5)/2 < 4 init I[n]; }",
        [np.linspace(-1, 1, 15).reshape(5, 3), F[:4]],
    ),
    "a gradient that reads no element of a recurrence": (
        "function (U[5, 4], I[4]) -> (O) {"
        " O[t, n : 5, 4] = 0.5 * O[t - 1, n - 1] + U[t, n], 0 - n < 1, n + t - 2 < 3 init I[n]; }",
        [np.linspace(-1, 1, 20).reshape(5, 4), F[:4]],
    ),
    "a counterpart of a scan's elements that have no terms": (
        "function (X[N], Y[M]) -> (T) { O[i : N + 3] = +(X[k]), i - k - 2 < 2*N; T = Y - O * Y; }",
        [F, np.linspace(-1, 1, 9)],
    ),
    "argmin in a branch that whole tensors decide": (
        "function (A[N], B[N]) -> (T) { T = (A > 0) ? argmin((p < 2) ? B[p] : B[p] * 2) : 3; }",
        [F, F[::-1].copy()],
    ),
    "a condition of one element, and a default": (
        "function (A[2], B[3], C[4]) -> (T) { T[i : 4] = <(B[2] ? A[j + 2]) default C; }",
        [F[:2], np.array([True, True, False]), F[:4]],
    ),
    "a fraction of one variable in an element of an index, padded": (
        "function (A[3], B[3]) -> (T) { T[i : 2] = A[i] + pad(A[B[(2*i + i + 1)/3]], 0.5); }",
        [F[:3], np.array([2, 0, 1])],
    ),
    "an index in an element of nothing, beside a factor of another variable": (
        """function (A[K], B[N, M], C[N, 3], D[I, J]) -> (T) {
            T[i] = sum(A[k] > 0 & pad(in(C[j, B[j, k]]), 0) == 0 ? D[i, j]), k < 2;
        }""",
        [F[:2], np.zeros((3, 0), int), np.ones((3, 3)), F[:3].reshape(1, 3)],
    ),
    "a size among integers of rank 0": (
        "function (A[N], B[M]) -> (T) { T = argmax(B[p + 2]) * shape(A, 0) * A; }",
        [np.array([1, -2, 3], np.int8), F[:4]],
    ),
    "an output that is a view of what another one's source reads": (
        "function (X[N, M]) -> (Z, Y) { S[i : N] = sum(X[i, j]); U[i : N] = sum(X[i, j] * S[i]);"
        " Z = reshape(U, N, 1); Y = reshape(S, N, 1); }",
        [F.reshape(3, 2)],
    ),
    "a place on the left that its variable drops out of": (
        "function (A[N, M]) -> (T, U) { T[(M - 2)*i + j : 2] = argmax(A[i, j]);"
        " U[i % 1, -1*j + 1*j : 1, 1] = argmin(A[i, j]); }",
        [F.reshape(3, 2)[::-1].copy()],
    ),
    "a recurrence of numbers alone that reads around a corner": (
        "function () -> (H) {"
        " H[t, i : 4, 3] = 0.5*pad(H[t - 1, i - 2], 0.1*t) + H[t - 1, i - 1] + H[t - 1, (i - 2) % 3]; }",
        [],
    ),
    "a recurrence that sums all of its elements so far": (
        "function (X[T, N]) -> (H) { H[t, n : T, N] = X[t, n] + 0.1*sum(H[s, n]), t - 1 - s < T; }",
        [np.linspace(-1, 1, 18).reshape(6, 3)],
    ),
    "a sum of tensors written in part, of which another sum is made": (
        """function (A[3, 4], D[1, 4], B[6, 3, 4], C[6, 1, 4]) -> (T) {
            P[a, b, 2*j % 3, j : 6, 1, 3, 4] = +(C[a, b, j] * A[0, j]);
            Q[a, b, 2*j % 3, j : 6, 1, 3, 4] = +(B[a, 0, j] * D[b, j]);
            U[a, b, 0, j : 6, 1, 3, 4] = +(C[a, b, j] * A[2*j % 3, j]);
            V[a, b, 0, j : 6, 1, 3, 4] = +(B[a, 2*j % 3, j] * D[b, j]);
            R = P + Q; W = U + V; T = R + W;
        }""",
        [np.linspace(-1, 1, n).reshape(s) for n, s in ((12, (3, 4)), (4, (1, 4)), (72, (6, 3, 4)), (24, (6, 1, 4)))],
    ),
    "the only element of a tensor, read at a place that all points of a run share": (
        "function (A[2], B[2], C[1], E[2], F[2, 1]) -> (R) {"
        " R[i, A[i] : 2, 1] = +(B[i] * C[clamp(E[i], 0, 1)]) default F; }",
        [np.zeros(2, int), F[:2], F[:1], IX[:2], F[:2].reshape(2, 1)],
    ),
    "an infinite factor beside zeros that another one reads outside": (
        "function (A[N], B[N], K[R, 2]) -> (T) { T[x, o : 4, 2] = +(A[x + k - 1] * B[(x + k) % 3] * K[k, o]); }",
        [F[:3], np.full(3, np.inf), F.reshape(3, 2)],
    ),
    "a product of what stands in the place of nothing": (
        "function (A[N, M], B[P, M]) -> (T) { T[i, j : P, 16] = +(pad(A[j, k], 2.0) * B[i, k]); }",
        [np.zeros((0, 16)), np.arange(256.0).reshape(16, 16) / 64],
    ),
    "steps of an iteration whose kernels are one up to names": (
        """function (X[N, M]) -> (Y) {
            A[i : N] = 1 / sum(exp(X[i, j])); B[j : M] = 1 / sum(A[i] * exp(X[i, j]));
            C[i : N] = 1 / sum(B[j] * exp(X[i, j])); D[j : M] = 1 / sum(C[i] * exp(X[i, j]));
            E[i : N] = 1 / sum(D[j] * exp(X[i, j])); F[j : M] = 1 / sum(E[i] * exp(X[i, j]));
            Y[i, j : N, M] = E[i] * exp(X[i, j]) * F[j];
        }""",
        [np.linspace(-1, 1, 150).reshape(6, 25) ** 3],
    ),
}
