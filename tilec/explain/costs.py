"""Memory and time of a lowered function against the least that any program could do with."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from tilec.cost import H200, size_in_bytes
from tilec.display.html import bytes_text
from tilec.lowered import Lowered

BARS = 40  # kernels that are drawn


def cost_section(lowered: Lowered) -> str:
    """Memory, then time by the roofline model of an H200, in all and kernel by kernel."""
    c = lowered.cost()
    units = lowered.kernel_costs()
    dtype = min((u.dtype for u in units), key=lambda d: H200.operations[d] * -1, default="float32")
    floor = H200.seconds(c.least_flops, c.least_bytes, dtype)
    repeated = max(0, c.bytes_moved - sum(u.bytes_moved for u in units))
    seconds = [H200.seconds(u.flops, u.bytes_moved, u.dtype) for u in units]
    total = sum(seconds) + repeated / H200.memory
    needed = sum(size_in_bytes(t) for t in (*lowered.inputs.values(), *lowered.outputs))
    temporary = lowered.temporary_bytes
    live = None if temporary is None else needed + temporary
    rows = [
        ("operations", _against(_count, c.flops, 0), ""),
        ("bytes moved", _against(bytes_text, c.bytes_moved, c.least_bytes), "inputs and outputs, once each"),
        ("memory held", _against(bytes_text, live, needed), "inputs and outputs"),
        (f"time on an {H200.device}", _against(time_text, total, floor), _bound(c.least_flops, c.least_bytes, dtype)),
    ]
    head = "<tr><th></th><th>this program</th><th>floor</th><th>ratio</th><th>what the floor is</th></tr>"
    table = "".join(f"<tr><th>{a}</th>{b}<td>{d}</td></tr>" for a, b, d in rows)
    note = (
        f"<p class='note'>A model, not a measurement: {H200.memory / 1e12:.0f} TB/s of memory, "
        f"{H200.operations[dtype] / 1e12:.0f} T operations/s of {dtype}; a launch takes about "
        f"{H200.launch * 1e6:.0f} µs more unless launches overlap.</p>"
    )
    return f"<table class='costs'>{head}{table}</table>{_bars(units, seconds)}{note}"


def _against(text: Callable[[float], str], value: float | None, least: float) -> str:
    """Three cells: the value, the least, and how many times that."""
    if value is None:
        return f"<td>not known: torch allocates</td><td>{text(least)}</td><td></td>"
    if not least:
        return f"<td>{text(value)}</td><td></td><td></td>"
    return f"<td>{text(value)}</td><td>{text(least)}</td><td>{value / least:.2f}</td>"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bound(flops: int, moved: int, dtype: str) -> str:
    return "memory-bound" if moved / H200.memory >= flops / H200.operations[dtype] else "compute-bound"


def time_text(seconds: float) -> str:
    """To three digits."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _bars(units, seconds: list[float]) -> str:
    """A bar a kernel, as long as its share of the time."""
    if len(units) < 2:
        return ""
    most = max(*seconds, 1e-12)
    rows = "".join(
        f"<tr><td><code>{escape(_names(u.outputs))}</code></td><td>{bytes_text(u.bytes_moved)}</td><td>{u.flops:,}</td>"
        f"<td>{time_text(t)}</td><td><span class='bar' style='width: {100 * t / most:.0f}px'></span></td></tr>"
        for u, t in list(zip(units, seconds, strict=True))[:BARS]
    )
    head = "<tr><th>kernel of</th><th>bytes</th><th>operations</th><th>time</th><th></th></tr>"
    return f"<table class='kernels'>{head}{rows}</table>"


def _names(outputs: tuple[str, ...]) -> str:
    return ", ".join(outputs[:4]) + (f" and {len(outputs) - 4} more" if len(outputs) > 4 else "")
