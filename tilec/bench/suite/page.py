"""`docs/workloads.md`: every ratio, geometric means, the worst ten with the kernel that takes longest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tilec.bench.gpu import Record
from tilec.bench.gpu_page import microseconds_text
from tilec.bench.suite.measure import OUR_COLUMN, OURS_ALONE, ratio, split, tasks, with_steps

WORST = 10
_TOP = """# Workloads

How fast operations of everyday models are, beside the best of eager torch, torch.compile and the
libraries named. **Ratio** is the time of the best peer divided by ours: above 1, tilec is faster.
Both sides are measured in one run, in turn, without tuning, and compared with results in a wider
type first. Misses stay in the table. `python -m tilec.bench suite` writes this page.
"""
_TERMS = """## What the columns mean

- **ratio**: the time of the best peer divided by ours.
- **backward**: a pass of autograd on both sides.
- **step**: a forward pass that records and its backward pass, together: what one of them does for
  the other counts.
- **of floor**: the least time divided by ours. The least time is the larger of moving the least
  bytes at the rate of a copy and of doing the operations at the peak rate of matrix products. Above
  1 are inputs that stay in the cache, gathers that do not read all of their table, and backward
  passes that use what the forward pass kept.
- **errors**: the greatest difference from the result in a wider type, over that result's greatest
  value. A result whose error is beyond both twice that of eager torch and the workload's tolerance
  (1e-4 of float32 unless it has its own, 0.02 of 16 bits) has no figure. Inputs and cotangents come
  from a seed. In the hidden Markov model's backward pass they are 1e-4 to 3e-4, of eager torch too:
  its logarithms go into the thousands.
"""
_DIRECTIONS = ("forward", "backward", "step")


def page(known: Mapping[str, Record]) -> str:
    known = {name: known[name] for name in tasks() if name in known}
    machines = sorted({r["machine"] for r in known.values() if r["machine"]})
    known = with_steps(known)
    ratios = {name: found for name, record in known.items() if (found := ratio(record)) is not None}
    parts = [_TOP, "; ".join(machines) + ".\n", summary(ratios), worst(known, ratios), _TERMS]
    kinds: dict[str, list[str]] = {}
    for name in known:
        kinds.setdefault(split(name)[0].kind, []).append(name)
    for kind, names in kinds.items():
        parts += [f"## {kind}\n", *table({name: known[name] for name in names}), ""]
    return "\n".join(parts).rstrip() + "\n"


def summary(ratios: Mapping[str, float]) -> str:
    """Geometric means, of all and of each kind."""
    found: dict[tuple[str, str], list[float]] = {}
    for name, r in ratios.items():
        for kind in ("all", split(name)[0].kind):
            found.setdefault((kind, name.rpartition(", ")[2]), []).append(r)
    lines = [f"| geometric mean | {' | '.join(_DIRECTIONS)} |", "| --- |" + " ---: |" * len(_DIRECTIONS)]
    for kind in dict.fromkeys(kind for kind, _ in found):
        cells = [found.get((kind, direction), []) for direction in _DIRECTIONS]
        lines.append(f"| {kind} | {' | '.join(f'{mean(c):.2f} of {len(c)}' if c else '-' for c in cells)} |")
    below = [f"{direction} {sum(r < 0.9 for r in found.get(('all', direction), []))}" for direction in _DIRECTIONS]
    return "\n".join([*lines, "", f"Figures below 0.9: {', '.join(below)}."]) + "\n"


def worst(known: Mapping[str, Record], ratios: Mapping[str, float]) -> str:
    lines = ["## The worst ten\n", "| workload | ratio | kernel that takes longest |", "| --- | ---: | --- |"]
    passes = [name for name in ratios if not name.endswith(", step")]
    for name in sorted(passes, key=ratios.__getitem__)[:WORST]:
        lines.append(f"| {name} | {ratios[name]:.2f} | {known[name].get('kernel', '-').replace('|', ' ')} |")
    return "\n".join(lines) + "\n"


def table(known: Mapping[str, Record]) -> Iterable[str]:
    yield "| workload | type | best peer | µs | tilec, µs | ratio | of floor |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    for name, record in known.items():
        yield line(name, record)


def line(name: str, record: Record) -> str:
    """One row of the table, the reason in the place of figures where there is none."""
    us = record["us"]
    peers = {peer: t for peer, t in us.items() if peer not in (OUR_COLUMN, OURS_ALONE)}
    best = min(peers, key=peers.__getitem__, default="-")
    if OUR_COLUMN in record["failed"]:
        ours = [f"failed: {record['failed'][OUR_COLUMN][:120]}".replace("|", " "), "-", "-"]
    elif not us and record["failed"]:
        who, reason = next(iter(record["failed"].items()))
        ours = [f"not measured, {who} failed: {reason[:120]}".replace("|", " "), "-", "-"]
    else:
        found = ratio(record)
        share = f"{record['floor'] / us[OUR_COLUMN]:.2f}" if "floor" in record and OUR_COLUMN in us else "-"
        ours = [microseconds_text(us.get(OUR_COLUMN)), "-" if found is None else f"{found:.2f}", share]
    return "| " + " | ".join([name, record.get("dtype", "-"), best, microseconds_text(peers.get(best)), *ours]) + " |"


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
