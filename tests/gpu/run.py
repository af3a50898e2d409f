"""Programs on a device against the oracle and float64, in parts: each run does what the state file does not hold yet.

    python tests/gpu/run.py --seed 1 --budget 500 --state state.jsonl --jobs 8
    python tests/gpu/run.py --seed 1 --case sized/matmul/2/float16
    python tests/gpu/run.py --interpret --seed 1 --budget 300
    python tests/gpu/run.py --target sm_90 --seed 1 --budget 300

The first does as many cases as fit, in an order that the seed says, each in one of several processes that may be lost;
the second does one case in this process; the third runs kernels in Triton's interpreter, on the CPU and at small sizes;
the fourth compiles them for an architecture and runs nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(TESTS), str(TESTS.parent)]

from gpu_cases import plan  # noqa: E402
from gpu_examine import Settings, Verdict, examine  # noqa: E402

from tilec.bench import workers  # noqa: E402

GOOD = ("ok", "refused")
EVERY = 50
DTYPES = ("float32", "float16", "bfloat16")


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = "cpu" if given.interpret else given.device
    settings = Settings(given.seed, given.backend, device, given.interpret, given.target)
    if given.case is not None:
        verdict = examine(given.case, settings)
        print(f"{given.case}: {verdict.status}\n{verdict.text}".strip())
        return int(verdict.status not in GOOD)
    # what a worker does on the CPU is small; more threads than processors would only be in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // given.jobs)))
    index, count = (int(n) for n in given.shard.split("/"))
    names = plan(given.seed, given.dtypes.split(","), only=given.only)[index::count]
    counts = check(
        names, settings, state=given.state, jobs=given.jobs, limit=given.limit, budget=given.budget, retry=given.retry,
        told=functools.partial(print, flush=True),
    )  # fmt: skip
    return int(any(counts[status] for status in counts if status not in (*GOOD, "unsupported")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the cases, their inputs and their order")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th case, from the I-th, from 0")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="stop after this long")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="give a case up after this long")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep verdicts there; cases it holds are skipped")
    parser.add_argument("--retry", action="store_true", help="of those, do again what was neither ok nor unsupported")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with a context of its own")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds TEXT")
    parser.add_argument("--case", metavar="NAME", help="one case, in this process")
    parser.add_argument("--dtypes", default=",".join(DTYPES), metavar="NAME,...", help="floating types of the inputs")
    parser.add_argument("--backend", default="triton", help="torch stands in where there is no device")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", metavar="sm_90", help="compile for it, without a device, and run nothing")
    parser.add_argument("--interpret", action="store_true", help="on the CPU in Triton's interpreter, small sizes")
    return parser


def check(
    names: list[str],
    settings: Settings,
    *,
    state: Path | None = None,
    jobs: int = 1,
    limit: float = 120,
    budget: float = math.inf,
    retry: bool = False,
    told: Callable[[str], object] = lambda line: None,
) -> Counter[str]:
    """Examine these cases but for those in the state file, and count all of their verdicts."""
    start = time.monotonic()
    known = load(state, settings)
    done = {n: v for n, v in known.items() if not retry or v.status in (*GOOD, "unsupported")}
    counts = Counter(done[name].status for name in names if name in done)
    left = [name for name in names if name not in done]
    told(f"{len(left)} cases to do, {len(names) - len(left)} done before")
    work = functools.partial(examine, settings=settings)
    unsupported: Counter[str] = Counter()
    n = 0
    for n, (name, answer) in enumerate(
        workers.run(left, work, jobs=jobs, limit=limit, deadline=start + budget), start=1
    ):
        verdict = Verdict("lost", answer.reason) if isinstance(answer, workers.Lost) else answer
        counts[verdict.status] += 1
        keep(state, settings, name, verdict)
        if verdict.status == "unsupported":
            unsupported[verdict.text] += 1
        elif verdict.status not in GOOD:
            told(f"{verdict.status.upper()} {name}\n    reproduce: {command(name, settings)}\n{indented(verdict.text)}")
        if n % EVERY == 0:
            told(summary(counts, names, n, time.monotonic() - start))
    told(summary(counts, names, n, time.monotonic() - start))
    for text, count in unsupported.most_common(10):
        told(f"    unsupported, {count} times: {text}")
    return counts


def summary(counts: Counter[str], names: list[str], n: int, seconds: float) -> str:
    verdicts = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"[{sum(counts.values())}/{len(names)}] {verdicts}; {seconds / max(1, n):.2f} s a case, {seconds:.0f} s"


def command(name: str, settings: Settings) -> str:
    where = " --interpret" if settings.small else f" --device {settings.device}"
    where = where if settings.target is None else f" --target {settings.target}"
    return f"python tests/gpu/run.py --seed {settings.seed} --backend {settings.backend}{where} --case '{name}'"


def indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def load(state: Path | None, settings: Settings) -> dict[str, Verdict]:
    """Verdicts of the state file for these settings, the last one of each case. A line cut short counts as none."""
    if state is None or not state.exists():
        return {}
    known = {}
    for line in state.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry["settings"] == list(vars(settings).values()):
            known[entry["case"]] = Verdict(entry["status"], entry["text"])
    return known


def keep(state: Path | None, settings: Settings, name: str, verdict: Verdict) -> None:
    if state is not None:
        entry = {"settings": list(vars(settings).values()), "case": name, **vars(verdict)}
        with state.open("a") as file:
            file.write("\n" + json.dumps(entry))  # on a line of its own, even where the one before was cut short


if __name__ == "__main__":
    if "--interpret" in sys.argv and os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when it is imported, and by now it is
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
