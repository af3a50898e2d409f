"""Run every cell of the table in docs/torch.md and write it there: `python -m tests.torch_op.table`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.packages import packaged
from tests.torch_op.test_compile import WAYS
from tests.torch_op.test_transforms import TRANSFORMS, flat

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def outcome(run: Callable[[], tuple[object, object]]) -> str:
    """`ok`, or what went otherwise."""
    torch._dynamo.reset()
    try:
        found, expected = run()
        for ours, theirs in zip(flat(found), flat(expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    except AssertionError:
        return "wrong"
    except Exception as error:
        return type(error).__name__
    return "ok"


def cells(name: str) -> dict[str, str]:
    """The column of one program."""
    example, f = EXAMPLES[name], compiled(name)
    column = {}
    for row, transform in TRANSFORMS.items():
        run = lambda t=transform: (t(f, *example.inputs()), t(example.torch, *example.inputs()))  # noqa: E731
        column[f"eager: {row}"] = outcome(run)
    for row, way in WAYS.items():
        run = lambda w=way: w(f, example.torch, example, example.inputs())  # noqa: E731
        column[f"traced: {row}"] = outcome(run)
    with tempfile.TemporaryDirectory() as folder:
        for row, results in packaged(name, Path(folder)).items():
            column[f"packaged: {row}"] = "as torch" if results is None else outcome(lambda r=results: r)
    return column


def table() -> str:
    """All columns side by side, as Markdown."""
    columns = {}
    for name in EXAMPLES:
        columns[name] = cells(name)
        print(name, set(columns[name].values()), file=sys.stderr, flush=True)
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for row in next(iter(columns.values())):
        lines.append(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    warnings.simplefilter("ignore")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


if __name__ == "__main__":
    main()
