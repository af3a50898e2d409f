"""One case examined: values and gradients on a device, against the oracle or float64 on the CPU.

How much a correct kernel may be off, a program's own conditioning decides: what the torch backend loses on the CPU in
the same element type is measured beside, and something is added for another order of summation. Where terms cancel, an
element may be off by a rounding of these (`gpu_magnitude.py`), which is looked at where the rest is not enough.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpu_cases import Case, dice, make
from gpu_magnitude import magnitudes

import tilec
from tilec.ir.evaluate import evaluate

RELATIVE = {torch.float32: 1e-5, torch.float16: 2.0**-11 * 1.01, torch.bfloat16: 2.0**-8 * 1.01}
LUCK = 2.0  # times the error of the torch backend; a few elements may be exact by luck, so they get more
FEW, LUCK_OF_FEW = 64, 16.0
# what is weighted by exp(a - l) where l, a stored sum of logarithms, is rounded at its own size; measured: 2.1 to 4.7
LUCK_OF_LOGS = 6.0


@dataclass(frozen=True)
class Settings:
    """`small`: at sizes for an interpreter. `target`: only compile, for this architecture; no device is used."""

    seed: int = 0
    backend: str = "triton"
    device: str = "cuda"
    small: bool = False
    target: str | None = None


@dataclass(frozen=True)
class Verdict:
    """status: ok, wrong, error, refused (rightly), unsupported, lost."""

    status: str
    text: str = ""


class Wrong(Exception):
    """A result that is not the program's."""


def examine(name: str, settings: Settings) -> Verdict:
    """The verdict on the case of this name. Raises where the device itself has failed."""
    return examine_case(make(name, settings.seed, settings.small), settings)


