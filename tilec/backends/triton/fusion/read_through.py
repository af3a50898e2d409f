"""Elementwise statements that their consumers recompute rather than load (rematerialisation).

Views of inputs, what scales a product's sums, and what a group's kernel would store for kernels that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.domain import Condition, access_conditions, point_conditions
from tilec.backends.triton.emit.epilogue import as_assignment
from tilec.backends.triton.fusion.fuse_producers import elementwise, reads_each_once
from tilec.backends.triton.fusion.grow_groups import GroupCandidate
from tilec.backends.triton.fusion.neighbourhood import Neighbourhood
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous
from tilec.cost import size_in_bytes
from tilec.ir.functions import COSTLY_FUNCTIONS, draws
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    expressions,
    index_variables,
    map_values,
    node_count,
    reads,
    reads_itself,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.types import FLOATS, ITEM_BYTES, NARROW, Types
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import body_at, map_reads

LONGEST_RECOMPUTED = 256  # of a body that several kernels compute
LEAST_EXPANSION = 2  # bytes of values that a sum computes again over those of what they are made from, at least
_CHOOSING = frozenset(("relu", "max", "min", "neg", "abs", "ident"))


def is_view(s: Statement, program: Program, types: Types) -> bool:
    """Whether a statement only gives all of an input another shape or order, which several groups may read through."""
    return (
        isinstance(s.body, Access) and s.body.tensor in program.input_names() and _reorders(s, s.body, program, types)
    )


def is_reshape(s: Statement, program: Program, types: Types) -> bool:
    """Whether a statement is all elements, in order, of an intermediate that no other output is the same memory as."""
    if not keeps_order(s, types):
        return False
    assert isinstance(s.body, Access)
    source = s.body.tensor
    if source in program.input_names() or source in program.outputs:
        return False
    others = (o for o in program.readers(source) if o.output != s.output)
    return s.output not in program.outputs or not any(keeps_order(o, types) for o in others)


def asking_inputs(program: Program, types: Types) -> tuple[Program, Types]:
    """The program in which what asks only whether a place lies in a tensor (`in(A[e])`) asks it of an input of the same
    shape that the tensor is made of, where there is one: so it waits for no kernel."""
    made = {s.output: s for s in program.statements}

    def source(name: str) -> str:
        pending = [name]
        for n in pending:
            if n not in made and types[n].shape == types[name].shape:
                return n
            pending += [r for r in dict.fromkeys(reads(made[n]) if n in made else ()) if r not in pending]
        return name

    def visit(e: Expr) -> Expr:
        if isinstance(e, Inside) and e.access.tensor in made:
            return replace(e, access=replace(e.access, tensor=source(e.access.tensor)))
        return e if isinstance(e, Inside) else rebuild(e, visit)

    own = (s for s in program.statements if not reads_itself(s))
    asks = (s for s in own if any(isinstance(e, Inside) for e in walk(*expressions(s))))
    changed = {s.output: map_values(s, visit) for s in asks}
    return replace(program, statements=tuple(changed.get(s.output, s) for s in program.statements)), types


def keeps_order(s: Statement, types: Types) -> bool:
    """Whether a statement is all elements of a tensor, in order, in another shape."""
    source = s.body
    if s.aggregation not in ("assign", "sum") or not is_pure(s) or not is_unmasked(s):
        return False
    if not isinstance(source, Access) or s.index is None or types[source.tensor] == types[s.output]:
        return False
    wanted, there = types[s.output], types[source.tensor]
    same = wanted.dtype == there.dtype and math.prod(wanted.shape) == math.prod(there.shape)
    if not same or not all(isinstance(e, Index) for e in s.index) or len(set(s.index)) != len(s.index):
        return False
    if 0 in wanted.shape:
        return False
    single = {v: Affine() for e, n in zip(s.index, wanted.shape, strict=True) if n == 1 and (v := linear(e).bare)}
    places = [_place(index, t.shape).substitute(single) for index, t in ((source.index, there), (s.index, wanted))]
    return places[0] == places[1]


def _place(index: Sequence[Expr], shape: Sequence[int]) -> Affine:
    """Where an element stands in a contiguous tensor."""
    return sum((linear(e) * step for e, step in zip(index, contiguous(shape), strict=True)), Affine())


def scaled_sums(s: Statement, made: Collection[str], program: Program, types: Types) -> Statement | None:
    """A statement that applies one cheap function to all of a tensor, such as a product's sums, which cost no more to
    read; its value rounded as what is stored would be."""
    accesses, calls = [*accesses_in(s.body)], [e for e in walk(s.body) if isinstance(e, Call)]
    if len(accesses) != 1 or len(calls) != 1 or calls[0].function not in ("mul", "div", "add", "sub", "neg"):
        return None
    (read,), dtype = accesses, types[s.output].dtype
    if dtype not in FLOATS or read.tensor not in made or dtype not in (*NARROW, types[read.tensor].dtype):
        return None
    if not _reorders(s, read, program, types):
        return None
    return replace(s, body=Call(dtype, (s.body,))) if dtype in NARROW else s


def computes_scaled(r: Statement, scaled: Statement, member: bool, around: Neighbourhood, types: Types) -> bool:
    """Whether a statement may compute a scaled sum at each of its points: a member of a group, if each point reads an
    element of its own where these have 32 bits or more. Such are computed too by what is elementwise, or aggregates
    them; for 16 bits, a product computes it for what follows."""
    if not reads_within(r, scaled.output, types):
        return False
    if types[scaled.output].dtype in NARROW:
        return member
    read = {a for a in accesses_in(*r.roots) if a.tensor == scaled.output}
    if len(read) != 1 or not all(set(variables_of(r)) <= set(index_variables(*a.index)) for a in read):
        return False
    return member or elementwise(r) is not None or _aggregates_within(r, scaled, around, types)


def recomputed_by_readers(
    program: Program,
    types: Types,
    candidates: Sequence[GroupCandidate],
    around: Neighbourhood,
    compared: Collection[str],
    views: Mapping[str, Statement],
) -> tuple[dict[str, Statement], set[str]]:
    """Elementwise members that other groups, elementwise statements or aggregations at other places compute again from
    what these read anyhow, or from fewer bytes than storing and reading them takes; each in terms of what is stored.
    Nothing compares their values, unless these are chosen among what is stored (a relu), and an element takes fewer
    costly functions than it has bytes, of 16 bits none, or for aggregations as one of float32. Also those
    aggregations."""
    found: dict[str, Statement] = {}
    aggregations: set[str] = set()
    kernel_of, reading = _kernels(program, candidates, around)

    def may_compute(made: Statement, readers: Sequence[Statement], others: set[str], members: set[str]) -> bool:
        """Whether readers in other kernels may compute a value, and take less."""
        needed, size = set(reads(made)), size_in_bytes(types[made.output])
        # what is stored is read in another order elsewhere, but for what is read there anyhow
        elsewhere = "" in others or any((needed & members) - reading[k] for k in others)
        if _is_costly(made, types, narrow_too=elsewhere) or not all(
            _reads_in_turn(r, made.output, types) for r in readers
        ):
            return False
        if elsewhere:
            least = sum(size_in_bytes(types[n]) for n in needed) * LEAST_EXPANSION
            if others != {""} or size < least or not all(_aggregates_within(r, made, around, types) for r in readers):
                return False
        elif not _is_filled(made, types):
            return False
        extra = sum(size_in_bytes(types[n]) for k in others for n in needed - reading[k])
        return extra < size * (1 + len(others))

    for c in candidates:
        kernel = c.members[0].output
        members = {s.output for s in (*c.members, *c.after)}
        inside: dict[str, Statement] = {}  # what nothing stores
        apart: dict[str, Statement] = {}  # the same in terms of what is costly and has fewer elements
        for s in [as_assignment(s, types) for s in program.statements if s.output in members]:
            whole = types[s.output].numel >= math.prod(c.extent.values())
            if not whole or not gives_values(s, program, types):
                continue
            read = reads(s)
            stored = {n: m for known in (views, found) for n in read if (m := known.get(n)) is not None}
            given = {**stored, **{n: inside[n] for n in read if n in inside}}
            inner = all(reads_within(s, view, types) for view in read if view in views)
            if not inner or any(asks_of(s, view) for view in given.values()):
                continue
            readers = [r for r in around.program.readers(s.output) if kernel_of.get(r.output) != kernel]
            others = {kernel_of.get(r.output, "") for r in readers}
            parts = {n: apart[n] for n in read if n in apart}
            near = {t: m for t, m in parts.items() if not _has_costly(m) or _expands(m, s, types) < LEAST_EXPANSION}
            parted = read_through(s, {**stored, **near})
            made = parted if "" in others else read_through(s, given)
            if node_count(made.body) > LONGEST_RECOMPUTED:
                continue
            if others:
                looked_for = s.output in compared and not _chooses(made)
                if looked_for or not may_compute(made, readers, others, members):
                    continue
                found[s.output] = made
                aggregations.update(r.output for r in readers if r.output not in kernel_of)
                for k in others:
                    reading[k] |= set(reads(made))
            inside[s.output], apart[s.output] = made, parted
    return found, aggregations


def _kernels(
    program: Program, candidates: Sequence[GroupCandidate], around: Neighbourhood
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """By output, the kernel of groups' members and of elementwise statements; and by kernel, what it reads, those of
    all other statements as one of no name."""
    free = (s for s in program.statements if s.output in around.free or s.output in around.epilogues)
    kernel_of = {s.output: s.output for s in free if set(variables_of(s)) <= set(index_variables(*(s.index or ())))}
    kernel_of |= {s.output: c.members[0].output for c in candidates for s in (*c.members, *c.after)}
    reading: dict[str, set[str]] = {}
    for s in program.statements:
        reading.setdefault(kernel_of.get(s.output, ""), set()).update(reads(s))
    return kernel_of, reading


def _aggregates_within(r: Statement, made: Statement, around: Neighbourhood, types: Types) -> bool:
    """Whether a statement aggregates values, in memory, at points where all that an elementwise one reads is inside, if
    the element itself is."""
    affine = r.index is not None and all(linear(e).is_affine for e in r.index)
    if not affine or not is_pure(r) or set(around.read[r.output]) != set(reads(r)):
        return False
    (read,) = {a for a in accesses_in(*r.roots) if a.tensor == made.output}
    return set(point_conditions((body_at(made, read.index),), (), types)) <= {
        *known_conditions(r, types),
        *access_conditions(read, types),
    }


def known_conditions(s: Statement, types: Types) -> list[Condition]:
    """What is so at each point of a statement."""
    inside = [Condition(linear(e), n) for e, n in zip(s.index or (), types[s.output].shape, strict=True)]
    return [*inside, *point_conditions(s.roots, s.constraints, types)]


def aggregated_through(s: Statement, views: Mapping[str, Statement], types: Types) -> Statement:
    """The same aggregation, of the same points, that computes what it reads of these."""
    made = read_through(s, views)
    known = set(known_conditions(made, types))
    places = (a for a in accesses_in(*s.roots) if a.tensor in views)
    bounds = ((e, n) for a in places for e, n in zip(a.index, types[a.tensor].shape, strict=True))
    asked = dict.fromkeys(Constraint(e, Int(n)) for e, n in bounds if Condition(linear(e), n) not in known)
    return replace(made, constraints=(*made.constraints, *asked))


def gives_values(s: Statement, program: Program, types: Types) -> bool:
    """Whether a statement gives a floating value to each element for which what it reads is inside, of the type that
    its body has; no output."""
    t = types[s.output]
    plain = elementwise(s) is not None and s.guard is None and s.output not in program.outputs
    return plain and t.dtype in FLOATS and expression_type(s.body, types).dtype == t.dtype


def _is_filled(s: Statement, types: Types) -> bool:
    """Whether a statement has a point for each element of its output."""
    space = build_space(s, types)
    return space is not None and space.covers and not space.valid


def _has_costly(s: Statement) -> bool:
    return any(isinstance(e, Call) and e.function in COSTLY_FUNCTIONS for e in walk(s.body))


def _expands(made: Statement, s: Statement, types: Types) -> float:
    """How many elements a statement has for each of another's."""
    return types[s.output].numel / max(types[made.output].numel, 1)


