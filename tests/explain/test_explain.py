"""The page that explains a function: what is on it, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilec
from tilec import gallery
from tilec.cli import main
from tilec.explain.links import Links
from tilec.explain.reach import reached_points
from tilec.explain.residues import ResidueClass, residues_of
from tilec.ir.index import linear
from tilec.ir.program import accesses_in, index_variables
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


@pytest.mark.one_in(2)
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
    assert "class='line ins'" in page and "<mark>" in page and "defracted" in page
    for link in re.findall(r"href='#([^']+)'", page):
        assert f'id="{link}"' in page
    assert "<code>y</code></td><td>0..4</td><td>parallel" in page and "reduction: summed over" in page
    assert "4 residue classes" in page and "memory-bound" in page


def test_without_a_gradient() -> None:
    page = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = X[i] + 1; }").explain(np.arange(3))
    assert "Gradient" in page.html and page._repr_html_().startswith("<iframe")
    assert len(repr(page)) < 100  # a console shows what it is, not the page


def test_empty_shapes() -> None:
    assert "<h1>conv" in tilec.compile(CONVOLUTION).explain(tilec.spec((0, 9, 10, 4)), SPECS[1]).html


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    command = ["explain", "-e", CONVOLUTION, "--shape", "I=2,9,10,4", "K=3,3,4,8", "--html"]
    assert main([*command, str(out)]) == 0
    assert out.read_text().startswith("<!DOCTYPE html>") and "wrote" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "none" / "page.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


STRIDED = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}"""


def classes(kernel: int) -> list[ResidueClass]:
    f = tilec.compile(STRIDED)
    specs = tilec.spec((2, 21, 21, 4)), tilec.spec((kernel, kernel, 4, 5))
    program = f.grad("I").lower(*specs, tilec.spec((2, 7, 7, 5))).stages["defracted"]
    return list(residues_of(program.statements[0], shapes_of(program)))


def test_residue_classes_of_a_gradient() -> None:
    """With stride 3 and dilation 2, tap j reaches the rows y with y = 2j modulo 3: one tap a class and dimension."""
    found = classes(3)
    assert [tuple(c.residues.values()) for c in found] == [(a, b) for a in range(3) for b in range(3)]
    assert {c.terms for c in found} == {5}
    assert all(linear(e).is_integral for c in found for a in accesses_in(c.statement.body) for e in a.index)
    assert not any(index_variables(x.expr) & set(c.residues) for c in found for x in c.statement.constraints)


def test_residue_classes_without_terms() -> None:
    """Two taps reach residues 0 and 2 alone: what the others hold is the default."""
    assert [c.terms for c in classes(2)] == [5, 0, 5, 0, 0, 0, 5, 0, 5]
    program = (
        tilec.compile(STRIDED)
        .grad("I")
        .explain(tilec.spec((2, 21, 21, 4)), tilec.spec((2, 2, 4, 5)), tilec.spec((2, 7, 7, 5)))
    )
    assert program.html.count("none: the default") == 5


ATTENTION = """function (Q[B, N, E], K[B, M, E], V[B, M, E]) -> (O) {
    S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
    L[b, i : B, N] = logsumexp(i - j >= 0 ? S[b, i, j]);
    O[b, i, e : B, N, E] = +(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, e]);
}"""


def attention_links() -> Links:
    specs = [tilec.spec((2, 64, 32), "float16")] * 3
    return Links(tilec.compile(ATTENTION).lower(*specs, backend="triton", target="sm_90"), "f")


def test_lines_of_a_block_program_and_of_its_text_serve_the_same() -> None:
    (kernel,) = attention_links().kernels
    assert kernel.statements == ("S", "L", "O") and kernel.block
    for lines in (kernel.block, kernel.lines):
        served = {text.strip().split("[")[0].split("(")[0]: owners for text, owners in lines}
        assert {o for owners in served.values() for o in owners} == {"L", "O"}
    block = {text.split(":")[0].strip(): owners for text, owners in kernel.block}
    text = {line.split(" = ")[0].strip(): owners for line, owners in kernel.lines}
    assert next(v for k, v in block.items() if k.startswith("%p")) == ("L",) == text["p"]
    assert [o for line, o in kernel.block if line.strip().startswith("store")] == [("L",), ("O",)]
    assert all(o == ("O",) for line, o in kernel.lines if "tl.load(V " in line)


