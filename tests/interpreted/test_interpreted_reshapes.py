"""An intermediate of another shape is the same memory: no kernel, no copy."""

import os

import pytest
import torch
from support.allocated import allocated

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


GROUP_NORM = """function (X[N, C, T], G[C], B[C]) -> (Y) {
    Z = reshape(X, N, C / 4, 4, T);
    A = reshape(G, C / 4, 4);
    D = reshape(B, C / 4, 4);
    M[n, g : N, C / 4] = mean(Z[n, g, c, t]);
    V[n, g : N, C / 4] = mean((Z[n, g, c, t] - M[n, g]) * (Z[n, g, c, t] - M[n, g]));
    O[n, g, c, t : N, C / 4, 4, T] = (Z[n, g, c, t] - M[n, g]) * rsqrt(V[n, g] + 0.1) * A[g, c] + D[g, c];
    Y = reshape(O, N, C, T);
}"""


def test_kernels_read_through_views_of_inputs():
    specs = [tilec.spec(shape, "bfloat16") for shape in ((16, 256, 4096), (256,), (256,))]
    gradient = tilec.compile(GROUP_NORM, backend="triton").grad(["X", "G", "B"])
    source = gradient.lower(*specs, specs[0], target="sm_90").source()
    assert source.count("_rows[(") == 2 and not {"Z", "DO"} & allocated(source).keys()


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("shape", [(2, 16, 2048), (40, 8, 33), pytest.param((1, 4, 1), marks=pytest.mark.slow)])
@pytest.mark.one_in(3)
def test_values_read_through_views(shape):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, shape[1:2], shape[1:2], shape)]
    inputs[0] = inputs[0].transpose(0, 1).contiguous().transpose(0, 1)  # not as a view of contiguous memory
    wanted = tilec.compile(GROUP_NORM, backend="torch").grad(["X", "G", "B"])(*inputs)
    found = tilec.compile(GROUP_NORM, backend="triton").grad(["X", "G", "B"])(*(t.float() for t in inputs))
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.double(), w, rtol=1e-4, atol=1e-4)


MERGED = """function (X[N, H, W, C], G[K]) -> (Y) {
    P[n, h, w, b, a, c : N, H/2, W/2, 2, 2, C] = X[n, 2*h + a, 2*w + b, c];
    Z = reshape(P, N, H/2, W/2, 4*C);
    M[n, h, w : N, H/2, W/2] = mean(Z[n, h, w, k]);
    Y[n, h, w, k : N, H/2, W/2, 4*C] = (Z[n, h, w, k] - M[n, h, w]) * G[k];
}"""


def test_rows_read_joined_axes_as_memory_runs():
    f, types = tilec.compile(MERGED, backend="triton"), (tilec.spec((32, 56, 56, 96)), tilec.spec((384,)))
    lowered = f.lower(*types, target="sm_90")
    assert len(lowered.kernels) == 1 and "Y = Y_apart.view(" in lowered.source()


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (1, 2, 2, 1), (2, 4, 2, 8)])
@pytest.mark.one_in(3)
def test_values_of_joined_axes(shape):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, (4 * shape[3],))]
    cotangent = torch.randn((shape[0], shape[1] // 2, shape[2] // 2, 4 * shape[3]), generator=generator).double()
    wanted = tilec.compile(MERGED, backend="torch").grad(["X", "G"])(*inputs, cotangent)
    found = tilec.compile(MERGED, backend="triton").grad(["X", "G"])(*(t.float() for t in (*inputs, cotangent)))
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.double(), w, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "text",
    [
        "function (A[], B[N]) -> (Y) { T = reshape(A, 1, 1); Y = max[p](pad(T[2*p, 2*p + 1], 1.5) + B[p]) + B; }",
        """function (A[N], B[N]) -> (Y) {
            T = reshape(A, 2, N/2);
            M = sum[p](pad(T[0, p], 7) * B[p]);
            Y[i : N] = M * in(T[1, i]) + B[i];
        }""",
    ],
)
def test_places_beyond_an_axis_that_a_reshape_made(text):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(shape, generator=generator) for shape in ((4,) if "A[N]" in text else (), (4,))]
    found = tilec.compile(text, backend="triton")(*inputs)
    torch.testing.assert_close(found, tilec.compile(text, backend="torch")(*inputs))
