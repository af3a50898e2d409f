"""Fusion groups: which statements share a kernel that walks rows.

Statements that walk the same points, and read each other's values at the same point only, form a group: a space of rows
x columns. A group reads each outside tensor once and keeps what only its own statements read on the chip. It is formed
where that saves memory traffic; products of matrices, windows over a group's own values and data-dependent outputs are
none of its business.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tilec.backends.common.chains.chain import ChainKernel, with_reads
from tilec.backends.common.chains.recognise import Chained, chained
from tilec.backends.common.domain import Condition, Domain, point_conditions
from tilec.backends.common.operands.mirrored import with_mirrored_sums
from tilec.backends.common.operands.orders import with_better_orders
from tilec.backends.common.operands.rounded import with_rounded_operands
from tilec.backends.common.operands.short_sums import with_short_sums
from tilec.backends.common.operands.stored_products import with_stored_products
from tilec.backends.common.units import Units, by_unit, ordered
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.fusion.disjoint_windows import with_points_written_out, with_windows
from tilec.backends.triton.fusion.fuse_producers import elementwise, with_producers
from tilec.backends.triton.fusion.grow_groups import GroupCandidate, ends_a_sum, grown
from tilec.backends.triton.fusion.invariants import instructions, with_invariants
from tilec.backends.triton.fusion.loop_nest import (
    LoopNest,
    ScanForm,
    form_of,
    reduced,
    scan_form,
    taken_by_products,
)
from tilec.backends.triton.fusion.memory_order import Layouts
from tilec.backends.triton.fusion.neighbourhood import Neighbourhood
from tilec.backends.triton.fusion.numbered_parts import with_narrow_scatters, with_numbered_parts, with_stored_columns
from tilec.backends.triton.fusion.read_through import (
    aggregated_through,
    asking_inputs,
    asks_of,
    computes_scaled,
    is_reshape,
    is_view,
    read_through,
    reads_within,
    recomputed_by_readers,
    scaled_sums,
)
from tilec.backends.triton.fusion.recomputed.kernel_times import faster
from tilec.backends.triton.fusion.recomputed.pair_sums import with_pair_sums
from tilec.backends.triton.fusion.recomputed.shifted_reads import comparisons, with_shifted_reads
from tilec.backends.triton.fusion.recomputed.tile_extrema import with_tile_extrema
from tilec.backends.triton.fusion.window_layout import with_product_layouts, with_sum_layouts, with_window_layouts
from tilec.backends.triton.fusion.window_values import with_window_values
from tilec.backends.triton.iteration.column_moments import with_moments
from tilec.backends.triton.iteration.scatter_to_select import with_selections
from tilec.backends.triton.matmul.distances import TileExtremum
from tilec.backends.triton.recurrence.fuse_producers import fuse_step_inputs
from tilec.backends.triton.recurrence.recurrence import taken_by_recurrences
from tilec.ir.index import linear
from tilec.ir.program import (
    Access,
    Attribute,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
    value_accesses,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.lower.share_sums import with_common_sums
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names

MOST_WITHOUT = 8  # members that a group gives up so that kernels can stand in an order


@dataclass(frozen=True)
class Group:
    """`statements`, over shared variables and in order; `rows` and `columns` are all of these. `stored`: the outputs
    that somebody outside reads. `sums`: outputs that add up over rows, in two stages; `after`: statements over columns
    that read those. `rounded`: outputs of 16 bits that members read as they are stored, since comparisons elsewhere
    compute from what is stored what members computed from them. `scans`: outputs that a scan through the columns makes
    of what their statements say at each point."""

    statements: tuple[Statement, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    extent: Mapping[str, int]
    stored: frozenset[str]
    sums: frozenset[str]
    after: tuple[Statement, ...] = ()
    rounded: frozenset[str] = frozenset()
    scans: Mapping[str, ScanForm] = field(default_factory=dict)

    def count(self, variables: Sequence[str]) -> int:
        return math.prod(self.extent[v] for v in variables)

    @property
    def kept(self) -> tuple[str, ...]:
        """The variables of more than one value that its sums do not add up over, in order."""
        written = {v for s in self.statements if s.output in self.sums for v in index_variables(*(s.index or ()))}
        return tuple(v for v in (*self.rows, *self.columns) if v in written and self.extent[v] > 1)

    @property
    def totals(self) -> bool:
        """Whether its sums add up over columns as well."""
        return bool(self.sums) and not set(self.kept) & set(self.columns)

    def reductions(self, s: Statement) -> set[str]:
        """The variables of more than one value that a member aggregates over."""
        return reduced(s, self.extent)


@dataclass(frozen=True)
class Grouped:
    """A program whose statements stand in an order in which groups are contiguous. Some sums were cut in two: one over
    the columns, in the group, and one over the rows. `groups`: by the output of the first statement. `rewritten`:
    outputs of statements that are not the lowered program's. `chains`: by the output of the first target; statements
    of their matrix values are gone. `tiled`: what tensors of distances are asked for by tiles alone."""

    program: Program
    types: Types
    groups: Mapping[str, Group]
    rewritten: frozenset[str] = frozenset()
    chains: Mapping[str, ChainKernel] = field(default_factory=dict)
    tiled: Mapping[str, tuple[TileExtremum, ...]] = field(default_factory=dict)

    def kernels(self) -> list[tuple[tuple[Statement, ...], frozenset[str]]]:
        """Statements that share a kernel, by themselves most of them, and the outputs that it stores."""
        found = [((*g.statements, *g.after), frozenset(g.stored)) for g in self.groups.values()]
        members = {s.output for statements, _ in found for s in statements}
        alone = (s for s in self.program.statements if s.output not in members)
        return [*found, *(((s,), frozenset((s.output,))) for s in alone)]

    def marked(self) -> Program:
        """The program with `[[kernel(k)]]` before the members of group k."""
        marks: dict[str, Attribute] = {}
        for k, group in enumerate(self.groups.values()):
            marks.update((s.output, Attribute("kernel", (str(k),))) for s in (*group.statements, *group.after))
        for k, chain in enumerate(self.chains.values(), len(self.groups)):
            marks.update((s.output, Attribute("kernel", (str(k),))) for s in chain.statements)
        statements = (
            replace(s, attributes=(*s.attributes, marks[s.output])) if s.output in marks else s
            for s in self.program.statements
        )
        return replace(self.program, statements=tuple(statements))


def grouped(flat: Program, types: Types, layouts: Layouts = MappingProxyType({})) -> Grouped:
    """The flat program with its chains and the groups that pay, of values that are stored and read at neighbours, or
    that are computed there. `layouts`: of inputs that lie in another order than their indices'."""
    program, types = fuse_step_inputs(flat, types)
    found = _grouped(program, types, layouts)
    computing = with_shifted_reads(program, types)
    if computing != program:
        made = _grouped(computing, types, layouts)
        found = made if faster(made.kernels(), found.kernels(), {**found.types, **made.types}) else found
    given = {s.output: s for s in flat.statements}
    changed = frozenset(s.output for s in found.program.statements if s != given.get(s.output))
    return replace(found, rewritten=changed)


