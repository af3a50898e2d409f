"""Values that are computed where they are read, at neighbours, interpreted: ends of tensors, guards, dtypes, sizes."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.fusion import groups

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

P = "P[y, x : H, W] = X[y, x] * C[y, x] * 3;"
CASES = {  # text of the function (X[H, W], C[H, W]) -> (Y, Z), whose P is read at neighbours
    "inside": P + "Y[y, x : H, W] = sum(P[y - 1, x]) + sum(P[y + 1, x]) - P[y, x]; Z = P * X;",
    "padded": P
    + """Y[y, x : H, W] = pad(P[y - 1, x + 1], 7) - P[y, x];
        Z[y, x : H, W] = P[y, x] + pad(P[y, x - 1], X[y, x]);""",
    "round": P + "Y[y, x : H, W] = P[(y + 1) % H, x] * P[y, (x - 2) % W]; Z = X * P;",
    "clamped": P + "Y[y, x : H, W] = P[clamp(y - 1, 0, H - 1), x] - P[y, clamp(x + 1, 0, W - 1)]; Z = X * P;",
    "twice": P
    + """Q[y, x : H, W] = sum(P[y, x - 1]) - X[y, x];
        Y[y, x : H, W] = pad(Q[y + 1, x - 1], 2) + Q[y, x]; Z = Q * P;""",
    "a part": """P[y, x : H, W - 1] = X[y, x + 1] * C[y, x];
        Y[y, x : H, W] = sum(P[y, x - 1]) + pad(P[y, x], 0); Z = X * C;""",
    "a guard": """P[y, x : H, W] = x > 1 ? X[y, x] * C[y, x];
        Y[y, x : H, W] = sum(y > 0 ? P[y, x - 1]) + P[y, x]; Z = X * C;""",
    "a place": P + "Y[y, x : H, W] = sum(x == 0 ? P[y, 0]) + pad(P[y - 1, W - 1], 1); Z = X * P;",
    "counts": """P[y, x : H, W] = X[y, x] * (x + 2*y);
        Y[y, x : H, W] = P[(y + 1) % H, x] + pad(P[y, x - 1], 0); Z = C * P;""",
    "inside of": P + "Y[y, x : H, W] = X[y, x] * in(P[y - 1, x]) + sum(C[y, x] * in(P[y, x + 1])); Z = X * C;",
    "divided": "P[y, x : H, W] = X[y, x] / C[y, x]; Y[y, x : H, W] = pad(P[y, x - 1], 1) + P[y, x]; Z = X * P;",
}


def of(text: str) -> str:
    return f"function (X[H, W], C[H, W]) -> (Y, Z) {{ {text} }}"


@pytest.fixture
def choice(monkeypatch):
    """Computes such values whatever it takes, and counts how often there were any."""
    found = []
    monkeypatch.setattr(groups, "faster", lambda *_: found.append(1) or True)
    return found


def tensors(shape, dtype):
    generator = torch.Generator().manual_seed(5)
    x, c = (torch.randint(1, 9, shape, generator=generator) for _ in range(2))
    return (x / 7).to(dtype) if dtype.is_floating_point else x.to(dtype), c.to(dtype)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 5), torch.float32), ((1, 2), torch.float32), ((0, 3), torch.float32), ((3, 4), torch.int32)],
)
@pytest.mark.one_in(3)
def test_values_are_those_of_the_oracle(choice, name, shape, dtype):
    x, c = tensors(shape, dtype)
    found = tilec.compile(of(CASES[name]), backend="triton")(x, c)
    expected = tilec.interpret(of(CASES[name]), x, c)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, torch.as_tensor(b).to(a.dtype), equal_nan=True)
    assert choice or 0 in shape


@pytest.mark.parametrize("name", ["inside", "padded", "a part", "divided"])
def test_sixteen_bits_keep_their_digits(choice, name):
    x, c = tensors((3, 4), torch.bfloat16)
    found = tilec.compile(of(CASES[name]), backend="triton")(x, c)
    for a, b in zip(found, tilec.interpret(of(CASES[name]), x.double(), c.double()), strict=True):
        assert torch.equal(a, torch.as_tensor(b).to(a.dtype))


def test_equal_neighbours_stay_equal(choice):
    source = of(P + "Y[y, x : H, W] = P[y, (x + 1) % W] - 2 * P[y, x] + P[y, (x - 1) % W]; Z = X * P;")
    x = torch.full((2, 3), 1.1, dtype=torch.bfloat16)
    assert not tilec.compile(source, backend="triton")(x, x)[0].any() and choice


def test_gradient_of_a_flux(choice):
    source = """function (A[H, W], K[H, W]) -> (Y) {
        F[y, x : H, W - 1] = (K[y, x] + K[y, x + 1]) / 2 * (A[y, x + 1] - A[y, x]);
        Y[y, x : H, W] = A[y, x] + pad(F[y, x], 0) - pad(F[y, x - 1], 0);
    }"""
    a, k = (t.double().requires_grad_() for t in tensors((3, 5), torch.float64))
    torch.autograd.gradcheck(tilec.compile(source, backend="triton"), (a, k))
    assert choice
