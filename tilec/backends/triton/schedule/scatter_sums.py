"""Scatters whose values one elementwise statement takes, as the sum of a gradient's terms does: several together, or
one to few of many elements over what a group's kernel stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.triton.emit.epilogue import as_assignment, find_epilogue, joins, reads_own_element
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.fusion.read_through import LONGEST_RECOMPUTED
from tilec.backends.triton.plan.plan import Setting, Step
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.scatter.scatter import ScatterContext, fused_scatters, over_others, without
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
    return fused_scatters(found.members, context, found.epilogue, setting.margins)


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
    """Of groups by the output of their first statement. `written`: outputs of scatters. Members of the group are
    the only readers of the scatter up to one that is stored; other members do not read that, and the rest of its value
    can be computed again from what is stored."""
    found: dict[str, ScatterOver] = {}
    for scatter in (m for m in program.statements if m.output in written and m.output not in program.outputs):
        for first, group in groups.items():
            readers = _up_to_stored(scatter.output, group, program) if first not in found else []
            over = _scatter_over(scatter, readers, group, types, strides, s) if readers else None
            found |= {} if over is None else {first: over}
    return found


def _up_to_stored(name: str, group: Group, program: Program) -> list[Statement]:
    """The only reader of a tensor, that one's, and so on to one that is stored; none where not all are of the group."""
    found: list[Statement] = []
    while not found or name not in group.stored:
        readers = [m for m in group.statements if name in reads(m)]
        if len(readers) != 1 or readers != list(program.readers(name)):
            return []
        found += readers
        name = readers[0].output
    return found


def _scatter_over(
    scatter: Statement, readers: Sequence[Statement], group: Group, types: Types, strides: Strides, setting: Setting
) -> ScatterOver | None:
    first, last = readers[0], readers[-1]
    apart = {*group.sums, *group.scans, *group.rounded, *(m.output for m in group.after)}
    if any(last.output in reads(m) for m in (*group.statements, *group.after)):
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
    rest = tuple(without(m, scatter.output, types) if m is first else m for m in group.statements)
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
