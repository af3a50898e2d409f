"""torch's own checks of the operator: of the examples' programs and their gradients."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

import tilec
from tests.support.torch_programs import EXAMPLES
from tilec.calls import call_cache
from tilec.specialise import Specialiser
from tilec.torch_op.text import text_of

SCRIPTS = sorted(p for p in (Path(__file__).parents[2] / "examples").glob("*.py") if p.name != "checks.py")
LARGEST = 4096  # elements of a call that is checked

pytestmark = pytest.mark.filterwarnings("ignore")


def check(function: Specialiser, tensors, weak=(), values=()) -> None:
    asking = [t.requires_grad for t in tensors]
    if not any(asking):
        asking = [t.is_floating_point() for t in tensors]
    given = [t.detach().clone().requires_grad_(a) for t, a in zip(tensors, asking, strict=True)]
    numbers = [p for p, w in enumerate(weak) if w]
    arguments = (text_of(function), given, numbers, list(values))
    for test, result in torch.library.opcheck(torch.ops.tilec.call.default, arguments).items():
        assert result == "SUCCESS", f"{test}: {function.source}"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "softmax" else pytest.mark.slow) for n in EXAMPLES])
def test_table(name: str) -> None:
    example = EXAMPLES[name]
    function = tilec.compile(example.source)
    given = [*example.inputs(), *map(torch.tensor, example.integers)]
    check(function._specialiser, given)
    wrt = [n for n, t in zip(function.inputs, given, strict=True) if t.is_floating_point()]
    check(function.grad(wrt)._specialiser, [*given, torch.randn_like(function(*given))])


def test_channels_last() -> None:
    """A traced result lies as the computed one, by a rule over the program alone."""
    source = """function (X[N, C, H, W]) -> (Y, Z) {
        Y[n, c, y, x : N, C, H / 2, W / 2] = >(X[n, c, 2*y + j, 2*x + i]), j < 2, i < 2;
        Z[n, y, x, c : N, H, W, C] = X[n, c, y, x]; }"""
    function = tilec.compile(source)._specialiser
    x = torch.randn(2, 6, 4, 8).to(memory_format=torch.channels_last)
    check(function, [x])
    y, z = torch.ops.tilec.call(text_of(function), [x], [], [])
    assert y.is_contiguous(memory_format=torch.channels_last) and z.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_scripts(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each function that an example calls, with what it is first called with that is not large."""
    calls: dict[str, tuple] = {}
    original = call_cache.recorded_call

    def call(function, tensors, weak, values):
        plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
        if plain and sum(t.numel() for t in tensors) <= LARGEST and not torch._C._are_functorch_transforms_active():
            calls.setdefault(text_of(function), (function, tensors, weak, values))
        return original(function, tensors, weak, values)

    monkeypatch.setattr(call_cache, "recorded_call", call)
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    for arguments in calls.values():
        check(*arguments)
    print(len(calls), "functions")
