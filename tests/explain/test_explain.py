"""The page that explains a function: what is on it, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilec
from tilec import gallery
from tilec.cli import main
from tilec.explain.reach import reached_points
from tilec.lattice.sets import shapes_of

CONVOLUTION = """function conv(I[N, H, W, C], K[3, 3, C, D]) -> (O) {
    O[n, y, x, d : N, (H + 1)/2, (W + 1)/2, D] = +(I[n, 2*y + j - 1, 2*x + i - 1, c] * K[j, i, c, d]);
}"""
SPECS = tilec.spec((2, 9, 10, 4)), tilec.spec((3, 3, 4, 8))
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)


def positions(function: tilec.Function, *args: object) -> dict[str, set[tuple[int, ...]]]:
    program = function.lower(*args).stages["flat"]
    found = reached_points(program.statements[-1], shapes_of(program))
    assert found is not None
    return {r.tensor: set(map(tuple, r.positions.tolist())) for r in (found.tile, *found.inputs)}


def test_what_a_tile_of_a_convolution_reads() -> None:
    found = positions(tilec.compile(CONVOLUTION), *SPECS)
    assert found["O"] == {(0, y, x, 3) for y in (1, 2) for x in (1, 2)}
    assert found["I"] == {(0, y, x, c) for y in range(1, 6) for x in range(1, 6) for c in range(4)}
    assert found["K"] == {(j, i, c, 3) for j in range(3) for i in range(3) for c in range(4)}


def test_guards_and_the_border_count() -> None:
    found = positions(tilec.compile("function (X[N]) -> (Y) { Y[i : N] = sum(i - j >= 0 ? X[j]); }"), tilec.spec((8,)))
    assert found["Y"] == {(3,), (4,)} and found["X"] == {(j,) for j in range(5)}
    found = positions(tilec.compile("function (X[N]) -> (Y) { Y[i : N] = +(X[i + j - 2]), j < 3; }"), tilec.spec((2,)))
    assert found["X"] == {(0,), (1,)}


@pytest.mark.parametrize(
    "name", ["scatter_add", "embedding", "tanh_network", "ctc", "dropout", "life", "histogram", "softmax"]
)
def test_pages_of_the_gallery(name: str) -> None:
    page = gallery.load(name).explain(*gallery.entry(name).example()).html
    assert page.count("<section>") == page.count("</section>") == 2
    assert "http" not in page.replace("http://www.w3.org/1998/Math/MathML", "")


def test_what_stands_on_the_page() -> None:
    page = tilec.compile(CONVOLUTION).explain(*SPECS, target="sm_90", backend="triton").html
    assert "<math" in page and "<svg" in page and "@triton.jit" in page
    assert "<ins>" in page and "defracted" in page
    for link in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{link}"' in page
    assert "<code>y</code></td><td>0 to 4</td><td>of the output" in page


def test_without_a_gradient() -> None:
    page = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = X[i] + 1; }").explain(np.arange(3))
    assert "Gradient" in page.html and page._repr_html_().startswith("<iframe")


def test_empty_shapes() -> None:
    assert "<h1>conv" in tilec.compile(CONVOLUTION).explain(tilec.spec((0, 9, 10, 4)), SPECS[1]).html


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    command = ["explain", "-e", CONVOLUTION, "--shape", "I=2,9,10,4", "K=3,3,4,8", "--html"]
    assert main([*command, str(out)]) == 0
    assert out.read_text().startswith("<!DOCTYPE html>") and "wrote" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "none" / "page.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
def test_in_a_browser(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    tilec.compile(CONVOLUTION).explain(*SPECS).save(out)
    shot = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,1800", f"--screenshot={shot}"]
    subprocess.run([BROWSER, *options, out.as_uri()], check=True, capture_output=True, timeout=60)
    assert shot.stat().st_size > 40_000  # text and drawings; an empty page has a few thousand bytes
    seen = subprocess.run(
        [BROWSER, *options[:3], "--dump-dom", out.as_uri()], capture_output=True, text=True, timeout=60
    )
    assert seen.stdout.count("<math") == 5 and seen.stdout.count("<svg") == 9