def examine_case(case: Case, settings: Settings) -> Verdict:
    """The same of a case that is there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _examine(case, settings) if settings.target is None else _compile(case, settings)
    except Wrong as error:
        return Verdict("wrong", f"{error}\n{_shown(case)}")
    except tilec.Unsupported as error:
        return Verdict("unsupported", error.message)
    except Exception as error:
        if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error):
            raise
        return Verdict("error", f"{type(error).__name__}: {error}\n{_shown(case)}")


def _examine(case: Case, settings: Settings) -> Verdict:
    inputs = [_tensor(a, case.dtype) for a in case.arrays]
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    ours, torchs = (tilec.compile(case.source, backend=b) for b in (settings.backend, "torch"))
    try:
        exact = _exact(torchs, wide, case.oracle)
    except (tilec.WriteConflict, tilec.SizeMistake) as refusal:
        with contextlib.suppress(type(refusal)):
            ours(*(t.to(settings.device) for t in inputs))
            raise Wrong(f"ran, but should be refused: {refusal.message}") from None
        return Verdict("refused")
    _compare("value", ours, torchs, inputs, exact, case, settings)
    names = tuple(n for n, t in zip(ours.inputs, inputs, strict=True) if t.is_floating_point())
    if not names or not any(e.is_floating_point() for e in exact):
        return Verdict("ok")
    generator = torch.Generator().manual_seed(dice(settings.seed, case.name, "cotangents").getrandbits(32))
    cotangents = [
        torch.randint(-2, 3, e.shape, generator=generator).to(case.dtype)
        if e.is_floating_point()
        else torch.zeros(e.shape, dtype=e.dtype)
        for e in exact
    ]
    cotangents = [
        c.to(r.dtype) if r.is_floating_point() else c for c, r in zip(cotangents, _run(torchs, inputs), strict=True)
    ]
    wide += [c.double() if c.is_floating_point() else c for c in cotangents]
    gradients = _exact(torchs.grad(names), wide, case.oracle)
    _compare("gradient", ours.grad(names), torchs.grad(names), [*inputs, *cotangents], gradients, case, settings)
    return Verdict("ok")


def _compile(case: Case, settings: Settings) -> Verdict:
    """Are there kernels of the values and of the gradient for the target? They are not run."""
    inputs = [_tensor(a, case.dtype) for a in case.arrays]
    function = tilec.compile(case.source, backend=settings.backend)
    names = tuple(n for n, t in zip(function.inputs, inputs, strict=True) if t.is_floating_point())
    try:
        lowered = function.lower(*inputs, target=settings.target)
    except (tilec.WriteConflict, tilec.SizeMistake):
        return Verdict("refused")
    lowered.asm("ptx")
    outputs = [torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in lowered.outputs]
    if names and any(t.is_floating_point() for t in outputs):
        function.grad(names).lower(*inputs, *outputs, target=settings.target).asm("ptx")
    return Verdict("ok")


def _tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    t = torch.from_numpy(np.array(array, ndmin=1)).reshape(np.shape(array))
    return t.to(dtype) if t.is_floating_point() else t


def _exact(function: tilec.Function, inputs: Sequence[torch.Tensor], oracle: bool) -> list[torch.Tensor]:
    """Outputs in float64 and integers."""
    if not oracle:
        return _run(function, inputs)
    with np.errstate(all="ignore"):
        return [torch.from_numpy(np.array(r)) for r in evaluate(function.program, [t.numpy() for t in inputs])]


def _run(function: tilec.Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    results = function(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def _compare(what, ours, torchs, inputs, exact, case: Case, settings: Settings) -> None:
    """Run ours twice, on inputs laid out anew, and hold each output against the exact one. Raises Wrong."""
    roughly = _run(torchs, inputs)
    layouts = [*case.layouts, *["contiguous"] * len(inputs)]  # cotangents come after the inputs
    placed = [laid_out(t, layout, settings.device) for t, layout in zip(inputs, layouts, strict=False)]
    before = [t.clone() for t in placed]
    with poisoned_memory():
        got, again = _run(ours, placed), _run(ours, placed)
    for name, t, b in zip(ours.inputs, placed, before, strict=True):
        if not torch.equal(_bits(t), _bits(b)):
            raise Wrong(f"{what}: the input {name} was written to")
    if len(got) != len(exact):
        raise Wrong(f"{what}: {len(got)} outputs, not {len(exact)}")
    for name, g, a, r, e in zip(ours.outputs, got, again, roughly, exact, strict=True):
        if not torch.equal(_bits(g), _bits(a)):
            reason = _told(g.double(), a.double(), _bits(g) != _bits(a))
            raise Wrong(f"{what} {name}: a second call gives other bits: {reason}")
        log = "logsumexp" in case.source
        reason = difference(g.cpu(), r, e, log)
        if reason and g.is_floating_point():
            reason = difference(g.cpu(), r, e, log, _terms(torchs, inputs, name))
        if reason:
            raise Wrong(f"{what} {name}: {reason}")


def _terms(function: tilec.Function, inputs: Sequence[torch.Tensor], output: str) -> torch.Tensor | None:
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    return magnitudes(function, wide)[list(function.outputs).index(output)]


def difference(
    got: torch.Tensor,
    roughly: torch.Tensor,
    exact: torch.Tensor,
    logarithmic: bool = False,
    terms: torch.Tensor | None = None,
) -> str:
    """What is wrong with a result, "" if nothing; `roughly` is the torch backend's in the same element type, and
    `terms` the magnitude of what each element is the sum of.

    Where `roughly` is itself no approximation (an overflow, a comparison of rounded values), any value will do."""
    if roughly.shape != exact.shape:
        return f"the torch backend's has shape {tuple(roughly.shape)}, not {tuple(exact.shape)}"
    if got.dtype != roughly.dtype or got.shape != exact.shape:
        return f"{got.dtype} of shape {tuple(got.shape)}, not {roughly.dtype} of shape {tuple(exact.shape)}"
    if not got.is_floating_point():
        return _told(got.double(), exact.double(), (roughly == exact) & (got != exact))
    g, r, e = got.double(), roughly.double(), exact.double()
    same = (r == e) | (r.isnan() & e.isnan())
    finite = e.isfinite() & r.isfinite()
    scale = float(e[finite].abs().max()) if finite.any() else 0.0
    lost = float((r - e)[finite].abs().max()) if finite.any() else 0.0
    luck = LUCK_OF_FEW if got.numel() < FEW else LUCK_OF_LOGS if logarithmic else LUCK
    allowed = luck * lost + RELATIVE.get(got.dtype, 1e-12) * scale + (3e-6 if logarithmic else 0)
    enough = (g - e).abs() <= allowed
    if terms is not None:
        enough |= (g - e).abs() <= torch.finfo(got.dtype).eps / 2 * terms
    bad = finite & ~enough | same & ~e.isfinite() & ~((g == e) | (g.isnan() & e.isnan()))
    return _told(g, e, bad, f"; allowed {allowed:.3g}, the torch backend's own {lost:.3g}")


def _told(got: torch.Tensor, exact: torch.Tensor, bad: torch.Tensor, more: str = "") -> str:
    """How many elements are bad and where the worst is; "" if none is."""
    if not bad.any():
        return ""
    off = torch.where(bad, (got - exact).abs().nan_to_num(math.inf, math.inf), -1.0)
    place = tuple(int(p) for p in np.unravel_index(int(off.argmax()), off.shape)) if off.dim() else ()
    where = f"at {list(place)}: {float(got[place])!r} for {float(exact[place])!r}"
    return f"{int(bad.sum())} of {bad.numel()} differ, {where}{more}"


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.nan_to_num(1234.5, 1e30, -1e30) if t.is_floating_point() else t


def laid_out(t: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """The tensor on a device, in memory as the layout says; what lies between and around its elements is poison."""
    t = t.to(device)
    if t.dim() == 0 or layout == "contiguous" or 0 in t.shape:
        return t.contiguous()
    if layout == "transposed":
        order = tuple(reversed(range(t.dim())))
        return t.permute(order).contiguous().permute(order)
    if layout == "expanded":  # only where that changes no element
        ones = [d for d, n in enumerate(t.shape) if n > 1 and bool((t == t.narrow(d, 0, 1)).all())]
        return t.narrow(ones[0], 0, 1).expand_as(t) if ones else t.contiguous()
    step = 2 if layout == "every second" else 1
    around = torch.empty([step * n + 3 for n in t.shape], dtype=t.dtype, device=device)
    around.fill_(math.nan if t.is_floating_point() else 1)
    view = around[tuple(slice(1, step * n + 1, step) for n in t.shape)]
    view.copy_(t)
    return view


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """New memory is full of NaN, or of the largest integer, until it is written."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def _shown(case: Case) -> str:
    arrays = ", ".join(
        f"{a.dtype}{list(a.shape)} {layout}" for a, layout in zip(case.arrays, case.layouts, strict=True)
    )
    return f"{case.source.strip()}\ninputs: {arrays}"
