"""Rule for a sum of tensors that nothing else reads: each is added where it belongs, once the first fills the output.

Terms of a part of the output (of one residue class, of a border, of indices) need no tensor of zeros of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.common.domain import Domain
from tilec.backends.common.terms import sum_of
from tilec.backends.torch.expr.general import lines_of_class
from tilec.backends.torch.expr.scalar import MANY
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.scatter import added_lines
from tilec.backends.torch.sharing import EXACT, or_zero
from tilec.ir.index import distinct_variables
from tilec.ir.program import Access, Call, Expr, Index, accesses_in, index_variables, substitute


@dataclass
class _Sum:
    """`plain`: terms of the sum's own variables; `absorbed`: statements that are added in place; `alone`: those that
    are carried out before; `taken`: outputs that need no statement of their own."""

    plain: list[Expr] = field(default_factory=list)
    absorbed: list[Task] = field(default_factory=list)
    alone: list[Task] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def copy(self) -> _Sum:
        return _Sum([*self.plain], [*self.absorbed], [*self.alone], {*self.taken})


def accumulated(
    tasks: Sequence[Task], lines_for: Callable[[Task], list[str]], special: Callable[[Task], bool]
) -> tuple[int, list[str], frozenset[str]] | None:
    """How many of these statements, from the first on, are a sum and its terms, the lines that carry them out, and
    terms that get no tensor; `special`: is a statement one that a rule of its own carries out?"""
    first = tasks[0]
    if first.flat.output not in first.once or first.type.dtype not in EXACT or first.elements < MANY:
        return None
    for n in range(len(tasks) - 1, 0, -1):
        found, before = _Sum(), {t.flat.output: t for t in tasks[:n]}
        if tasks[n].type == first.type and _collect(tasks[n], None, before, special, found):
            added = found.taken - {t.flat.output for t in found.alone}
            read = {a.tensor for a in accesses_in(*found.plain)}
            if found.taken == before.keys() and found.absorbed and added.isdisjoint(read):
                return n + 1, _lines(tasks[n], found, lines_for), frozenset(added)
    return None


def _collect(
    task: Task, names: dict[str, Expr] | None, before: Mapping[str, Task], special: Callable[[Task], bool], found: _Sum
) -> bool:
    """Whether a statement is a sum, whose terms are added to those found. `names`: the sum's own for its variables."""
    s, index = task.flat, distinct_variables(task.flat.index)
    if (
        index is None
        or s.guard is not None
        or s.default is not None
        or s.constraints
        or {*index_variables(s.body)} - {*index}
    ):
        return False
    if s.aggregation not in ("assign", "sum") or not isinstance(s.body, Call) or s.body.function != "add":
        return False
    stack: list[Expr] = [s.body]
    while stack:
        e = stack.pop()
        if isinstance(e, Call) and e.function == "add":
            stack += e.args[::-1]
            continue
        term = before.get(e.tensor) if isinstance(e, Access) and e.index == s.index else None
        if term is None or term.flat.output not in task.once or term.type != task.type:
            found.plain.append(e if names is None else substitute(e, names))
            continue
        own = names or {v: Index(v) for v in index}
        inner = distinct_variables(term.flat.index)
        renamed = None if inner is None else {v: own[w] for v, w in zip(inner, index, strict=True)}
        inside = found.copy()  # what is found of a term that turns out to be no sum is not kept
        if renamed is not None and _collect(term, renamed, before, special, inside):
            vars(found).update(vars(inside))
            found.taken.add(term.flat.output)
            continue
        if term.flat.output in found.taken:
            return False
        found.taken.add(term.flat.output)
        if _adds(term, special):
            found.absorbed.append(term)
        else:
            found.alone.append(term)
            found.plain.append(e if names is None else substitute(e, names))
    return True


def _adds(t: Task, special: Callable[[Task], bool]) -> bool:
    """Is a statement one of values for parts of the output?"""
    s = t.flat
    if s.aggregation not in ("assign", "sum") or s.default is not None:
        return False
    if t.classes is None:
        return s.aggregation == "sum" and t.flat_domain is not None and not special(t)
    return all(not d.conditions and all(d.extent[v] == 1 for v in d.reductions()) for d in t.classes)


def _lines(task: Task, found: _Sum, lines_for: Callable[[Task], list[str]]) -> list[str]:
    s, index = task.flat, distinct_variables(task.flat.index)
    assert index is not None
    whole = next((t for t in found.absorbed if _fills(t)), None)
    base = list(found.plain)
    if whole is not None:
        own = distinct_variables(whole.flat.index)
        assert own is not None
        base.append(substitute(or_zero(whole.flat), dict(zip(own, map(Index, index), strict=True))))
    lines = [line for t in found.alone for line in lines_for(t)]
    if base:
        made = replace(s, body=sum_of(base))
        lines += lines_for(replace(task, flat=made, defracted=made, returned=True, fresh=frozenset()))
    else:
        lines.append(f"{task.out} = {task.allocation(filled=True)}")
    for t in found.absorbed:
        if t is whole:
            continue
        into = replace(t, local={**t.local, t.flat.output: task.out}, returned=False)
        if t.classes is None:
            lines += [f"{task.out} = {task.out}.contiguous()", *added_lines(into)]
            continue
        for d in t.classes:
            # along an axis of one point, what is read and what is written would be two views of other strides
            alone = any(d.extent[v] == 1 for v in d.output_variables())
            value = replace(d, statement=replace(d.statement, body=or_zero(d.statement), guard=None))
            lines += lines_of_class(into, value if alone else _added(d, s.output), direct=False, added=alone) or ()
    return lines


def _fills(t: Task) -> bool:
    """Is a statement's value computed for every element?"""
    own = distinct_variables(t.flat.index)
    alone = t.classes is not None and len(t.classes) == 1 and t.covered
    return alone and own is not None and not {*index_variables(*t.flat.roots)} - {*own}


def _added(d: Domain, output: str) -> Domain:
    s = d.statement
    body = Call("add", (Access(output, s.index or ()), or_zero(s)))
    return replace(d, statement=replace(s, body=body, guard=None))
