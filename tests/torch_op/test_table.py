"""The table in docs/torch.md has a row for everything that is tested, and no cell that went wrong."""

from __future__ import annotations

from tests.support.torch_programs import EXAMPLES
from tests.torch_op.table import BEGIN, END, PAGE
from tests.torch_op.test_compile import WAYS
from tests.torch_op.test_transforms import TRANSFORMS


def test_the_page_is_whole() -> None:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text)
    assert head[1:] == list(EXAMPLES)
    assert [row[0] for row in rows] == [*(f"eager: {t}" for t in TRANSFORMS), *(f"traced: {w}" for w in WAYS)]
    assert {cell for row in rows for cell in row[1:]} == {"ok"}
