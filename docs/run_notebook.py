"""Notebooks of the documentation, run in this process by IPython's shell: no kernel, no server, no socket.

python docs/run_notebook.py docs/quickstart.ipynb     runs it and writes what its cells print
"""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from latex2mathml.converter import convert
from traitlets.config import Config

FORMULA = re.compile(r"\$\$\n(.*?)\n\$\$", re.DOTALL)  # in HTML, which a notebook typesets
SHOWN = ("text/html", "text/plain")
RAISES = "raises-exception"  # the tag of a cell that is to fail


def executed(text: str) -> str:
    """The notebook's text with the outputs of today. Raises RuntimeError where a cell fails that should not, or the
    other way round."""
    notebook = json.loads(text)
    kernel = shell()
    try:
        number = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"], cell["outputs"] = number, outputs(kernel, cell, number)
    finally:
        forget()
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def shell() -> InteractiveShell:
    """A shell without history, which keeps the errors of cells in `failures` and prints none."""
    config = Config()
    config.HistoryManager.enabled = False
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=config, colors="nocolor")
    made.failures = []
    made._showtraceback = lambda kind, value, lines: made.failures.append((kind.__name__, str(value), lines))
    return made


def forget() -> None:
    """Leave no shell behind."""
    InteractiveShell.clear_instance()


def outputs(shell: InteractiveShell, cell: dict, number: int) -> list[dict]:
    """What a cell shows, as notebooks keep it."""
    shell.failures.clear()
    with shell.display_trap, capture_output() as told:
        result = shell.run_cell("".join(cell["source"]))
    if result.success == (RAISES in cell["metadata"].get("tags", ())):
        what = shell.failures[0][1] if shell.failures else "nothing was raised"
        raise RuntimeError(f"cell {number}: {what}")
    found: list[dict] = []
    for name, text in (("stdout", told.stdout), ("stderr", told.stderr)):
        if text:
            found.append({"name": name, "output_type": "stream", "text": text.splitlines(keepends=True)})
    for shown in told.outputs:
        data = {kind: text.splitlines(keepends=True) for kind, text in shown.data.items() if kind in SHOWN}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    for kind, value, lines in shell.failures:
        found.append({"ename": kind, "evalue": value, "output_type": "error", "traceback": lines})
    return found


def page(text: str) -> str:
    """A notebook with its outputs as a page of Markdown."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```{'tile' if source.startswith('%%tile') else 'python'}\n{source}\n```")
        for output in cell["outputs"]:
            if "data" in output and "text/html" in output["data"]:
                html = FORMULA.sub(lambda m: convert(unescape(m[1])), "".join(output["data"]["text/html"]))
                parts.append(f"```{{raw}} html\n{html}\n```")
                continue
            lines = (
                output.get("text")
                or output.get("data", {}).get("text/plain")
                or [f"{line}\n" for line in output["traceback"]]
            )
            parts.append(f"```text\n{''.join(lines).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(executed(file.read_text()))
