"""Elements that are written by digits of their place, and computed where they are read."""

import numpy as np
import pytest
import torch

import tilec

UNPACKED = "W[m, 2*p + r : M, 2*P] = r == 0 ? T[H[m, p]] : T[L[m, p]], r < 2;"
HALVES = "H[m, p] = B[m, p] >> 4; L[m, p] = B[m, p] & 15;"
CASES = {  # source, whether the statement that reads W is computed over both its digits and W's
    "scaled by blocks": (f"{HALVES} {UNPACKED} Y[m, 4*g + u : M, 2*P] = W[m, 4*g + u] * S[m, g], u < 4;", True),
    "scaled by rows": (f"{HALVES} {UNPACKED} Y[m, k] = W[m, k] * S[m, 0];", True),
    "by two scales": (
        f"{HALVES} {UNPACKED} V[m, 8*g + u : M, 2*P] = W[m, 8*g + u] * S[m, g], u < 8;"
        "Y[m, 4*g + u : M, 2*P] = V[m, 4*g + u] + S[m, g], u < 4;",
        True,
    ),
    "halves that are read again": (f"{HALVES} {UNPACKED} Y[m, k] = W[m, k] * H[m, 0];", True),
    "of a number outside": (f"{HALVES} {UNPACKED.replace('H[m, p]', 'H[m, p] + 3')} Y[m, k] = W[m, k] - 1;", True),
    "read at another place": (f"{HALVES} {UNPACKED} Y[m, k : M, 2*P] = W[m, 2*P - 1 - k] * S[m, 0];", False),
    "read twice": (f"{HALVES} {UNPACKED} Y[m, k] = W[m, k] * S[m, 0]; Z = W + 1;", False),
    "blocks that do not hold digits": (
        f"{HALVES} {UNPACKED} Y[m, 3*g + u : M, 2*P] = W[m, 3*g + u] * S[m, g], u < 3;",
        False,
    ),
    "elements that are missing": (
        "W[m, 2*p + r : M, 2*P] = T[r] + B[m, p + 1], r < 2; Y[m, k] = W[m, k] + 1;",
        False,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_digits_of_both(case: str) -> None:
    text, joined = CASES[case]
    g = torch.Generator().manual_seed(0)
    given = [
        torch.randint(0, 256, (3, 12), generator=g, dtype=torch.uint8),
        torch.randn(3, 8, generator=g),
        torch.randn(16, generator=g),
    ]
    outputs = "Y, Z" if "Z =" in text else "Y"
    source = f"function (B[M, P], S[M, G], T[16]) -> ({outputs}) {{ {text} }}"
    f = tilec.compile(source)
    flat = f.lower(*given).stages["flat"]
    assert any(s.output == "Y_apart" for s in flat.statements) == joined
    assert any(s.output == "W" for s in flat.statements) != joined  # and so V
    assert not any(s.output == "V" for s in flat.statements)
    found, wanted = f(*given), tilec.interpret(source, *given)
    for x, y in zip(*(v if isinstance(v, tuple | list) else (v,) for v in (found, wanted)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-6)