REWRITES = (
    with_common_sums,
    asking_inputs,
    with_better_orders,
    with_numbered_parts,
    with_narrow_scatters,
    with_selections,
    with_window_values,
    with_window_layouts,
    with_sum_layouts,
    with_points_written_out,
)


def _grouped(program: Program, types: Types, layouts: Layouts) -> Grouped:
    for rewrite in REWRITES:
        program, types = rewrite(program, types)
    program, types, pivots = with_moments(program, types)
    chains = chained(program, types)
    program, types = chains.program, chains.types
    members = chains.members()
    program, types = with_stored_products(program, types, members)
    program, types = with_rounded_operands(program, types, members)
    program, types = with_mirrored_sums(program, types, members)
    program = with_short_sums(program, types, members)
    program, types = with_product_layouts(program, types, members)
    program, types = with_stored_columns(program, types, members)
    program, types, pairs = with_pair_sums(program, types, members)
    program, types, tiled = with_tile_extrema(program, types, tuple(chains.kernels.values()))
    tiles = {t.statement.output for found in tiled.values() for t in found}
    program, types, apart = with_invariants(program, types, members, pairs)
    forms = {s.output: f for s in program.statements if (f := form_of(s, types)) is not None}
    kept = with_reads(program, chains.kernels.values())
    scans = {s.output: x for s in program.statements if s.output not in forms and (x := scan_form(s, types))}
    forms |= {output: f.nest for output, f in scans.items()}
    recurrent = taken_by_recurrences(kept, types)
    taken = taken_by_products(kept, types, forms) - recurrent
    epilogues = {output for output in taken & forms.keys() - members if elementwise(forms[output].statement)}
    for output in (*taken, *recurrent, *members, *pivots, *pairs, *apart, *tiles):
        forms.pop(output, None)
    for s in program.statements:
        across = s.output in forms and is_view(s, program, types) and _is_read_across(s.output, kept, forms)
        if across or s.output in forms and is_reshape(s, program, types) and not _is_affine(s.body):
            del forms[s.output]  # a reshape costs nothing, and reading through its remainders takes whole vectors apart
    found: list[GroupCandidate] = []
    read = _reads(program, chains)
    around = Neighbourhood(kept, forms, read, instructions(program, types), scans, epilogues, layouts)
    units = Units(program, [[s.output for s in kernel.statements] for kernel in chains.kernels.values()], read)
    for seed in sorted(forms.values(), key=lambda f: -sum(n > 1 for n in f.extent.values())):
        if seed.statement.output not in around.free:
            continue
        candidate = _joined(seed, around, types, units)
        if candidate is not None:
            found.append(candidate)
            for s in (*candidate.members, *candidate.after):
                del around.free[s.output]
    made = _assembled(program, types, found, chains, around)
    barred = {*members, *tiles, *(s.output for g in made.groups.values() for s in (*g.statements, *g.after))}
    program = with_windows(made.program, made.types, barred, _reads(made.program, chains))
    program = with_producers(program, made.types, barred, _reads(program, chains))
    return replace(made, program=program, chains=chains.kernels, tiled=tiled)


