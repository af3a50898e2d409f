"""The additions of docs/extending.md, made to a copy of the package as the page prints them, and run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.fresh import run_fresh

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
TABLES = {  # where a row of a table is put
    "AGGREGATIONS": '        Aggregation("argmax"',
    "COMBINE_VALUES": '    "sum": np.add',
    "TRANSFORMS": '    "flatten": lambda',
    "CONTRACTIONS": '    "widen_statistics",\n)',
    "FAMILIES": '    Family("pointwise"',
    "WAYS": '    "hopper": Way(',
    "DEVICES": '    "sm_80"',
}
IMPORTS = {
    "tilec/pipeline.py": "from tilec.transforms.simplify.signs import cancel_negations",
    "tilec/backends/triton/schedule/families.py": (
        "from tilec.backends.triton.pointwise.flat_copy import copied, copy_steps"
    ),
}
PROGRAM = """
import sys
import numpy as np
import torch
import tilec

x = torch.linspace(-90, 90, 61, dtype=torch.float64)
ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
for backend in ("torch", "triton"):
    f = tilec.compile("Y = logsigmoid(X)", backend=backend)
    value, wanted = f(ours), torch.nn.functional.logsigmoid(theirs)
    torch.testing.assert_close(value, wanted)
    (slope,) = torch.autograd.grad(value.sum(), ours, create_graph=True)
    (wanted,) = torch.autograd.grad(wanted.sum(), theirs)
    torch.testing.assert_close(slope, wanted)
    (bend,) = torch.autograd.grad(slope.sum(), ours)
    torch.testing.assert_close(bend, -torch.sigmoid(x) * torch.sigmoid(-x))

n = torch.randint(-2, 3, (7, 5, 4))
for source in (
    "Y[i] = parity(X[i, j, k])",
    "Y[j] = parity(X[i, j, k])",
    "function (X[A, B, C]) -> (Y) { Y[i, k : A, C] = parity(X[i + d, j, k]), d < 2; }",
    "function (X[A, B, C]) -> (Y) { Y[i, k : A, C] = parity(k > 0 ? X[i, j, k - 1] : 0); }",
    "function (X[A, B, C]) -> (Y) { Y[i, k : A, C] = parity(X[d, j, k]), i - d < A; }",
):
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.float32):
        wanted = tilec.interpret(source, n.to(dtype).numpy())
        for backend in ("torch", "triton"):
            np.testing.assert_array_equal(tilec.compile(source, backend=backend)(n.to(dtype)).numpy(), wanted)

for source in (
    "function (X[N, M]) -> (Y) { Y[i, j : N, M] = X[i, j]; }",
    "function (X[N, M]) -> (Y) { Y[i, j : N, M] = X[i, j], i < 3; }",
    "function (X[N, M]) -> (Y) { Y[i, j : N, M] = -(-X[i, j]); }",
):
    f = tilec.compile(source, backend="triton")
    for t in (torch.randn(50, 40), torch.randn(60, 40), torch.randn(40, 50).T):
        np.testing.assert_array_equal(f(t).numpy(), tilec.interpret(source, t.numpy()))
    text = f.lower(tilec.spec((50, 40)), target="sm_86").source()
    assert ("Y_copy" in text) == ("< 3" not in source), text
"""

WAY = """
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.schedule.candidates import product_configs, steps_of
from tilec.backends.triton.schedule.problem import product_task
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

for shape, fits in (((64, 64), True), ((3, 3), False)):
    types = dict.fromkeys(("A", "B"), TensorType(shape, "float32"))
    lowering = lower(parse("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"), types, {})
    (flat,), (defracted,) = (lowering.stages[n].statements for n in ("flat", "defracted"))
    strides = {n: contiguous(t.shape) for n, t in lowering.types.items()}
    p = product_task(defracted, flat, lowering.types, strides, Setting())
    ours = [] if p is None else [c for c, _ in product_configs(p) if c["family"] == "small"]
    assert bool(ours) == fits, ours
    assert all(steps_of(p, c) for c in ours)
"""

ALONE = """
from tilec.cli import main
assert main(["opt", "-e", "Y[i] = -(-X[i])", "-p", "bind,cancel_negations", "--shape", "X=5"]) == 0
"""


def blocks() -> dict[str, str]:
    """The code of the page, by what stands in the comment above it."""
    code = "\n".join(re.findall(r"```\n(.*?)```", PAGE, re.DOTALL))
    parts = re.split(r"^# (.*tilec/.*)\n", code, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package with the additions."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "tilec", folder / "tilec")  # with what is compiled of files that stay as they are
    shutil.copytree(ROOT / "grammar", folder / "grammar")
    for place, code in blocks().items():
        table, _, rest = place.partition(" in ")
        file = folder / (rest or place).split(",")[0]
        if not file.exists():
            file.write_text(code, encoding="utf-8")
            continue
        text, before = file.read_text(encoding="utf-8"), TABLES[table] if rest else "\nOPERATORS = "
        assert text.count(before) == 1, (place, before)
        file.write_text(text.replace(before, f"{code}{before}"), encoding="utf-8")
    for name, line in IMPORTS.items():
        file = folder / name
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("\nfrom tilec", f"\n{line}\nfrom tilec", 1), encoding="utf-8")
    return folder


def test_all_additions_work(extended: Path) -> None:
    """And the pass alone, in the same process."""
    environment = {"TRITON_INTERPRET": "1", "TILEC_NATIVE": "0"}
    done = run_fresh(PROGRAM + WAY + ALONE, cwd=extended, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Y[i : 5] = X[i];" in done.stdout


def test_each_addition_is_of_the_page() -> None:
    assert len(blocks()) == 10, list(blocks())
