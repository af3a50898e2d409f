"""One function beside another one, as a person asks for it: time, accuracy, memory, share of the floor."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from tilec.arguments import Spec
from tilec.bench.gpu import copy_rate, timed
from tilec.bench.measure import peak_bytes, result_tensors
from tilec.errors import InputMistake
from tilec.function import Function

Results = tuple[torch.Tensor, ...]
MILLISECONDS = 200  # that each function is run for
_HEADS = ("      µs", " ratio", "   error", "of floor", "memory, MiB")


@dataclass(frozen=True)
class Figures:
    """`microseconds` a call, `error` the greatest beside the same in float64 over the greatest result, `peak` bytes
    beside the inputs (None on a CPU), `floor` the share of the time that moving the least bytes takes."""

    name: str
    direction: str
    microseconds: float
    error: float
    peak: int | None
    floor: float | None = None


def peer_of(text: str) -> Callable[..., object]:
    """`FILE.py:function`.

    Raises:
        InputMistake: No such file or function, or the file cannot be run.
    """
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name:
        raise InputMistake(f"--vs {text}: write FILE.py:function")
    if not Path(path).is_file():
        raise InputMistake(f"--vs {text}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputMistake(f"--vs {text}: the file fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        raise InputMistake(f"--vs {text}: {path} defines no function {name}")
    return found


def inputs_of(specs: Sequence[Spec | int | float], device: str) -> list[object]:
    """Normal values where a spec is floating, integers below 2 elsewhere; numbers stay."""
    generator = torch.Generator(device).manual_seed(0)
    return [_input(s, generator, device) if isinstance(s, Spec) else s for s in specs]


def _input(s: Spec, generator: torch.Generator, device: str) -> torch.Tensor:
    dtype = getattr(torch, s.dtype)
    if not dtype.is_floating_point:
        return torch.randint(2, s.shape, generator=generator, device=device).to(dtype)
    return torch.randn(s.shape, generator=generator, device=device).to(dtype)


def compare(function: Function, peers: dict[str, Callable[..., object]], inputs: list[object]) -> Iterator[Figures]:
    """Rows as they are measured: forward, then backward where an input is floating; of ours and the first peer, then of
    the other peers, which may have to be compiled.

    Raises:
        InputMistake: A peer fails, or gives results of other shapes.
    """
    exact = [_wide(x) for x in inputs]
    leaves = [n for n, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    device = next((x.device.type for x in inputs if isinstance(x, torch.Tensor)), "cpu")
    rate = _copy_rate(device)
    wanted = result_tensors(function(*exact))
    weights = [torch.randn_like(t) if t.is_floating_point() else None for t in wanted]
    truths, least = {"forward": wanted}, {"forward": _least(function, inputs, wanted, False)}
    if leaves and any(w is not None for w in weights):
        truths["backward"] = _gradients(function, exact, leaves, weights)()
        least["backward"] = _least(function, inputs, wanted, True)
    runs: list[tuple[str, Callable[..., object]]] = [("tilec", function), *peers.items()]
    for direction, (name, run) in (*product(truths, runs[:2]), *product(truths, runs[2:])):
        backward = direction == "backward"
        once = _gradients(run, inputs, leaves, weights) if backward else _forward(run, inputs)
        try:
            error = _error(once(), truths[direction])
        except InputMistake as wrong:
            raise InputMistake(f"{name}: {wrong.message}") from None
        except Exception as wrong:
            raise InputMistake(f"{name} fails: {type(wrong).__name__}: {wrong}") from wrong
        peak, microseconds = peak_bytes(once, device), _microseconds(once, device)
        yield Figures(name, direction, microseconds, error, peak, least[direction] / rate * 1e6 / microseconds)


def _microseconds(once: Callable[[], object], device: str) -> float:
    """The median of a call, by do_bench on a GPU and by torch's own timer on a CPU."""
    if device == "cuda":
        return timed(once, device, MILLISECONDS)
    timer = Timer("once()", globals={"once": once}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=MILLISECONDS / 1e3).median * 1e6


def _copy_rate(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    if device == "cuda":
        return copy_rate(device)
    source = torch.zeros(2**23)
    target = torch.empty_like(source)
    return 8 * source.numel() / (_microseconds(lambda: target.copy_(source), device) / 1e6)


def _forward(run: Callable[..., object], inputs: list[object]) -> Callable[[], Results]:
    def once() -> Results:
        with torch.no_grad():
            return result_tensors(run(*inputs))

    return once


def _gradients(
    run: Callable[..., object], inputs: list[object], leaves: list[int], weights: list[torch.Tensor | None]
) -> Callable[[], Results]:
    """A backward pass alone: its graph is recorded once."""
    given = list(inputs)
    for n in leaves:
        given[n] = inputs[n].detach().clone().requires_grad_()  # type: ignore[attr-defined]
    results = result_tensors(run(*given))
    pairs = [(r, w.to(r.dtype)) for r, w in zip(results, weights, strict=True) if w is not None and r.requires_grad]
    tensors: list[torch.Tensor] = [given[n] for n in leaves]  # type: ignore[misc]

    def once() -> Results:
        return torch.autograd.grad(
            [r for r, _ in pairs], tensors, [w for _, w in pairs], retain_graph=True, materialize_grads=True
        )

    return once


def _wide(x: object) -> object:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _error(got: Results, wanted: Results) -> float:
    if [tuple(t.shape) for t in got] != [tuple(t.shape) for t in wanted]:
        shapes = ", ".join(str(tuple(t.shape)) for t in got)
        raise InputMistake(
            f"results of shapes {shapes}, where tilec gives {', '.join(str(tuple(t.shape)) for t in wanted)}"
        )
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        if b.numel():
            scale = b.double().abs().max().clamp(min=1e-300)
            worst = max(worst, float(((a.double() - b.double()).abs().max() / scale).item()))
    return worst


def _least(function: Function, inputs: list[object], outputs: Results, backward: bool) -> int:
    """The inputs that are read and the results, once each."""
    if not backward:
        return function.lower(*inputs).cost().least_bytes
    given = [t.to(next((x.dtype for x in inputs if isinstance(x, torch.Tensor)), t.dtype)) for t in outputs]
    return function.grad().lower(*inputs, *given).cost().least_bytes


def comparison_lines(rows: Iterable[Figures], names: Iterable[str] = ()) -> Iterator[str]:
    """A line for each row as it comes, below a head; a ratio above 1 means that tilec is faster. The first column is
    wide enough for `names`."""
    first = max(map(len, ("tilec", *names))) + len("backward, ")
    yield "  ".join(["".ljust(first), *_HEADS])
    ours: dict[str, float] = {}
    for r in rows:
        ours.setdefault(r.direction, r.microseconds)
        cells = (
            f"{r.microseconds:.4g}" if r.microseconds < 1000 else f"{r.microseconds:.0f}",
            "" if r.name == "tilec" else f"{r.microseconds / ours[r.direction]:.2f}",
            f"{r.error:.1e}",
            "" if r.floor is None else f"{r.floor:.2f}",
            "" if r.peak is None else f"{r.peak / 2**20:.1f}",
        )
        aligned = [cell.rjust(len(head)) for cell, head in zip(cells, _HEADS, strict=True)]
        yield "  ".join([f"{r.direction}, {r.name}".ljust(first), *aligned]).rstrip()