def _joined(seed: LoopNest, around: Neighbourhood, types: Types, units: Units) -> GroupCandidate | None:
    """The group of a seed, as one unit; where other kernels need a member before they give others what those read,
    without that member."""
    without: set[str] = set()
    while len(without) <= MOST_WITHOUT:
        candidate = grown(seed, around, types, without)
        if candidate is None or ends_a_sum(candidate, around, types):
            return None
        outputs = [s.output for s in (*candidate.members, *candidate.after)]
        if units.join(outputs):
            return candidate
        first = next((n for n in outputs if n != seed.statement.output), None)
        if first is None:
            return None
        without.add(first)
    return None


def _reads(program: Program, chains: Chained) -> dict[str, tuple[str, ...]]:
    """What each statement reads; those of a chain, whatever its kernel does."""
    read = {s.output: reads(s) for s in program.statements}
    return read | {s.output: kernel.reads for kernel in chains.kernels.values() for s in kernel.statements}


def _order(program: Program, candidates: Sequence[GroupCandidate], chains: Chained) -> list[list[str]]:
    """Outputs by kernel, each after what it reads."""
    unit_of: dict[str, object] = {s.output: k for k, c in enumerate(candidates) for s in (*c.members, *c.after)}
    unit_of |= {s.output: kernel.outputs for kernel in chains.kernels.values() for s in kernel.statements}
    every = list(by_unit(program, unit_of).values())
    order = ordered(every, _reads(program, chains))
    assert order is not None, "joined units can be ordered"
    return [every[k] for k in order]


def _assembled(
    program: Program, types: Types, candidates: Sequence[GroupCandidate], chains: Chained, around: Neighbourhood
) -> Grouped:
    order = _order(program, candidates, chains)
    statements = {s.output: s for s in program.statements}
    of = {s.output: c for c in candidates for s in (*c.members, *c.after)}
    known = dict(types)
    fresh_names = Names.of(program)
    compared = _compared_tensors(program.statements)
    views, again, aggregations = _read_through(program, types, candidates, chains, around, compared)
    ordered: list[Statement] = []
    groups: dict[str, Group] = {}
    for unit in order:
        if unit[0] not in of:
            for s in (statements[name] for name in unit if name not in views):
                apart = s.output in aggregations
                ordered.append(aggregated_through(s, views, types) if apart else read_through(s, views))
            continue
        c = of[unit[0]]
        elsewhere = {v: s for v, s in views.items() if of.get(v) is not c}
        members: list[Statement] = []
        cut_rows: set[str] = set()
        second: list[Statement] = []
        for s in (read_through(s, elsewhere) for s in c.members):
            if s.output in c.cut:
                first, rest = _cut(s, fresh_names.fresh(f"{s.output}_rows"), c, known)
                cut_rows.add(first.output)
                members.append(first)
                second.append(rest)
            else:
                members.append(s)
        own = {s.output for s in (*c.members, *c.after)}  # those cut in two read within it
        stored = frozenset(around.stored_outside(own) - c.cut | cut_rows | (again & own)) - views.keys()
        after = tuple(read_through(s, elsewhere) for s in c.after)
        live = {s.output for s in drop_dead([*members, *after], tuple(stored))}
        members = [s for s in members if s.output in live]
        rounded = frozenset(t for t in stored if not compared.get(t, own) <= own)
        if len(members) > 1:
            scans = {s.output: around.scans[s.output] for s in members if s.output in around.scans}
            group = Group(tuple(members), c.rows, c.columns, c.extent, stored, c.sums, after, rounded, scans)
            groups[members[0].output] = group
        whole = (read_through(statements[s.output], elsewhere) if s.output in around.scans else s for s in members)
        ordered += [*whole, *after, *second]
    return Grouped(replace(program, statements=tuple(ordered)), known, groups)


