"""Scatters whose values one elementwise statement takes, as the sum of a gradient's terms does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from tilec.backends.triton.emit.epilogue import find_epilogue, reads_own_element
from tilec.backends.triton.plan.plan import Setting, Step
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.scatter.scatter import ScatterContext, fused_scatters
from tilec.backends.triton.schedule.families import statement_steps
from tilec.backends.triton.schedule.problem import needs_int64_index
from tilec.ir.program import Program, Statement, reads
from tilec.ir.types import Types

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


def _at_their_elements(scatters: Collection[Statement], reader: Statement, types: Types) -> Iterator[Statement]:
    """Those of which the reader takes the value of its own element alone."""
    assert reader.index is not None
    for s in scatters:
        alike = types[s.output].shape == types[reader.output].shape
        if alike and reads_own_element(reader.body, s.output, reader.index):
            yield s


def _read_by(program: Program, name: str) -> set[str]:
    return {r.output for r in program.readers(name)}
