"""Aggregations of all points, or all of each image, which read the same elements: source and shape of the input."""

TOTALS = {
    "total variation": (
        """function (X[H, W]) -> (Y) {
            A[] = mean(abs(X[y + 1, x] - X[y, x]));
            B[] = mean(abs(X[y, x + 1] - X[y, x]));
            Y = A + B;
        }""",
        (131, 517),
    ),
    "of a volume": (
        """function (X[D, H, W]) -> (Y) {
            A[] = sum(abs(X[z + 1, y, x] - X[z, y, x]));
            B[] = sum(abs(X[z, y + 1, x] - X[z, y, x]));
            C[] = sum(abs(X[z, y, x + 1] - X[z, y, x]));
            Y = A + B + C;
        }""",
        (9, 67, 117),
    ),
    "of each image": (
        """function (X[N, H, W]) -> (Y) {
            A[n : N] = mean(abs(X[n, y + 1, x] - X[n, y, x]));
            B[n : N] = mean(abs(X[n, y, x + 1] - X[n, y, x]));
            Y[n : N] = A[n] + B[n];
        }""",
        (3, 265, 261),
    ),
    "of images with channels last": (
        """function (X[N, H, W, C]) -> (Y) {
            A[] = mean(abs(X[n, y + 1, x, c] - X[n, y, x, c]));
            B[] = mean(abs(X[n, y, x + 1, c] - X[n, y, x, c]));
            Y = A + B;
        }""",
        (4, 67, 61, 5),
    ),
    "central differences": (
        """function (X[H, W]) -> (Y) {
            A[] = mean((X[y + 1, x] - X[y - 1, x]) * (X[y + 1, x] - X[y - 1, x]));
            B[] = >(abs(X[y, x + 1] - X[y, x - 1]));
            Y = A + B;
        }""",
        (131, 517),
    ),
    "of one statement": (
        "function (X[H, W]) -> (Y) { Y[] = mean((X[y + 1, x] - X[y, x]) * (X[y, x + 1] - X[y, x])); }",
        (131, 517),
    ),
    "moments": (
        """function (X[N]) -> (S, Q, M, L) {
            S[] = sum(X[i]);
            Q[] = sum(X[i] * X[i]);
            M[] = >(X[i]);
            L[] = logsumexp(X[i]);
        }""",
        (70001,),
    ),
    "moments of rows": (
        """function (X[N, H, W]) -> (M, V) {
            M[n : N] = mean(X[n, h, w]);
            Q[n : N] = mean(X[n, h, w] * X[n, h, w]);
            V[n : N] = Q[n] - M[n] * M[n];
        }""",
        (3, 265, 261),
    ),
    "values and their sums": (
        """function (X[N, M]) -> (Z, Y) {
            Z[i, j : N, M] = exp(X[i, j]);
            A[] = sum(Z[i, j]);
            B[] = >(Z[i, j]);
            Y = A / B;
        }""",
        (301, 333),
    ),
}
