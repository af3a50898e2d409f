"""`python -m tilec.bench cpu | gpu`: print the table and write it into docs/benchmarks.md. `python -m tilec.bench
sweep`: figures over sizes, into docs/figures. `python -m tilec.bench suite`: the workload suite, into
docs/workloads.md. `python -m tilec.bench distributed`: one device beside several. `python -m tilec.bench lengths`: the
first call at a new length."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from tilec.bench import cpu, distributed, gpu, layers, recurrences
from tilec.bench.gpu_page import gpu_line, gpu_sentence, section
from tilec.bench.gpu_rows import ALONE, HAND, OUR_COLUMNS, Row
from tilec.bench.measure import header, measure, row
from tilec.bench.overheads import new_lengths, overheads
from tilec.bench.suite import measure as suite
from tilec.bench.suite import page
from tilec.bench.suite.workload import DRAWN_SIZES, SIZES
from tilec.bench.sweep import draw, sweep
from tilec.bench.works import COMPILED, CUDNN_PEER, EAGER, LIGER
from tilec.native import built_native

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
WORKLOADS_PAGE = DOCUMENT.with_name("workloads.md")


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    built_native()
    given.run(given)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tilec.bench", description="Measure against peers, in one run.")
    kinds = parser.add_subparsers(required=True, metavar="cpu|gpu|sweep|suite|distributed|lengths")

    def kind(name: str, run) -> argparse.ArgumentParser:
        sub = kinds.add_parser(name)
        sub.add_argument("--quick", action="store_true", help="fewer rounds; writes nothing")
        sub.add_argument("--only", default="", metavar="TEXT", help="rows whose name holds TEXT; alone, writes nothing")
        sub.add_argument("--no-write", action="store_true", help="print only")
        sub.set_defaults(run=run)
        return sub

    def shards(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--warm", action="store_true", help="compile all, time nothing: fills compilers' caches")
        sub.add_argument("--jobs", type=int, default=1, help="processes side by side, with --warm")
        sub.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th of them from the I-th, one a device")
        sub.add_argument("--page", nargs="+", type=Path, metavar="FILE", help="measure nothing; show these results")

    kind("cpu", _cpu)
    sub = kind("gpu", _gpu)
    sub.add_argument("--alone", action="store_true", help="without the column that may call libraries")
    sub.add_argument("--tune", action="store_true", help="measure our kernels' candidates first, and keep the choices")
    sub.add_argument("--no-compile", action="store_true", help="without torch.compile among the peers")
    sub.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop after this long")
    sub.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="give a row up after this long")
    sub.add_argument("--resume", type=Path, metavar="FILE", help="go on with the results in FILE, and write them all")
    sub.add_argument("--retry", action="store_true", help="of those results, measure again what failed")
    sub.add_argument("--backend", default="triton", help="of what is ours alone")
    sub.add_argument("--device", default="cuda", help="with --backend torch, cpu shows that rows run")
    sub.add_argument("--seed", type=int, help="of the inputs (default: the time)")
    shards(sub)
    sub = kinds.add_parser("sweep")
    sub.add_argument("--only", default="", metavar="TEXT", help="points whose name holds TEXT")
    sub.add_argument("--budget", type=float, default=110, metavar="SECONDS", help="stop after this long")
    sub.add_argument("--limit", type=float, default=30, metavar="SECONDS", help="give a point up after this long")
    sub.add_argument("--resume", type=Path, metavar="FILE", help="go on with the results in FILE")
    sub.add_argument("--draw", action="store_true", help="measure nothing; draw what docs/figures holds")
    sub.add_argument("--folder", type=Path, default=sweep.FIGURES, help="where figures go (default: docs/figures)")
    sub.add_argument("--device", default="cuda", help="cpu shows that points run")
    sub.set_defaults(run=_sweep)
    sub = kinds.add_parser("suite")
    sub.add_argument("--only", default="", metavar="TEXT", help="workloads whose name holds TEXT")
    sub.add_argument("--kinds", nargs="*", default=[], metavar="KIND", help="attention, convolution, product, ...")
    sub.add_argument("--size", type=_size, default="large", help="tiny, small, large or drawn-SEED (default: large)")
    sub.add_argument("--dtype", help="float32 or bfloat16 (default: what each workload is usually run in)")
    sub.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop after this long")
    sub.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="give a workload up after this long")
    sub.add_argument("--resume", type=Path, metavar="FILE", help="go on with the results in FILE")
    shards(sub)
    sub.add_argument("--alone", action="store_true", help="also generated kernels where libraries are the default")
    sub.add_argument("--no-compile", action="store_true", help="eager torch alone as a peer")
    sub.add_argument("--no-write", action="store_true", help="print only")
    sub.add_argument("--device", default="cuda")
    sub.set_defaults(run=_suite)
    sub = kinds.add_parser("distributed")
    sub.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds TEXT")
    sub.add_argument("--ranks", type=int, default=2)
    sub.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu shows that cases run")
    sub.add_argument("--small", action="store_true", help="small sizes: a look at whether cases run")
    sub.set_defaults(run=lambda given: distributed.compare_ranks(given.only, given.ranks, given.device, given.small))
    sub = kinds.add_parser("lengths")
    sub.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds TEXT")
    sub.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    sub.set_defaults(run=lambda given: print(*new_lengths(given.only, given.device), sep="\n"))
    return parser


def _size(text: str) -> str:
    if text not in SIZES and not (text.startswith(DRAWN_SIZES) and text.removeprefix(DRAWN_SIZES).isdigit()):
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(SIZES)}, nor {DRAWN_SIZES} and a number")
    return text


def _cpu(given: argparse.Namespace) -> None:
    lines = header()
    print("\n".join(lines), flush=True)
    for case in (*cpu.CPU_CASES, *layers.LAYER_CASES, *recurrences.RECURRENCE_CASES):
        if given.only in case.name:
            lines.append(row(case, measure(case, rounds=3 if given.quick else 15)))
            print(lines[-1], flush=True)
    if not (given.quick or given.only):
        lines += overheads()
        print("\n".join(lines[-5:]), flush=True)
        if not given.no_write:
            write_page("cpu", lines)


def _gpu(given: argparse.Namespace) -> None:
    """Results are kept in the file that --resume names, or else in gpu-results.json, which is begun anew."""
    if given.page:
        lines = section(gpu.ORDER, _records(given.page))
        print("\n".join(lines)) if given.no_write else write_page("gpu", lines)
        return
    start = time.monotonic()
    path = given.resume or Path("gpu-results.json")
    if given.resume is None and not given.warm:
        path.unlink(missing_ok=True)
    if given.retry:
        gpu.save(path, {name: record for name, record in gpu.load_records(path).items() if not record["failed"]})
    settings = gpu.GpuSettings(
        seed=int(time.time()) if given.seed is None else given.seed,
        quick=given.quick,
        device=given.device,
        backend=given.backend,
        tune=given.tune,
        warm=given.warm,
        columns=(ALONE, HAND) if given.alone else OUR_COLUMNS,
        peers=(EAGER, LIGER, CUDNN_PEER) if given.no_compile else (EAGER, COMPILED, LIGER, CUDNN_PEER),
    )
    names, shards = _shard([name for name in gpu.TASKS if given.only in name], given.shard)
    jobs, deadline = given.jobs if given.warm else 1, start + given.budget
    for name, record in gpu.gather_rows(names, settings, path, jobs=jobs, limit=given.limit, deadline=deadline):
        task = gpu.TASKS[name]
        print(gpu_line(task, record) if isinstance(task, Row) else gpu_sentence(task, record), flush=True)
        for which, reason in record["failed"].items():
            print(f"    {which}: {reason}", flush=True)
    if given.warm:
        return
    known = gpu.load_records(path)
    print(f"{sum(name in known for name in names)} of {len(names)} measured, in {path}", flush=True)
    if not (given.no_write or given.quick or shards > 1 or given.only and given.resume is None):
        write_page("gpu", section(gpu.ORDER, known))


def _records(paths: Iterable[Path]) -> dict[str, gpu.Record]:
    return {name: record for path in paths for name, record in gpu.load_records(path).items()}


def _shard(names: list[str], shard: str) -> tuple[list[str], int]:
    """The names that a shard "I/N" has, and N."""
    index, shards = (int(n) for n in shard.split("/"))
    return names[index::shards], shards


def _sweep(given: argparse.Namespace) -> None:
    """Results are kept in the file that --resume names, or else in sweep-results.json, which is begun anew."""
    start = time.monotonic()
    if given.draw:
        paths = sorted(given.folder.glob("*.json"))
        if not paths:
            sys.exit(f"nothing is measured in {given.folder}: run without --draw first")
    else:
        if given.device == "cuda" and not torch.cuda.is_available():
            sys.exit("this machine has no CUDA device: --device cpu shows that points run, --draw draws what is there")
        path = given.resume or Path("sweep-results.json")
        if given.resume is None:
            path.unlink(missing_ok=True)
        names = [name for name in sweep.POINTS if given.only in name]

        def told(name: str, record: gpu.Record) -> None:
            print(sweep.sentence(name, record), flush=True)

        deadline = start + given.budget
        known = sweep.gather(names, given.device, path, deadline=deadline, limit=given.limit, told=told)
        print(f"{sum(n in known for n in names)} of {len(names)} measured, in {path}", flush=True)
        paths = sweep.written(known, given.folder)
    try:
        for path in paths:
            print(draw.draw(path))
    except ImportError:
        print('not drawn: matplotlib is missing (pip install "tilec[bench]"); --draw draws later', flush=True)


def _suite(given: argparse.Namespace) -> None:
    """Results are kept in the file that --resume names, or else in suite-results.json, which is begun anew."""
    if given.page:
        text = page.page(_records(given.page))
        print(text) if given.no_write else WORKLOADS_PAGE.write_text(text)
        return
    path = given.resume or Path("suite-results.json")
    if given.resume is None and not given.warm:
        path.unlink(missing_ok=True)
    settings = suite.SuiteSettings(
        size=given.size,
        device=given.device,
        warm=given.warm,
        alone=given.alone,
        compiled=not given.no_compile,
        dtype=given.dtype,
    )
    names, shards = _shard(suite.tasks(given.only, tuple(given.kinds)), given.shard)
    deadline = time.monotonic() + given.budget
    jobs = given.jobs if given.warm else 1
    count = 0
    for name, record in suite.gather_workloads(names, settings, path, jobs=jobs, limit=given.limit, deadline=deadline):
        count += 1
        if not given.warm:
            print(*(page.line(*shown) for shown in suite.with_steps({name: record}).items()), sep="\n", flush=True)
        for which, reason in record["failed"].items():
            print(f"    {name}, {which}: {reason}", flush=True)
    print(f"{count} of {len(names)} {'built' if given.warm else f'measured, in {path}'}", flush=True)
    if not (given.warm or given.no_write or shards > 1):
        WORKLOADS_PAGE.write_text(page.page(gpu.load_records(path)))


def write_page(kind: str, lines: list[str]) -> None:
    """Put lines between the document's marks of this kind."""
    text = DOCUMENT.read_text()
    start, end = text.index(mark := f"<!-- {kind} -->") + len(mark), text.index(f"<!-- end of {kind} -->")
    DOCUMENT.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:])


if __name__ == "__main__":
    sys.exit(main())
