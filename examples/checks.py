"""What the examples share: compare with torch, time both, count what they keep, exit non-zero on a mismatch."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[..., torch.Tensor]

SECONDS = 1.0  # no further round of a comparison of times begins after these


def device() -> str:
    """Where an example runs: on the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def kept_bytes(call: Callable[[], object]) -> int:
    """Bytes that torch's autograd keeps from a call for its backward pass; a tensor kept twice counts once."""
    found: dict[int, int] = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        found[t.data_ptr()] = t.nbytes
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = call()
    del result
    return sum(found.values())


class Checks:
    """Collects comparisons under a title; `finish` exits with 1 if one failed."""

    def __init__(self, title: str):
        self.failed = False
        print(title)

    def equal(self, what: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
        """Compare shapes, and values relative to the largest of theirs."""
        ours, theirs = ours.detach(), theirs.detach()
        same_shape = ours.shape == theirs.shape
        scale = theirs.abs().max().clamp(min=1e-300) if theirs.numel() else torch.tensor(1.0)
        error = float((ours - theirs).abs().max() / scale) if same_shape and theirs.numel() else 0.0
        good = same_shape and error <= tolerance
        self.failed |= not good
        detail = (
            f"relative error {error:.1e}" if same_shape else f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
        )
        print(f"  {'ok      ' if good else 'MISMATCH'} {what}: {detail} (tolerance {tolerance:.0e})")

    def layer(self, what: str, ours: Call, theirs: Call, inputs: Sequence[torch.Tensor], floor: float = 4.0) -> None:
        """Value and gradients beside torch's in the inputs' type, both held against torch in float64: the error may be
        twice torch's, or `floor` units in the last place of the largest element."""
        y = theirs(*(x.double() for x in inputs))
        d = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.device, inputs[0].dtype)
        exact = _with_gradients(theirs, [x.detach().double() for x in inputs], d.double())
        results = [_with_gradients(f, [x.detach() for x in inputs], d) for f in (ours, theirs)]
        names = ["value", *(f"gradient {k}" for k in range(1, len(exact)))]
        errors = []
        for name, mine, other, e in zip(names, *results, exact, strict=True):
            scale = e.abs().max().clamp(min=1e-300)
            error, reference = (float((r.double() - e).abs().max() / scale) for r in (mine, other))
            good = mine.shape == e.shape and error <= max(2 * reference, floor * torch.finfo(mine.dtype).eps)
            self.failed |= not good
            errors.append(f"{name} {error:.1e} ({reference:.1e})" + ("" if good else " MISMATCH"))
        verdict = "MISMATCH" if any("MISMATCH" in e for e in errors) else "ok      "
        print(f"  {verdict} {what}, errors (torch's): {', '.join(errors)}")

    def keeps(self, what: str, ours: Callable[[], object], most: int, **others: Callable[[], object]) -> None:
        """What autograd keeps of our call, `most` bytes at the most, beside what it keeps of others."""
        mine = kept_bytes(ours)
        self.failed |= mine > most
        beside = ", ".join(f"{name} {kept_bytes(call):,}" for name, call in others.items())
        print(f"  {'ok      ' if mine <= most else 'MISMATCH'} {what}: {mine:,} bytes kept for the gradient; {beside}")

    def time(self, what: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7) -> None:
        """Median times of both, taken in turn after a warm-up; fewer rounds where they are slow."""
        taken: tuple[list[float], list[float]] = ([], [])
        for f in (ours, theirs):
            f()
        for k in range(rounds):
            if k and sum(map(sum, taken)) > SECONDS:
                break
            for f, times in zip((ours, theirs), taken, strict=True):
                start = time.perf_counter()
                f()
                times.append(time.perf_counter() - start)
        a, b = map(statistics.median, taken)
        print(f"  {what}: tilec {a * 1e3:.2f} ms, torch {b * 1e3:.2f} ms: {b / a:.2g} times as fast")

    def gradient_time(self, what: str, ours: Call, theirs: Call, inputs: Sequence[torch.Tensor]) -> None:
        """Forward and backward pass together."""
        inputs = [x.detach().requires_grad_() for x in inputs]

        def both(f: Call) -> Callable[[], object]:
            d = torch.ones_like(f(*inputs))
            return lambda: (torch.autograd.grad(f(*inputs), inputs, d), _wait())

        self.time(what, both(ours), both(theirs), rounds=3)

    def finish(self) -> None:
        sys.exit(1 if self.failed else 0)


def _with_gradients(f: Call, inputs: Sequence[torch.Tensor], d: torch.Tensor) -> list[torch.Tensor]:
    inputs = [x.requires_grad_() for x in inputs]
    y = f(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, d.to(y.dtype))]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
