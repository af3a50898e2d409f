"""Which statement each line of the functions that allocate and launch serves: lines follow the comment that names
their statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from tilec.backends.common.code import python_name

Line = tuple[str, tuple[str, ...]]  # its text, the outputs of the statements that it serves
_COMMENT = re.compile(r"\s*# ([A-Za-z][\w.]*'*)\s*[\[=]")
_ALLOCATION = re.compile(r"\s*(\w+) = (?:torch\.(?:empty|zeros|full)|\w+_at\d*)\(")


def host_lines(source: str, outputs: Sequence[str], whole: bool) -> list[Line]:
    """The lines of the functions that allocate and launch; `whole`: of everything, imports too."""
    by_name = {python_name(o): o for o in outputs}
    lines = source.splitlines()
    tree = ast.parse(source)
    plain = [f for f in tree.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]
    shown = range(1, len(lines) + 1) if whole else [n for f in plain for n in range(f.lineno, (f.end_lineno or 0) + 1)]
    found: list[Line] = []
    current: tuple[str, ...] = ()
    commented = False
    for number in shown:
        text = lines[number - 1]
        named = _COMMENT.match(text)
        if named and named[1] in outputs:
            current = (*current, named[1]) if commented else (named[1],)
            found.append((text, (named[1],)))
        elif (made := _ALLOCATION.match(text)) and made[1].removesuffix("_parts") in by_name:
            found.append((text, (by_name[made[1].removesuffix("_parts")],)))
        elif not text.startswith(" ") or re.match(r"    (?:return|del|device =)", text):
            current = ()
            found.append((text, ()))
        else:
            found.append((text, current if text.strip() else ()))
        commented = named is not None
    return found
