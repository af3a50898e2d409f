"""16-bit types on the torch backend: what is rounded, and what is not."""

import pytest
import torch
from support.half_precision import CASES, MARKOV, MARKOV_SHAPES, check

import tilec


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, dtype):
    check(case, dtype, "torch", "cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_in_the_text_rounds(dtype):
    a, b = (torch.randn(100, 7, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
    name = str(dtype)[6:]
    f = tilec.compile(f"O[i] = +({name}(A[i, j] * B[i, j] + A[i, j]));")
    exact = (a.double() * b.double() + a.double()).to(dtype).float().sum(1).to(dtype)
    torch.testing.assert_close(f(a, b), exact, rtol=0, atol=0)


def test_a_normaliser_is_kept_in_32_bits_and_its_readers_types_stay():
    g = tilec.compile(MARKOV).grad()
    specs = [tilec.spec(s, "bfloat16") for s in (*MARKOV_SHAPES, MARKOV_SHAPES[1])]
    lowered = g.lower(*specs)
    held = {name: t.dtype for name, t in lowered._types.items() if "logsumexp" in name}
    assert held and set(held.values()) == {"float32"}
    assert {t.dtype for t in lowered.outputs} == {"bfloat16"} == {lowered._types["GF"].dtype}


@pytest.mark.parametrize("aggregation", ["+", "*", ">", "mean", "logsumexp"])
def test_types_of_statements_that_read_a_normaliser(aggregation):
    text = f"O[i : N] = {aggregation}(exp(A[i, j] - logsumexp(A[i, k])) + A[i, j]) default D;"
    for source in (text, text.replace(" default D", "")):
        f = tilec.compile(f"function (A[N, M], D[N]) -> (O) {{ {source} }}")
        a, d = torch.randn(5, 9, generator=torch.Generator().manual_seed(4)).bfloat16(), torch.ones(5).bfloat16()
        got = f(a, d)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), f(a.double(), d.double()), rtol=2e-2, atol=2e-2)
