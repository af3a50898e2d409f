"""Values that windows which do not meet read, each once, are computed where they are read."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

TEXT = """function (X[N, H, W, C], G[C], B[C]) -> (O) {{
    R[n, y, x, c] = relu(X[n, y, x, c] * G[c] + B[c]);
    O[n, y, x, c : N, {height}, {width}, C] = {aggregate}(R[n, {row}, {column}, c]), j < {rows}, i < {columns};
}}"""
CASES = {  # aggregate, output's sizes, places, window, kernels
    "maxima": ("max", "H/2", "W/2", "2*y + j", "2*x + i", 2, 2, 1),
    "means of rows left out": ("mean", "(H - 2)/3 + 1", "W/3", "3*y + j", "3*x + i", 2, 3, 1),
    "sums beyond the ends": ("sum", "H/2 + 1", "W/2 + 1", "2*y + j - 1", "2*x + i - 1", 2, 2, 1),
    "windows that meet": ("max", "H/2 - 1", "W/2 - 1", "2*y + j", "2*x + i", 3, 3, 2),
    "windows that lie between": ("sum", "2", "3", "y + 2*j", "x + 3*i", 3, 2, 1),
    "windows one step apart": ("sum", "H - 2", "3", "y + 2*j", "x + 3*i", 2, 2, 2),
}


def _expected(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor, name: str) -> torch.Tensor:
    aggregate, height, width, row, column, rows, columns, _ = CASES[name]
    r = torch.relu(x.double() * g.double() + b.double()).to(x.dtype).double()
    sizes = {"H": x.shape[1], "W": x.shape[2]}
    heights, widths = (eval(e.replace("/", "//"), {}, sizes) for e in (height, width))
    found = torch.zeros(x.shape[0], heights, widths, x.shape[3], dtype=torch.float64)
    for y in range(heights):
        for w in range(widths):
            down = [eval(row, {}, {"y": y, "j": j}) for j in range(rows)]
            along = [eval(column, {}, {"x": w, "i": i}) for i in range(columns)]
            values = [r[:, p, q] for p in down for q in along if 0 <= p < x.shape[1] and 0 <= q < x.shape[2]]
            if values:
                stacked = torch.stack(values)
                found[:, y, w] = stacked.amax(0) if aggregate == "max" else getattr(stacked, aggregate)(0)
    return found


@pytest.mark.parametrize("sizes", ((2, 8, 9, 5), (1, 7, 12, 33)), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(3)
def test_values(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    aggregate, height, width, row, column, rows, columns, kernels = CASES[name]
    text = TEXT.format(
        aggregate=aggregate, height=height, width=width, row=row, column=column, rows=rows, columns=columns
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes, generator=generator).to(dtype)
    g, b = (torch.randn(sizes[-1], generator=generator).to(dtype) for _ in "GB")
    f = tilec.compile(text, backend="triton")
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(f(x, g, b).double(), _expected(x, g, b, name), rtol=tolerance, atol=tolerance)
    assert len(f.lower(x, g, b, target="sm_90").kernels) == kernels
