"""`python -m tilec.bench cpu`: print the table and write it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilec.bench import cpu, recurrences
from tilec.bench.measure import header, measure, row
from tilec.bench.overheads import overheads

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
MARKS = ("<!-- cpu -->", "<!-- end of cpu -->")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilec.bench", description="Measure against peers, in one run.")
    parser.add_argument("what", choices=["cpu"])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds TEXT; writes nothing")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args(arguments)
    lines = header()
    print("\n".join(lines), flush=True)
    for case in (*cpu.CASES, *recurrences.CASES):
        if given.only in case.name:
            lines.append(row(case, measure(case, rounds=3 if given.quick else 15)))
            print(lines[-1], flush=True)
    if not (given.quick or given.only):
        lines += overheads()
        print("\n".join(lines[-5:]), flush=True)
        if not given.no_write:
            write(lines)
    return 0


def write(lines: list[str]) -> None:
    """Put the table between the document's marks."""
    text = DOCUMENT.read_text()
    start, end = (text.index(mark) for mark in MARKS)
    DOCUMENT.write_text(text[: start + len(MARKS[0])] + "\n" + "\n".join(lines) + "\n" + text[end:])


if __name__ == "__main__":
    sys.exit(main())
