"""Calls that differ from known ones in sizes alone are filled in, and agree bit for bit with those that are not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest
import torch
from support.tiers import slow_but

import tilec
from tilec.bench.overheads import LENGTH_CASES, LengthCase
from tilec.calls import open_calls

SUM = "function (X[N, F], W[F]) -> (Y, S) { Y[n, f : N, F] = exp(X[n, f]) * W[f]; S[n : N] = +(Y[n, f]); }"
FIRST = [c for c in LENGTH_CASES if c.name in ("softmax", "product", "recurrence", "bias + gelu")]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many calls, and how many backward passes, were filled in."""
    found = {"calls": 0, "passes": 0}

    def count(owner: type, name: str, kind: str) -> None:
        whole = getattr(owner, name)

        def call(*given: object) -> bool:
            added = whole(*given)
            found[kind] += added
            return added

        monkeypatch.setattr(owner, name, call)

    count(open_calls.OpenCalls, "__call__", "calls")
    count(open_calls.OpenBackward, "_add", "passes")
    return found


def lengths(seed: str) -> Iterator[int]:
    every = list(range(256, 640, 16))
    Random(seed).shuffle(every)
    return iter(every)


def in_python(monkeypatch: pytest.MonkeyPatch, call: Callable[[], list]) -> list:
    """What a call gives without the library."""
    with monkeypatch.context() as patch:
        patch.setenv("TILEC_NATIVE", "0")
        return call()


def equal(ours: list, wanted: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))


def both_passes(f: tilec.Function, inputs: list[torch.Tensor], transposed: bool) -> list[torch.Tensor]:
    """The output, and gradients by the inputs that require one."""
    y = f(*inputs)
    asked = [t for t in inputs if t.requires_grad]
    d = torch.linspace(0, 1, y.numel(), device=y.device)
    d = d.view(y.shape[::-1]).permute(*reversed(range(y.dim()))) if transposed else d.view(y.shape)
    return [y.detach(), *(torch.autograd.grad(y, asked, d) if asked else ())]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", slow_but(LENGTH_CASES, FIRST), ids=lambda case: case.name)
def test_agrees(library, counted, case: LengthCase, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, for inputs of any layout that some or none of which need gradients, at once and again."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    f, other, draw = tilec.compile(case.source), tilec.compile(case.source), Random(case.name)
    for step, n in enumerate(lengths(case.name)):
        if step == 16:
            break
        transposed, aligned = step > 6 and draw.random() < 0.2, step < 6 or draw.random() < 0.8
        asked = [step < 6 or draw.random() < 0.8 for _ in case.shapes(n)]
        inputs = []
        for shape, asks in zip(case.shapes(n), asked, strict=True):
            t = torch.randn(torch.Size(shape).numel() + 1, device=device)[not aligned :][: torch.Size(shape).numel()]
            t = t.view(shape[::-1]).t() if transposed and len(shape) == 2 else t.view(shape)
            inputs.append(t.requires_grad_(asks))
        wanted = in_python(monkeypatch, partial(both_passes, other, inputs, transposed))
        for _ in range(3):
            assert equal(both_passes(f, inputs, transposed), wanted), n
    assert counted["calls"] > 3 and counted["passes"] > 1  # of 16 lengths; other layouts are other classes


def made(n: int, device: str = "cpu") -> list[torch.Tensor]:
    torch.manual_seed(n)
    return [torch.randn(n, 48, device=device, requires_grad=True), torch.randn(48, device=device, requires_grad=True)]


def warm(f: tilec.Function, counted: dict[str, int], device: str = "cpu") -> None:
    for n in (256, 272, 304, 320, 336):
        x, w = made(n, device)
        torch.autograd.grad(sum(y.sum() for y in f(x, w)), (x, w))
    assert counted["calls"] and counted["passes"]


def test_unusual_backward_passes(library, counted, device: str) -> None:
    """The first one at a length may be any: by one input, of one output, recorded, or of other tensors than were
    kept."""
    f = tilec.compile(SUM)
    warm(f, counted, device)

    def reference(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp() * w
        return y, y.sum(1)

    def hooked(g, x, w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.clone() * 2):
            y, s = g(x, w)
        return torch.autograd.grad(y.sum() + s.sum(), (w,))

    def twice(s, w):
        return torch.autograd.grad(s.sin().sum(), w, create_graph=True)[0].sum()

    ways = [
        lambda g, x, w: torch.autograd.grad(g(x, w)[0].sum(), (w,)),
        lambda g, x, w: torch.autograd.grad(g(x, w)[1].sum(), (x,)),
        lambda g, x, w: torch.autograd.grad(twice(g(x, w)[1], w), x),
        lambda g, x, w: torch.autograd.grad(sum(y.sum() for y in g(x, w.detach())), (x,)),
        lambda g, x, w: torch.func.grad(lambda v: g(v, w)[1].sum())(x),
        lambda g, x, w: (torch.func.vmap(lambda v: g(v, w)[1])(x.view(2, -1, 48)),),
        lambda g, x, w: torch.func.jvp(lambda v: g(v, w), (x,), (x,))[1],
    ]  # fmt: skip
    for n, way in zip(lengths("unusual"), 2 * ways, strict=False):
        x, w = made(n, device)
        for ours, wanted in zip(way(f, x, w), way(reference, x, w), strict=True):
            # a sine's derivatives take the error of the sum that it is of as it stands, times an exponential
            torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3)
    before = counted["passes"]
    for n in (656, 672, 688):
        x, w = made(n, device)
        torch.testing.assert_close(hooked(f, x, w), hooked(tilec.compile(SUM), x, w))
    assert counted["passes"] > before


def test_saved_tensors_of_other_kinds_are_looked_at(library, counted) -> None:
    """Hooks may give back other types and shapes than were kept."""
    f = tilec.compile(SUM)
    warm(f, counted)
    before = counted["passes"]
    x, w = made(656)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.double()):
        y, _ = f(x, w)
    (dw,) = torch.autograd.grad(y.sum(), (w,))
    assert counted["passes"] == before
    torch.testing.assert_close(dw, x.detach().exp().sum(0), rtol=1e-4, atol=1e-3)


def test_sizes_outside_of_the_class(library, counted) -> None:
    """Lengths that fail a guard, and mistakes, are as they are in a first call."""
    f = tilec.compile(SUM)
    warm(f, counted)
    for n in (0, 1, 5, 48, 7, 1000):
        x, w = made(n)
        y, s = f(x, w)
        torch.testing.assert_close((y, s), (x.exp() * w, (x.exp() * w).sum(1)))
    with pytest.raises(tilec.TileError, match="W"):
        f(torch.randn(400, 48), torch.randn(47))
    with pytest.raises(tilec.TileError):
        f(torch.randn(416, 48, 2), torch.randn(48))


def test_nothing_is_kept_alive(library, counted) -> None:
    f = tilec.compile(SUM)
    warm(f, counted)
    gone = weakref.ref(f.specialiser)
    del f
    gc.collect()
    assert gone() is None
