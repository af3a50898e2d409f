"""torch's own gradcheck and gradgradcheck, through autograd, for every scalar function and every aggregation."""

from __future__ import annotations

import pytest
import torch
from conformance.programs import CONSTRUCTS, DOMAINS, SMOOTH, applied
from support.aggregations import SMOOTH_AGGREGATIONS

import tilec


def sample(shape: tuple[int, ...], low: float, high: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("form", ["elementwise", "in a body"])
@pytest.mark.parametrize("f", SMOOTH, ids=lambda f: f.name)
@pytest.mark.covering
def test_scalar_function(f, form: str) -> None:
    low, high = DOMAINS.get(f.name, (-2, 2))
    names = "XYZ"[: f.arity[1]]
    inputs = [sample((3, 4), low, high, seed) for seed in range(len(names))]
    if form == "elementwise":
        source = f"function ({', '.join(names)}) -> (R) {{ R = {applied(f, list(names))}; }}"
    else:
        declared = ", ".join(f"{n}[I, J]" for n in names)
        body = applied(f, [f"{n}[i, j]" for n in names])
        source = f"function ({declared}) -> (R) {{ R[i : I] = +(({body}) * X[i, j]); }}"
    function = tilec.compile(source)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


BODIES = ["A[i, j]", "A[i, j] * B[j]", "A[i, j] + B[j]", "sin(A[i, j]) / (2 + B[j] * B[j])", "A[2*i - j, j] * B[j]"]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("aggregation", SMOOTH_AGGREGATIONS)
@pytest.mark.covering
def test_aggregation(aggregation: str, body: str) -> None:
    if aggregation == "logsumexp" and "2*i" in body:
        body = body.replace("A[2*i - j, j]", "A[i, j]")  # every row of the output must have a point
    function = tilec.compile(f"function (A[I, J], B[J]) -> (O) {{ O[i : I] = {aggregation}({body}); }}")
    inputs = sample((4, 3), -2, 2, 0), sample((3,), 0.5, 2, 1)

    def finite(*tensors: torch.Tensor) -> torch.Tensor:
        value = function(*tensors)
        return torch.where(value.isfinite(), value, 0)  # the identity of an empty max is infinite

    assert torch.autograd.gradcheck(finite, inputs)
    assert torch.autograd.gradgradcheck(finite, inputs, fast_mode=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_product_with_zeros(zeros: int) -> None:
    a = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a[0, :zeros] = 0
    function = tilec.compile("function (A[I, J]) -> (O) { O[i : I] = *(A[i, j]); }")
    assert torch.autograd.gradcheck(function, a.requires_grad_())
    assert torch.autograd.gradgradcheck(function, a, fast_mode=True)


def test_ties_share_as_torch_amax() -> None:
    a = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    function = tilec.compile("function (A[I, J]) -> (O) { O[i : I] = >(A[i, j]); }")
    (ours,) = torch.autograd.grad(function(a).sum(), a)
    (theirs,) = torch.autograd.grad(a.amax(1).sum(), a)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CONSTRUCTS)
@pytest.mark.one_in(7)
def test_construct(name: str) -> None:
    function = tilec.compile(CONSTRUCTS[name])
    sizes = {"A": (6,), "X": (11,), "V": ()}
    inputs = [sample(sizes[n], 0.3, 1.5, seed) for seed, n in enumerate(function.inputs)]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