def _reads_in_turn(s: Statement, tensor: str, types: Types) -> bool:
    """Whether a statement reads one element of a tensor at each of its points, another one at each: windows that do not
    overlap do too."""
    places = (e for e in walk(*expressions(s)) if isinstance(e, Access | Inside | Pad))
    asked = {e for e in places if any(a.tensor == tensor for a in accesses_in(e))}
    return len(asked) == 1 and all(isinstance(e, Access) and reads_each_once(e.index, s, types) for e in asked)


def _is_costly(s: Statement, types: Types, *, narrow_too: bool) -> bool:
    """Whether each element takes many instructions, those of 16 bits no fewer if `narrow_too`, draws or compares values
    with others: what was found equal must stay so."""
    calls = {e for e in walk(s.body) if isinstance(e, Call)}
    many = {v for v, n in zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True) if n > 1}
    each = sum(e.function in COSTLY_FUNCTIONS and many <= set(index_variables(e)) for e in calls)
    dtype = types[s.output].dtype
    most = (3 if narrow_too else 0) if dtype in NARROW else ITEM_BYTES[dtype] - 1
    compares = any(e.function in ("eq", "ne") and not any(map(_is_number, e.args)) for e in calls)
    return each > most or compares or draws(s.body)


def _chooses(s: Statement) -> bool:
    """Whether elements are ones that are stored, or their negatives: the same wherever they are computed."""
    return all(e.function in _CHOOSING for e in walk(s.body) if isinstance(e, Call))


