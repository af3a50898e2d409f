"""An output that nothing reads gives its inputs no gradient, whatever its derivative is: as without it."""

import pytest
import torch

import tilec

INF = float("inf")
X = torch.tensor([[1.0, 2, 0], [-INF, -INF, -INF], [0, 3, -INF], [INF, 1, 4]], dtype=torch.float64)
W = torch.tensor([[1.0, 0.5], [2, 3], [0, -1]], dtype=torch.float64)

# statements, of which the last output is read
PROGRAMS = {
    "logarithm": "Z = log(X); Y = 3 * X;",
    "square": "Z = X * X; Y = 3 * X;",
    "root": "Z = sqrt(X); Y = X > 0.5 ? 2 * X : X;",
    "products": "Z[i, j] = +(X[i, k] * W[k, j]); Y[i] = sum(X[i, k] > 0 ? X[i, k]);",
    "one value of two": "V = X * 2; Z = V * V; Y[i, j] = V[i, j] - W[j, 0];",
    "a statistic": "Z[i] = logsumexp(X[i, k]) * sum(X[i, k]); Y[i] = max(X[i, k]);",
    "what its derivative asks": "Z[i : 4] = +(X[i, k] * X[i, k + 1]); Y[i] = +(X[i, k]);",
    "a branch": "Z = X > 1 ? X * X : exp(-X); Y = X;",
    "a recurrence": "Z[t, n : 4, 3] = Z[t - 1, n] * X[t, n] + X[t, n]; Y = X * 0.5;",
    "a recurrence of another": "H[t, n : 4, 3] = 0.5 * H[t - 1, n] + X[t, n]; Z = H * X; Y = H * 2;",
    "a window": "V[i, j : 4, 3] = mean(X[i + k - 1, j]), k < 3; Z = V * V; Y = V + 1;",
    "a quotient": "S[i] = sum(W[j, 0] * X[i, j]); Z[i, j] = X[i, j] / S[i]; Y[i, j] = X[i, j] * W[j, 1];",
}


def functions(name):
    head = "function (X[N, M], W[M, K]) -> "
    return [tilec.compile(f"{head}({outputs}) {{ {PROGRAMS[name]} }}") for outputs in ("Z, Y", "Y")]


def gradients(f, scale=1.0, second=False):
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    results = f(x, w)
    y = results[-1] if isinstance(results, tuple) else results
    d = torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape) * scale
    found = torch.autograd.grad(y, (x, w), d, create_graph=second, materialize_grads=True)
    if not second:
        return found
    return torch.autograd.grad(found, (x, w), [torch.ones_like(g) for g in found], materialize_grads=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_without_the_output(name):
    both, alone = functions(name)
    for scale in (1.0, -2.0):  # the second call goes another way
        for found, wanted in zip(gradients(both, scale), gradients(alone, scale), strict=True):
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["logarithm", "square", "one value of two", "a quotient"])
def test_at_other_sizes(name, monkeypatch):
    from tilec.ir import shape_class

    monkeypatch.setattr(shape_class, "SMALLEST_OPEN", 2)
    both, alone = functions(name)
    for rows in (4, 3, 5, 2):
        x = X.repeat(2, 1)[:rows]
        found = []
        for f in (both, alone):
            own = x.clone().requires_grad_()
            results = f(own, W)
            (results[-1] if isinstance(results, tuple) else results).sum().backward()
            found.append(own.grad)
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("name", ["logarithm", "products", "one value of two"])
@pytest.mark.one_in(2)
def test_compiled_with_open_sizes(name):
    both, alone = functions(name)
    whole = torch.compile(lambda x, w: both(x, w)[-1], backend="aot_eager", fullgraph=True, dynamic=True)
    for found, wanted in zip(gradients(whole), gradients(alone), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_second_derivatives_of_what_the_forward_pass_keeps():
    """The gradient reads R, whose cotangent comes back to a call in which S has none."""
    f = tilec.compile("function (X[N, M], W[M, K]) -> (R, S) { R[i] = sum(X[i, 0]); S[i] = W[0, 0] / X[i, 2] * R[i]; }")
    x = X[:3].clone().requires_grad_()
    w = W.clone().requires_grad_()
    r, s = f(x, w)
    (first,) = torch.autograd.grad((r, s), w, (torch.ones_like(r), torch.ones_like(s)), create_graph=True)
    (found,) = torch.autograd.grad(first[0, 0], x)
    a, b = x.detach()[:, 0], x.detach()[:, 2]
    wanted = torch.stack([1 / b, torch.zeros_like(a), -a / b**2], 1)
    torch.testing.assert_close(found, wanted, equal_nan=True)
