"""An intermediate of another shape is the same memory: no kernel, no copy."""

import os

import pytest
import torch

import tilec

INPUT = "function (X[N, C, T]) -> (Y) {"
NORMAL = "M[n : N] = >(X[n, c, t]); O[n, c, t : N, C, T] = X[n, c, t] - M[n];"
FREE = {
    "joined": f"{INPUT} {NORMAL} Y = reshape(O, N, C * T); }}",
    "cut": f"{INPUT} {NORMAL} Y = reshape(O, N, 2, C / 2, T); }}",
    "one of one": "function (X[N, C, T]) -> (Y) { O[i : 1] = +(X[n, c, t]); Y = reshape(O, 1, 1); }",
}
COPIED = {
    "turned": f"{INPUT} {NORMAL} Y[t, n, c : T, N, C] = O[n, c, t]; }}",
    "of an input": "function (X[N, C, T]) -> (Y) { Y = reshape(X, N, C * T); }",
    "of an output": f"function (X[N, C, T]) -> (O, Y) {{ {NORMAL} Y = reshape(O, N, C * T); }}",
    "reversed": f"{INPUT} {NORMAL} Y[n, c, t : N, C, T] = O[n, c, T - 1 - t]; }}",
}


def lines(source: str) -> str:
    return tilec.compile(source).lower(tilec.spec((3, 4, 40)), backend="triton", target="sm_90").source()


@pytest.mark.parametrize("name", FREE)
def test_no_copy(name):
    assert ".view(" in lines(FREE[name]) and "Y_kernel" not in lines(FREE[name])


@pytest.mark.parametrize("name", COPIED)
def test_copied(name):
    assert ".view(" not in lines(COPIED[name])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", [*FREE, *COPIED])
def test_values(name):
    source = {**FREE, **COPIED}[name]
    x = torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(0))
    found, wanted = (tilec.compile(source, backend=b)(x) for b in ("triton", "torch"))
    for f, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(f, w)
        assert f.is_contiguous() and f.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    if isinstance(found, tuple):
        assert len({f.untyped_storage().data_ptr() for f in found}) == len(found)
