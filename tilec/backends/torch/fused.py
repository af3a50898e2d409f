"""Rule for several statements: those that walk the same points do so together, block by block.

Statements fuse where the general rule would carry each of them out over the same box without masks, and they read the
same large tensors: what they share is read and computed once (a gradient's sine and cosine, say).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.common.code import assignable, permuted, tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.common.tiled_program import COMBINED
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.choices import identity_text
from tilec.backends.torch.expr.general import REDUCE, Loops, block_limit, blocks
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.ir.aggregations import LOGICAL
from tilec.ir.index import Affine, distinct_variables, replace_indices
from tilec.ir.program import Call, Expr, accesses_in, reads, walk


@dataclass(frozen=True)
class Member:
    """A statement of the group, its variables renamed to those of the first."""

    task: Task
    body: Expr
    outputs: tuple[str, ...]
    reductions: tuple[str, ...]


def fused(tasks: Sequence[Task]) -> tuple[int, list[str]] | None:
    """How many of these statements, from the first on, go together, and the lines that carry them out."""
    first = tasks[0]
    domain = _box(first)
    if domain is None:
        return None
    whole = _whole_accesses(domain)
    if not whole or math.prod(domain.extent.values()) <= block_limit(first, domain):
        return None
    members = [_member(first, domain, {})]
    written = {first.flat.output}
    for task in tasks[1:]:
        other = _box(task)
        if other is None or written & set(reads(task.flat)):
            break
        names = _renaming(domain, other)
        if names is None:
            break
        member = _member(task, other, names)
        if not _calls(member.body) & {c for m in members for c in _calls(m.body)}:
            break
        members.append(member)
        written.add(task.flat.output)
    return None if len(members) < 2 else (len(members), _lines(domain, whole[0][1], members))


def _calls(e: Expr) -> set[Expr]:
    return {x for x in walk(e) if isinstance(x, Call)}


def _box(task: Task) -> Domain | None:
    """The statement's points where they are a box, unmasked, that fills the output."""
    if task.flat.default is not None or task.flat.aggregation == "logsumexp" or not task.classes:
        return None
    (domain, *more) = task.classes
    if more or domain.masked or not task.covered or task.part(domain) != task.out:
        return None
    if task.flat.aggregation == "assign" and any(domain.extent[v] > 1 for v in domain.reductions()):
        return None
    return domain


def _whole_accesses(domain: Domain) -> list[tuple[str, tuple[str, ...]]]:
    """Tensors that all variables index, each alone, and in which order."""
    accesses = ((e.tensor, distinct_variables(e.index) or ()) for e in accesses_in(domain.statement.body))
    return [(tensor, names) for tensor, names in accesses if set(names) == set(domain.low)]


def _renaming(first: Domain, other: Domain) -> dict[str, str] | None:
    """Names of the first domain for the other's variables, by a tensor that both read with all their variables."""
    if len(first.low) != len(other.low):
        return None
    there, here = _whole_accesses(other), _whole_accesses(first)
    for tensor, names in there:
        for wanted in (found for name, found in here if name == tensor):
            pairs = dict(zip(names, wanted, strict=True))
            if all((other.low[v], other.extent[v]) == (first.low[u], first.extent[u]) for v, u in pairs.items()):
                return pairs
    return None


def _member(task: Task, domain: Domain, names: dict[str, str]) -> Member:
    body = replace_indices(domain.statement.body, {v: Affine.variable(u) for v, u in names.items()})
    outputs = tuple(names.get(v, v) for v in domain.output_variables())
    return Member(task, body, outputs, tuple(names.get(v, v) for v in domain.reductions()))


def _lines(domain: Domain, order: tuple[str, ...], members: Sequence[Member]) -> list[str]:
    first = members[0].task
    limit = block_limit(first, domain)
    steps = blocks([(v, domain.extent[v]) for v in order], limit)
    loops = Loops(first, domain, order, steps)
    frame = TensorFrame(domain, order, first.types, first.local, first.names, loops.ends)
    evaluator = TorchScalars(frame, *(m.body for m in members))
    before: list[str] = []
    after: list[str] = []
    for m in members:
        _write(m, domain, frame, evaluator, loops, before, after)
    return [*before, *frame.prologue, *loops.wrap(frame.lines), *after]


def _write(
    m: Member,
    domain: Domain,
    frame: TensorFrame,
    evaluator: TorchScalars,
    loops: Loops,
    before: list[str],
    after: list[str],
) -> None:
    """Lines of one member: its output allocated, a block of it computed, and rounded at the end."""
    task, aggregation, result = m.task, m.task.flat.aggregation, m.task.type.dtype
    value = evaluator.value(m.body)
    dtype = accumulation_dtype(aggregation, result) if m.reductions else result
    shape = tuple_text(task.type.shape)
    partial = any(v in loops.ends for v in m.reductions)
    identity = identity_text(aggregation, dtype)
    fill = f"torch.full({shape}, {identity}, " if partial else f"torch.empty({shape}, "
    before.append(f"{task.out} = {fill}dtype=torch.{dtype}, device=device)")
    kept = [v for v in frame.order if v in m.outputs]
    target = assignable(loops.part(permuted(task.out, [m.outputs.index(v) for v in kept]), kept))
    if not m.reductions:
        whole = all(v in value.variables or domain.extent[v] == 1 for v in m.outputs)
        whole = whole and bool(value.variables or not m.outputs)  # one without axes does not fill a view that has some
        if value.call is not None and value.compute_dtype == dtype and whole:
            frame.lines.append(value.call.format(target))
        else:
            frame.lines.append(f"{target} = {evaluator.tensor(value, dtype)}")
        return
    code = (
        evaluator.condition(value) if aggregation in LOGICAL else evaluator.tensor(value, value.compute_dtype or dtype)
    )
    if aggregation in ("max", "min") and value.compute_dtype != dtype:
        code = evaluator.tensor(value, dtype)
    if any(v not in value.variables and domain.extent[v] > 1 for v in m.reductions) or not value.variables:
        needed = value.variables | set(m.reductions)
        code = f"({code}).expand({tuple_text([frame.size(v) if v in needed else '1' for v in frame.order])})"
    dims = [d for d, v in enumerate(frame.order) if v in m.reductions]
    for part in [dims] if aggregation != "prod" else [[d] for d in reversed(dims)]:
        code = REDUCE[aggregation].format(code, tuple_text(part), dtype)
    if partial:
        code = COMBINED[aggregation].format(target, code)
    frame.lines.append(f"{target} = {code}")
    if dtype != result:
        after.append(f"{task.out} = {task.out}.to(torch.{result})")
