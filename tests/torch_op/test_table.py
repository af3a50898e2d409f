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
    rows = [row for row in rows if not row[0].startswith("packaged: ")]  # which take a C++ compiler, and minutes
    kinds = {"eager": TRANSFORMS, "traced": WAYS}
    assert [row[0] for row in rows] == [f"{kind}: {name}" for kind, names in kinds.items() for name in names]
    for row in rows:
        assert {*row[1:]} <= ({"ok", "as torch"} if row[0].startswith("packaged") else {"ok"})
