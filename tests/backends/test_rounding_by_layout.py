"""Values that torch rounds as a tensor's layout is: an extremum's gradient finds them again by comparison."""

import pytest
import torch

import tilec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", ["3 * B[v, k] - gelu(A[n, k])", "B[v, k] + 0.3 * A[n, k]", "A[n, k] - 0.7 * B[v, k]"])
@pytest.mark.parametrize(("place", "summed"), [("n, k : N, K", "v"), ("v, k : V, K", "n"), ("n, v : N, V", "k")])
def test_gradient_of_an_extremum_is_whole(place: str, summed: str, value: str, dtype: torch.dtype) -> None:
    f = tilec.compile(f"function (A[N, K], B[V, K]) -> (S) {{ S[{place}] = max[{summed}]({value}); }}")
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(17, 9, generator=generator, dtype=dtype).requires_grad_()
    b = torch.randn(7, 9, generator=generator, dtype=dtype).requires_grad_()
    s = f(a, b)
    a2, b2 = a[:, None].double(), b[None].double()
    points = {"3": 3 * b2 - torch.nn.functional.gelu(a2), "B": b2 + 0.3 * a2, "A": a2 - 0.7 * b2}[value[0]]
    theirs = torch.autograd.grad(points.amax("nvk".index(summed)).sum(), (a, b))
    for own, exact in zip(torch.autograd.grad(s.sum(), (a, b)), theirs, strict=True):
        torch.testing.assert_close(own, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1), (17, 9), (5, 3, 7)])
def test_gelu_is_the_same_in_every_layout(shape: tuple[int, ...]) -> None:
    f = tilec.compile("Y = gelu(X)")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = torch.nn.functional.gelu(torch.stack([x, x]))[0]
    reverse = tuple(range(x.dim()))[::-1]
    for of in (x, torch.stack([x, x], -1)[..., 0], x.permute(reverse).contiguous().permute(reverse)):
        torch.testing.assert_close(f(of), exact, rtol=0, atol=0)


def test_gradient_of_gelu_takes_a_smaller_gradient() -> None:
    f = tilec.compile(
        "function (D[N, K], G[K]) -> (Y) { Y[n, k : N, K] = G[k] * (0.5 * (1 + erf(D[n, k] * 0.7071067811865476))"
        " + D[n, k] * (0.3989422804014327 * exp(0.5 * -(D[n, k] * D[n, k])))); }"
    )
    d, k = torch.randn(5, 7, requires_grad=True), torch.randn(7)
    torch.nn.functional.gelu(d).backward(k.expand(5, 7))
    torch.testing.assert_close(f(d.detach(), k), d.grad)