def test_a_statement_inside_of_others_is_linked_to_their_lines() -> None:
    links = attention_links()
    assert links.keys(["L"]).split() == [links.key("L"), links.key("S")]
    assert links.keys(["O"]).split() == [links.key("O"), links.key("S")]


def test_costs_count_what_kernels_compute_inside() -> None:
    lowered = tilec.compile(ATTENTION).lower(
        *[tilec.spec((2, 64, 32), "float16")] * 3, backend="triton", target="sm_90"
    )
    points, each = 2 * 64 * 64, 2 * 2 * 64 * 32
    (kernel,) = lowered.kernel_costs()
    assert kernel.outputs == ("L", "O") and kernel.dtype == "float16"
    half = 65 / 128 * points  # of them are valid; scores take 2 operations a feature, mixtures 2 to 6
    assert lowered.cost().flops == kernel.flops and 4 * 32 * half < kernel.flops < 10 * 32 * half
    size = lowered.outputs[0].dtype == "float32"
    assert lowered.cost().least_bytes == 3 * each + each * (2 if size else 1)
    assert kernel.bytes_moved <= lowered.cost().least_bytes + 4 * 2 * 64


SEEN = """<script>
const widths = [400, 900, 1500], found = [];
const frames = widths.map(w => {
  const f = document.createElement("iframe");
  f.width = w; f.height = 900; f.srcdoc = PAGE; document.body.append(f);
  return f;
});
Promise.all(frames.map(f => new Promise(done => f.onload = done))).then(() => {
  for (const f of frames) {
    const d = f.contentDocument;
    d.querySelectorAll("details").forEach(e => e.open = true);
    const scrolls = e => e && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
    const wide = [...d.body.querySelectorAll("*")].filter(
      e => e.getBoundingClientRect().right > f.width - 0 + 1 && !scrolls(e.parentElement));
    const line = [...d.querySelectorAll(".two pre .line[data-s]")][5];
    line.dispatchEvent(new f.contentWindow.MouseEvent("click", {bubbles: true}));
    const panes = new Set([...d.querySelectorAll(".lit")].map(e => e.closest("pre")));
    const lit = d.querySelectorAll(".lit").length;
    d.dispatchEvent(new f.contentWindow.KeyboardEvent("keydown", {key: "Escape"}));
    found.push([wide.length, panes.size, lit > 20, d.querySelectorAll(".lit").length]);
  }
  document.title = JSON.stringify(found);
});
</script>"""


def chromium(*options: str) -> str:
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
def test_in_a_browser(tmp_path: Path) -> None:
    out, shot = tmp_path / "page.html", tmp_path / "page.png"
    tilec.compile(CONVOLUTION).explain(*SPECS).save(out)
    seen = chromium("--window-size=1500,1800", f"--screenshot={shot}", "--dump-dom", out.as_uri())
    assert shot.stat().st_size > 40_000  # text and drawings; an empty page has a few thousand bytes
    assert seen.count("<math") == 8 and seen.count("<svg") == 11


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
def test_layout_and_links_in_a_browser(tmp_path: Path) -> None:
    """Nothing overflows a phone's, a tablet's or a desktop's width; a click marks lines in several panes."""
    specs = [tilec.spec((2, 64, 32), "float16")] * 3
    page = tilec.compile(ATTENTION).explain(*specs, backend="triton", target="sm_90").html
    harness = tmp_path / "harness.html"
    quoted = json.dumps(page).replace("</", "<\\/")
    harness.write_text(f"<!DOCTYPE html><title>x</title><body>{SEEN.replace('PAGE', quoted)}</body>")
    seen = chromium("--virtual-time-budget=8000", "--dump-dom", harness.as_uri())
    title = re.search(r"<title>(.*?)</title>", seen)
    assert title is not None
    found = json.loads(title[1])
    assert len(found) == 3
    for wide, panes, many, after in found:
        assert wide == 0 and panes >= 4 and many and after == 0