def _read_through(
    program: Program,
    types: Types,
    candidates: Sequence[GroupCandidate],
    chains: Chained,
    around: Neighbourhood,
    compared: Collection[str],
) -> tuple[dict[str, Statement], set[str], set[str]]:
    """By output, statements whose readers compute them; what these read of groups, which is in memory; and aggregations
    among the readers."""
    of = {s.output: c for c in candidates for s in (*c.members, *c.after)}
    needed = set(around.program.outputs)  # chains read these too
    views = {s.output: s for s in program.statements if s.output not in needed and is_view(s, program, types)}
    made = {s.output for s in program.statements if s.aggregation != "assign"} - of.keys() - chains.members()
    found = (scaled_sums(s, made, program, types) for s in program.statements if s.output not in of)
    scaled = {s.output: s for s in found if s is not None and s.output not in needed}
    views |= scaled
    recomputed, aggregations = recomputed_by_readers(program, types, candidates, around, compared, views)
    views |= recomputed
    statements, chained = {s.output: s for s in program.statements}, chains.members()

    def may_compute(r: Statement, v: str) -> bool:
        if v in recomputed and of.get(r.output) is of[v]:
            return True  # its own kernel has the value
        if asks_of(r, views[v]):
            return False
        if v in scaled:
            return r.output not in chained and computes_scaled(r, scaled[v], r.output in of, around, types)
        within = (r.output in of or v in recomputed) and reads_within(r, v, types)
        return within or (v in recomputed and r.output in aggregations)

    readers = {v: [statements[r.output] for r in around.program.readers(v)] for v in views}
    views = {v: s for v, s in views.items() if all(may_compute(r, v) for r in readers[v])}
    aggregations |= {r.output for v in views.keys() & scaled for r in readers[v] if r.aggregation != "assign"}
    again = {t for v in views.keys() & recomputed.keys() for t in reads(views[v])}
    return {v: s for v, s in views.items() if v not in again or v not in recomputed}, again, aggregations


def _is_affine(e: Expr) -> bool:
    return all(linear(i).is_affine for a in accesses_in(e) for i in a.index)


def _is_read_across(name: str, program: Program, forms: Collection[str]) -> bool:
    """Whether statements that may join a group read a tensor along different axes of what they write. No group has such
    a tensor as a member and all of them beside it."""
    places: dict[int, set[tuple[int, ...]]] = {}
    for s in program.statements:
        own = [linear(e).bare for e in s.index or ()]
        for a in value_accesses(s) if name in reads(s) else ():
            bare = [linear(e).bare for e in a.index]
            if a.tensor == name and s.output in forms and all(v is not None and v in own for v in bare):
                places.setdefault(len(own), set()).add(tuple(own.index(v) for v in bare))
    return any(len(found) > 1 for found in places.values())


def _compared_tensors(statements: Iterable[Statement]) -> dict[str, set[str]]:
    """Tensors from which statements compute what they compare (whether a maximum is what it was a maximum of), and the
    outputs of those statements."""
    found: dict[str, set[str]] = {}
    for output, e in comparisons(statements):
        for a in accesses_in(e):
            found.setdefault(a.tensor, set()).add(output)
    return found


def _cut(s: Statement, name: str, c: GroupCandidate, types: dict[str, TensorType]) -> tuple[Statement, Statement]:
    """The aggregation of each row, of that name and held as wide as it is computed, and that of all. `types` learns the
    former's."""
    rows = [v for v in c.rows if c.extent[v] > 1]
    shape = tuple(c.extent[v] for v in rows)
    types[name] = TensorType(shape, Accumulator.of(s.aggregation, types[s.output].dtype).dtype)
    index = tuple(map(Index, rows))
    first = replace(s, output=name, index=index, sizes=tuple(map(Int, shape)))
    rest = replace(
        s, body=Access(name, index), guard=None, constraints=(), sizes=tuple(map(Int, types[s.output].shape))
    )
    return first, rest


def conditions(s: Statement, group: Group, types: Types) -> tuple[Condition, ...]:
    """What makes a point of the group's box a valid one of the statement."""
    box = Domain(s, dict.fromkeys(group.extent, 0), group.extent, (), None)
    found = point_conditions((s.body, *s.guards), s.constraints, types)
    return tuple(c for c in found if not box.holds(c))