def _is_number(e: Expr) -> bool:
    return isinstance(e, Int | Float) or isinstance(e, Call) and e.function == "neg" and _is_number(e.args[0])


def _reorders(s: Statement, read: Access, program: Program, types: Types) -> bool:
    """Whether each element of a tensor that is no output is made of one element of the tensor read, and each element of
    that is read."""
    own = [linear(e).bare for e in s.index or ()]
    plain = s.aggregation in ("assign", "sum") and is_pure(s) and is_unmasked(s)
    source = types.get(read.tensor)
    if not plain or s.output in program.outputs or None in own:
        return False
    if source is None or source.dtype != types[s.output].dtype:
        return False
    if not set(variables_of(s)) <= set(own) or not all(
        linear(e).is_affine and linear(e).is_integral for e in read.index
    ):
        return False
    space = build_space(s, types)
    whole = math.prod(source.shape) == types[s.output].numel
    return whole and space is not None and space.covers and not space.valid


def reads_within(s: Statement, tensor: str, types: Types) -> bool:
    """Whether a statement reads nothing outside of the tensor: there may be an element of what it is a view of."""
    accesses = [a for a in walk(*expressions(s)) if isinstance(a, Access) and a.tensor == tensor]
    space = build_space(s, types)
    affine = all(linear(e).is_affine for a in accesses for e in a.index)
    if not affine or space is None or space.valid:
        return False
    asked = (e.access for e in walk(*expressions(s)) if isinstance(e, Inside | Pad))
    places = {c for e in asked for a in accesses_in(e) if a in accesses for c in access_conditions(a, types)}
    boxes = [space.box(k) for k in range(len(space.classes))]
    return all(box.holds(c) for c in places for box in boxes)


def asks_of(s: Statement, view: Statement) -> bool:
    """Whether a statement asks if an element lies inside of what is no element of another tensor."""
    asked = (e.access for e in walk(*expressions(s)) if isinstance(e, Inside | Pad))
    return not isinstance(view.body, Access) and any(a.tensor == view.output for e in asked for a in accesses_in(e))


def read_through(s: Statement, views: Mapping[str, Statement]) -> Statement:
    """The statement with what these views are of in their place."""

    def value(e: Access) -> Expr:
        return body_at(views[e.tensor], e.index)

    return map_values(s, lambda e: map_reads(e, views, value)) if views.keys() & set(reads(s)) else s
