"""The tables in docs/torch.md have a row for everything that is run, and no cell that went wrong."""

from __future__ import annotations

import re

from tests.torch_op.table import BEGIN, END, MODES, ON_CUDA, PACKAGES, PAGE, ROWS, rows_of, table_rows

CELL = re.compile(r"ok|torch \[[\d, ]+\]|ok; torch \[[\d, ]+\]: [a-z, ]+")


def test_the_page_is_whole() -> None:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    tables = re.findall(r"((?:^\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 2
    for table, device in zip(tables, ("cpu", "cuda"), strict=True):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        assert head[1:] == [*MODES, PACKAGES]
        names = [row[0].split(", ") for row in rows]
        wanted = [row.removeprefix(ON_CUDA) for row in rows_of("eager", device)]
        assert sorted(sum(names, [])) == sorted(wanted) and not any("," in name for name in wanted)
        for row, named in zip(rows, names, strict=True):
            modes = row[1:] if set(named) & set(ROWS) else row[1:2]  # what CUDA adds is asked of eager mode alone
            assert all(CELL.fullmatch(cell) for cell in modes), row
            assert row[1] == "ok"  # in eager mode everything is there
    used = {int(n) for cell in re.findall(r"torch \[([\d, ]+)\]", text) for n in cell.split(",")}
    assert used == {int(n) for n in re.findall(r"^(\d+)\. `", text, re.MULTILINE)}


def test_rows_with_the_same_cells_are_one() -> None:
    rows = [("a", ("ok", "ok")), ("b", ("ok", "torch [1]")), ("c", ("ok", "ok"))]
    assert table_rows(rows) == ["| a, c | ok | ok |", "| b | ok | torch [1] |"]
