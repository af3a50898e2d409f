"""Which statement each line of generated text serves.

A kernel that carries out one statement serves that, with the functions that it calls. In the text of a kernel of
several, a line serves the first output whose stores depend on it: a backward slice over names, which asks nothing of
the order of lines. In the function that launches kernels, lines follow the comment that names their statements.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tilec.backends.common.code import python_name

Line = tuple[str, tuple[str, ...]]  # its text, the outputs of the statements that it serves
_COMMENT = re.compile(r"\s*# ([A-Za-z][\w.]*'*)\s*[\[=]")
_ALLOCATION = re.compile(r"\s*(\w+) = (?:torch\.(?:empty|zeros|full)|\w+_at\d*)\(")


def kernel_lines(source: str, outputs: Sequence[str]) -> list[Line]:
    """The lines of a kernel's file from its first function on, each with the output that it serves."""
    tree = ast.parse(source)
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
    served: dict[int, str] = {}
    for f in functions:
        served |= _sliced(f, outputs)
    lines = source.splitlines()
    if len(set(outputs)) == 1:
        own = [f for f in functions if not f.name.endswith("_")]  # those are shared by kernels, as divide_ is
        inside = [line for f in own for line in range(f.lineno, (f.end_lineno or f.lineno) + 1)]
        served = {**dict.fromkeys(inside, outputs[0]), **served}
    first = min((min(f.lineno, *(d.lineno for d in f.decorator_list), f.lineno) for f in functions), default=1)
    found: list[Line] = []
    for number, text in enumerate(lines[first - 1 :], first):
        named = _COMMENT.match(text)
        owner = named[1] if named and named[1] in outputs else served.get(number, "")
        found.append((text, (owner,) if owner else ()))
    return found


def stored_outputs(source: str, outputs: Sequence[str]) -> set[str]:
    """The outputs that a kernel's text stores; all of them where its stores name none."""
    by_name = {python_name(o): o for o in outputs}
    nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Expr))
    return {owner for n in nodes if (owner := _stored(n, by_name)) is not None} or set(outputs)


def _sliced(function: ast.FunctionDef, outputs: Sequence[str]) -> dict[int, str]:
    """Line number -> output."""
    steps = list(_steps(function.body, ()))
    defined: dict[str, list[_Step]] = defaultdict(list)
    for step in steps:
        for name in step.defines:
            defined[name].append(step)
    by_name = {python_name(o): o for o in outputs}
    served: dict[int, str] = {}
    claimed: set[int] = set()
    stores = [(owner, step) for step in steps if (owner := _stored(step.node, by_name)) is not None]
    for owner, store in sorted(stores, key=lambda pair: outputs.index(pair[0])):
        waiting = [store]
        while waiting:
            step = waiting.pop()
            if id(step) in claimed:
                continue
            claimed.add(id(step))
            served.update((line, owner) for line in step.lines if line not in served)
            waiting += [d for name in step.uses for d in defined.get(name, ())]
    return served


class _Step:
    """An assignment, a call or a loop's head: names that it defines and uses, those of the loops around it too."""

    def __init__(self, node: ast.stmt, lines: range, parts: Sequence[ast.AST], around: tuple[str, ...]):
        names = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]
        self.node, self.lines = node, lines
        self.defines = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        self.uses = {*(n.id for n in names if isinstance(n.ctx, ast.Load)), *around}
        if isinstance(node, ast.AugAssign):
            self.uses |= self.defines


def _steps(body: Sequence[ast.stmt], around: tuple[str, ...]) -> Iterator[_Step]:
    for node in body:
        if isinstance(node, (ast.For, ast.If, ast.While)):
            head = [node.target, node.iter] if isinstance(node, ast.For) else [node.test]
            step = _Step(node, range(node.lineno, node.body[0].lineno), head, around)
            yield step
            inner = (*around, *(step.defines if isinstance(node, ast.For) else step.uses))
            yield from _steps([*node.body, *node.orelse], inner)
        else:
            yield _Step(node, range(node.lineno, (node.end_lineno or node.lineno) + 1), [node], around)


def _stored(node: ast.stmt, by_name: dict[str, str]) -> str | None:
    """The output that a statement of Python stores to: `tl.store(O + ...)`, `out_O.store(...)`."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return None
    if not isinstance(node.value.func, ast.Attribute) or "store" not in node.value.func.attr:
        return None
    for n in ast.walk(node.value):
        if isinstance(n, ast.Name):
            name = n.id.removeprefix("out_").removesuffix("_parts")
            if name in by_name:
                return by_name[name]
    return None


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
