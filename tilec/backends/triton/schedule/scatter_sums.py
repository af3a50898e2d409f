"""Scatters whose values one elementwise statement takes, as the sum of a gradient's terms does: several together, or
one to few of many elements over what a group's kernel stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.triton.emit.epilogue import as_assignment, find_epilogue, joins, reads_own_element
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.fusion.read_through import LONGEST_RECOMPUTED
from tilec.backends.triton.plan.plan import Setting, Step
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.scatter.scatter import ScatterContext, over_others, scattered_together, without
from tilec.backends.triton.schedule.families import statement_steps
from tilec.backends.triton.schedule.problem import needs_int64_index
from tilec.ir.program import Access, Expr, Program, Statement, node_count, reads, rebuild
from tilec.ir.types import Types
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import body_at

MOST_SCATTERS = 8  # scatters of a kernel, which holds a value of each


@dataclass(frozen=True)
class ScatterSum:
    """`members` in order, whose outputs nothing but the first statement of the `epilogue` of the last one reads."""

    members: tuple[Statement, ...]
    epilogue: tuple[Statement, ...]


def scatter_sums(
    program: Program, written: Collection[str], types: Types, barred: Collection[str]
) -> dict[str, ScatterSum]:
    """The sums of a program by the output of their last member, after whose producers all of it can run. `written`:
    outputs of scatters; `barred`: of statements that are carried out otherwise."""
    scatters = {s.output: n for n, s in enumerate(program.statements) if s.output in {*written} - {*barred}}
    if len(scatters) < 2:
        return {}
    found: dict[str, ScatterSum] = {}
    for s in program.statements:
        terms = [program.statements[n] for n in sorted(scatters[name] for name in {*reads(s)} & scatters.keys())]
        own = [t for t in terms if t.output not in program.outputs and _read_by(program, t.output) == {s.output}]
        if len(own) < 2 or own[-1] is not terms[-1]:
            continue
        epilogue = find_epilogue(program, scatters[own[-1].output], types, barred)
        if not epilogue or epilogue[0].output != s.output:
            continue
        taken = tuple(_at_their_elements(own[:-1], epilogue[0], types))
        if taken:
            members = (*taken, own[-1])[-MOST_SCATTERS:]
            found[members[-1].output] = ScatterSum(members, epilogue)
    return found


def sum_steps(found: ScatterSum, types: Types, strides: Strides, setting: Setting) -> list[Step] | None:
    """Steps that compute a sum's members and its epilogue in one kernel; None where they have no such form."""
    int64_index = needs_int64_index((*found.members, *found.epilogue), types, strides, None)
    carry = partial(statement_steps, setting=setting)
    context = ScatterContext(types, strides, int64_index, carry, setting.fixed)
    return scattered_together(found.members, context, found.epilogue, setting.margins)


@dataclass(frozen=True)
class ScatterOver:
    """A scatter to few elements of what a group's kernel stores: the group without it, and the steps that write these
    elements after that."""

    scatter: Statement
    group: Group
    steps: tuple[Step, ...]


def scatters_over(
    program: Program, written: Collection[str], groups: Mapping[str, Group], types: Types, strides: Strides, s: Setting
) -> dict[str, ScatterOver]:
    """Of groups by the output of their first statement. `written`: outputs of scatters. A member of the group is the
    only reader of the scatter; it is stored, other members do not read it, and the rest of its value can be computed
    again from what is stored."""
    found: dict[str, ScatterOver] = {}
    for scatter in (m for m in program.statements if m.output in written and m.output not in program.outputs):
        readers = program.readers(scatter.output)
        for first, group in groups.items():
            last = next((m for m in group.statements if [m] == list(readers)), None)
            if last is not None and first not in found:
                over = _scatter_over(scatter, last, group, types, strides, s)
                found |= {} if over is None else {first: over}
    return found


def _scatter_over(
    scatter: Statement, last: Statement, group: Group, types: Types, strides: Strides, setting: Setting
) -> ScatterOver | None:
    members = (*group.statements, *group.after)
    apart = {*group.sums, *group.scans, *group.rounded, *(m.output for m in group.after)}
    if last.output not in group.stored or any(last.output in reads(m) for m in members):
        return None
    plain = [as_assignment(m, types) for m in group.statements if m.output not in apart]
    made = {m.output: m for m in plain if m.aggregation == "assign" and is_pure(m) and is_unmasked(m)}
    whole = _of_stored(made[last.output], made, group) if last.output in made else None
    if whole is None or not joins(whole, scatter, reads(whole), types):
        return None
    int64_index = needs_int64_index((scatter, whole), types, strides, None)
    context = ScatterContext(types, strides, int64_index, partial(statement_steps, setting=setting), setting.fixed)
    steps = over_others(scatter, context, whole)
    if steps is None:
        return None
    rest = tuple(without(m, scatter.output, types) if m is last else m for m in group.statements)
    return ScatterOver(scatter, replace(group, statements=rest), tuple(steps))


def _of_stored(s: Statement, made: Mapping[str, Statement], group: Group) -> Statement | None:
    """The statement with what its group does not store written into it; None where that is no short expression."""

    def through(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in made and e.tensor not in group.stored:
            return through(body_at(made[e.tensor], e.index))
        return rebuild(e, through)

    whole = replace(s, body=through(s.body))
    left = {m.output for m in group.statements} & set(reads(whole)) - group.stored
    return None if left or node_count(whole.body) > LONGEST_RECOMPUTED else whole


def _at_their_elements(scatters: Collection[Statement], reader: Statement, types: Types) -> Iterator[Statement]:
    """Those of which the reader takes the value of its own element alone."""
    assert reader.index is not None
    for s in scatters:
        alike = types[s.output].shape == types[reader.output].shape
        if alike and reads_own_element(reader.body, s.output, reader.index):
            yield s


def _read_by(program: Program, name: str) -> set[str]:
    return {r.output for r in program.readers(name)}
