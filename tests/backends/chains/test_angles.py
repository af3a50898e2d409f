"""Products whose values are angles: stored where sines take longer than memory does."""

from __future__ import annotations

import pytest

import tilec

FEATURES = """function (X[N, D], W[D, F], B[F], V[F, O]) -> (Y) {{
    P[n, f : N, F] = +(X[n, d] * W[d, f]);
    Z = {}(P + B);
    Y[n, o : N, O] = +(Z[n, f] * V[f, o]);
}}"""


def is_chain(function: str, rows: int, features: int, width: int = 64) -> bool:
    shapes = (rows, width), (width, features), (features,), (features, width)
    specs = [tilec.spec(s, "bfloat16") for s in shapes]
    return "Y_chain" in tilec.compile(FEATURES.format(function)).lower(*specs, target="sm_90").source()


@pytest.mark.parametrize(
    ("function", "rows", "features", "wanted"),
    [("cos", 8192, 2048, False), ("sin", 8192, 2048, False), ("tanh", 8192, 2048, True)],
)
def test_features(function: str, rows: int, features: int, wanted: bool) -> None:
    assert is_chain(function, rows, features) is wanted


def test_few_angles_stay_in_a_chain() -> None:
    assert is_chain("cos", 2048, 512, 16)


def test_what_takes_much_memory_stays_a_chain() -> None:
    assert is_chain("cos", 2**17, 2048)
