"""Sums of 16 bits whose gradient reads them with what is added first."""

from __future__ import annotations

import pytest
import torch

import tilec

LINEAR = """function (X[M, H], W[J, H], A[J]) -> (Y) {
    O[m, j : M, J] = +(X[m, h] * W[j, h]);
    Y = exp(O + A);
}"""
OTHERS = {  # what is kept as it is
    "read alone too": LINEAR.replace("exp(O + A)", "exp(O + A) * sin(O)"),
    "two terms": LINEAR.replace("exp(O + A)", "exp(O + A) * sin(O + 2 * A)"),
    "a number": LINEAR.replace("exp(O + A)", "gelu(O + 1.5)"),
    "no addition": LINEAR.replace("exp(O + A)", "gelu(O * A)"),
    "an output": LINEAR.replace("-> (Y)", "-> (Y, O)").replace("exp", "gelu"),
    "a wider term": LINEAR.replace("O + A", "O + float32(A)").replace("exp", "gelu"),
    "a term by more variables": LINEAR.replace("Y = exp(O + A)", "Y[m, j, k : M, J, 2] = gelu(O[m, j] + A[j + k])"),
}


def kept(text: str, dtype: torch.dtype) -> set[str]:
    spec = {"dtype": str(dtype).removeprefix("torch.")}
    function = tilec.compile(text)
    return {s.name for s in function.saved(*(tilec.spec(s, **spec) for s in ((33, 320), (48, 320), (48,))))}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "text",
    [
        LINEAR.replace("exp", "gelu"),
        LINEAR.replace("exp(O + A)", "gelu(A + O) * sin(O + A)"),
        LINEAR.replace("Y = exp(O + A)", "Y[j, m : J, M] = gelu(O[m, j] + A[j])"),
        LINEAR.replace("Y = exp(O + A)", "Z = gelu(O + A); Y[j : J] = max(O[m, j] + A[j]) + sum(Z[m, j])"),
    ],
)
def test_the_sum_with_its_bias_is_kept(text: str) -> None:
    assert "O_biased" in kept(text, torch.bfloat16) and "O" not in kept(text, torch.bfloat16)
    assert "O_biased" not in kept(text, torch.float32)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_kept_as_they_are(name: str) -> None:
    assert "O_biased" not in kept(OTHERS[name], torch.bfloat16)


def test_derivatives_of_any_order() -> None:
    """In float64, where nothing changes, and in 16 bits, where what is kept has a cotangent of its own."""
    function = tilec.compile(LINEAR.replace("exp(O + A)", "sin(O + A) * (A + O)"))
    g = torch.Generator().manual_seed(0)
    exact = [torch.randn(s, generator=g, dtype=torch.float64) / 8 for s in ((6, 320), (5, 320), (5,))]

    def second(dtype: torch.dtype) -> list[torch.Tensor]:
        given = [t.to(dtype).requires_grad_() for t in exact]
        first = torch.autograd.grad(function(*given).float().sum(), given, create_graph=True)
        total = sum(t.float().square().sum() for t in first)
        return [t.double() for t in torch.autograd.grad(total, given)]

    for a, b in zip(second(torch.float16), second(torch.float64), strict=True):
        assert (a - b).abs().max() <= 0.02 * b.abs().max()


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::tilec.TileWarning")
@pytest.mark.parametrize("place, size", [("j", 4), ("j + 1", 6), ("j / 2", 3), ("2 * j", 7), ("j", 9)])
@pytest.mark.parametrize("reader", ["Y[m : M] = sum(exp({}))", "Y[m, j : M, J] = exp({})"])
def test_terms_that_not_every_element_has_leave_points_out(place: str, size: int, reader: str) -> None:
    text = f"""function (X[M, H], W[J, H], A[P]) -> (Y) {{
        O[m, j : M, J] = +(X[m, h] * W[j, h]); {reader.format(f"O[m, j] + A[{place}]")}; }}"""
    g = torch.Generator().manual_seed(0)
    exact = [torch.randn(s, generator=g).half().double().requires_grad_() / 2 for s in ((5, 7), (6, 7), (size,))]
    given = [t.detach().half().requires_grad_() for t in exact]
    made, wanted = (tilec.compile(text)(*inputs) for inputs in (given, exact))
    torch.testing.assert_close(made.double(), wanted, rtol=0.02, atol=0.02)
    found = torch.autograd.grad(made.float().sum(), given)
    for a, b in zip(found, torch.autograd.grad(wanted.sum(), exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0.02, atol=0.02)
