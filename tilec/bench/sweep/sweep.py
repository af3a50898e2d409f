"""`python -m tilec.bench sweep`: times, memory and errors over sizes, kept point by point, then drawn.

Measuring and drawing are apart: the device's machine needs no matplotlib, and a figure is drawn from its JSON alone.
"""

from __future__ import annotations

import functools
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tilec.bench.gpu import Record, gather_records, in_one_line, load_records, machine, timed
from tilec.bench.measure import peak_bytes
from tilec.bench.sweep.points import POINTS
from tilec.bench.sweep.setup import Point, TimedRun, TooLarge

FIGURES = Path(__file__).resolve().parents[3] / "docs" / "figures"
SLOW = 0.05  # seconds: what takes longer is timed once


def measured(point: Point, device: str, seed: int = 0) -> Record:
    """What there is to say of a point; a candidate that fails or is wrong says why and the others go on."""
    setup = point.make(torch.Generator(device).manual_seed(seed), device)
    record: Record = {"us": {}, "bytes": {}, "error": {}, "failed": {}, "facts": setup.facts}
    for name, build in setup.builds.items():
        try:
            run = build()
            record["error"][name] = setup.check(run())
            record["bytes"][name] = peak_bytes(run, device) or 0
            record["us"][name] = point_microseconds(run, device)
        except TooLarge as why:
            record["failed"][name] = f"would need {why}"
        except torch.OutOfMemoryError:
            record["failed"][name] = "out of memory"
        except Exception as error:
            record["failed"][name] = in_one_line(error)
        run = _nothing  # lets go of what the candidate holds
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return {**record, "machine": machine(device), "seed": seed}


def _nothing() -> None:
    return None


def point_microseconds(run: TimedRun, device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    once = time.perf_counter() - start
    return once * 1e6 if once > SLOW else timed(run, device, 20)


def _work(device: str, name: str) -> Record:
    return measured(POINTS[name], device)


def gather(
    names: list[str], device: str, path: Path, *, deadline: float, limit: float, told: Callable[[str, Record], None]
) -> dict[str, Record]:
    """Measure these points, those in the file excepted, and keep each in the file; all that it then holds."""
    work = functools.partial(_work, device)
    for name, record in gather_records(names, work, path, "all", {}, limit=limit, deadline=deadline):
        told(name, record)
    return load_records(path)


def sentence(name: str, record: Record) -> str:
    """A point in one line: microseconds, mebibytes, and the error as a multiple of what is allowed."""
    parts = []
    for candidate, us in record.get("us", {}).items():
        bytes_, error = record["bytes"][candidate] / 2**20, record["error"][candidate]
        parts.append(f"{candidate} {us:.4g} us {bytes_:.4g} MiB error {error:.2g}")
    parts += [f"{candidate}: {why}" for candidate, why in record["failed"].items()]
    parts += [f"{fact} {share:.3f}" for fact, share in record.get("facts", {}).items()]
    return f"{name}: " + "; ".join(parts)


def written(known: dict[str, Record], folder: Path) -> list[Path]:
    """One JSON file a figure, its places in order; points of one place are joined."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in dict.fromkeys(p.figure for p in POINTS.values()):
        places: dict[tuple[str, int], dict[str, Any]] = {}
        for name, point in POINTS.items():
            if point.figure == figure and name in known:
                place = places.setdefault((point.line, point.x), {"line": point.line, "x": point.x})
                for key, value in known[name].items():
                    place[key] = {**place.get(key, {}), **value} if isinstance(value, dict) else value
        if places:
            paths.append(folder / (figure.replace(" ", "_").replace(",", "") + ".json"))
            points = sorted(places.values(), key=lambda p: (p["line"], p["x"]))
            paths[-1].write_text(json.dumps({"figure": figure, "points": points}, indent=1) + "\n")
    return paths
