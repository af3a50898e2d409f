"""Products whose sides alternate in the output: one matrix product and a small reordering, or a batch."""

import pytest
import torch

import tilec

# What each text does (an einsum), and whether its result is reordered at the sizes of `LONG`.
SOURCES = {
    "left and right alternate": ("nar,ni->air", True),
    "its mirror image": ("ni,nar->air", True),
    "columns as they lie": ("nc,nsk->sck", True),
    "two sums": ("ncp,npsk->sck", True),
    "a batch besides": ("bnar,bni->bair", True),
    "few columns of a batch": ("in,arn->air", True),
    "four groups": ("nar,nib->airb", True),
    "read as it lies only as a batch": ("anr,ni->air", False),
    "a large result": ("ak,ik->ai", False),
}
LONG = dict.fromkeys("airbcskp", 3) | {"n": 40}


def text_of(einsum):
    inputs, out = einsum.split("->")
    a, b = inputs.split(",")
    axes = [", ".join(v.upper() for v in s) for s in (a, b, out)]
    index = [", ".join(s) for s in (a, b, out)]
    left = f"Y[{index[2]} : {axes[2]}]"
    return f"function (F[{axes[0]}], G[{axes[1]}]) -> (Y) {{ {left} = +(F[{index[0]}] * G[{index[1]}]); }}"


def operands(einsum, sizes, dtype, strided=False):
    g = torch.Generator().manual_seed(0)
    made = []
    for variables in einsum.split("->")[0].split(","):
        shape = [sizes[v] for v in variables]
        x = torch.randn(shape[::-1] if strided else shape, generator=g).to(dtype)
        made.append(x.permute(*reversed(range(x.ndim))) if strided else x)
    return made


def lines_of(einsum, sizes):
    specs = [tilec.spec(tuple(x.shape), "float32") for x in operands(einsum, sizes, torch.float32)]
    return tilec.compile(text_of(einsum)).lower(*specs, backend="torch").source()


@pytest.mark.parametrize("name", SOURCES)
def test_small_results_are_reordered(name):
    einsum, reordered = SOURCES[name]
    source = lines_of(einsum, LONG)
    assert ("torch.matmul(" not in source) == (reordered or name == "a large result"), source


@pytest.mark.parametrize("name", [n for n in SOURCES if n not in ("a large result", "four groups")])
def test_large_results_stay_in_their_order(name):
    einsum, _ = SOURCES[name]
    assert "torch.matmul(" in lines_of(einsum, LONG | {"n": 2, "p": 1})


@pytest.mark.parametrize(
    ("sizes", "joined"), [({"r": 50, "c": 3}, True), ({"r": 50, "c": 32}, False), ({"n": 20}, False)]
)
def test_a_batch_of_few_columns_is_one_product(sizes, joined):
    """The result is larger than one operand, and much smaller than the other, whose matrices have few columns."""
    source = lines_of("hn,rcn->rhc", {"h": 3, "n": 40, "r": 50, "c": 3} | sizes)
    assert ("torch.matmul(" not in source) == joined, source


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.covering
def test_values(name, dtype):
    einsum, _ = SOURCES[name]
    for sizes in (LONG, LONG | {"n": 2}, LONG | {"n": 0}, LONG | {"a": 0}, LONG | {"i": 1, "r": 1}, LONG | {"a": 1}):
        for strided in (False, True):
            a, c = operands(einsum, sizes, dtype, strided)
            want = torch.einsum(einsum, a.double(), c.double())
            got = tilec.compile(text_of(einsum))(a, c)
            assert got.dtype == dtype and got.shape == want.shape
            tolerance = {torch.float16: 3e-2, torch.bfloat16: 2e-1}.get(dtype, 1e-4)
            torch.testing.assert_close(got.double(), want, rtol=tolerance / 10, atol=tolerance)


@pytest.mark.parametrize("sizes", [LONG, LONG | {"n": 2}], ids=["long", "short"])
def test_logsumexp(sizes):
    for einsum in ("nar,ni->air", "nc,nsk->sck"):
        a, c = operands(einsum, sizes, torch.float32)
        got = tilec.compile(text_of(einsum).replace("= +(", "= logsumexp(").replace("] * G", "] + G"))(a, c)
        want = torch.log(torch.einsum(einsum, a.double().exp(), c.double().exp()))
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_tensor_train():
    """The gradients of its cores are sums over all vectors with few entries."""
    source = """function (X[N, A, B, C], T[S, C, K]) -> (U) {
        U[n, a, b, s, k : N, A, B, S, K] = +(X[n, a, b, c] * T[s, c, k]); }"""
    f = tilec.compile(source)
    x = torch.randn(64, 3, 4, 5, requires_grad=True, dtype=torch.float64)
    t = torch.randn(2, 5, 3, requires_grad=True, dtype=torch.float64)
    seed = torch.randn(64, 3, 4, 2, 3, dtype=torch.float64)
    got = torch.autograd.grad(f(x, t), (x, t), seed)
    want = torch.autograd.grad(torch.einsum("nabc,sck->nabsk", x, t), (x, t), seed)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
