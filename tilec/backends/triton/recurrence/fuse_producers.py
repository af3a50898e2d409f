"""Elementwise statements that a recurrence alone reads are written into it: what gradients weigh and gate a step with
is then computed where it is used, beside the loads of coming steps, and never stored. So is what one slice is written
with, as the gradient of a last state is (`DH[T - 1, n : T, N] = +(DY[n])`): no zeros are stored for the other steps.

A point that is not valid makes an element 0. Written out, every access is padded and the value selected where all of
them are inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tilec.ir.constraining import constraining
from tilec.ir.functions import ONE, ZERO, all_of, draws, operands_of
from tilec.ir.index import distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, is_floating
from tilec.transforms.simplify.keep_variables import as_conditions
from tilec.transforms.simplify.simplify import fold, is_bool, truth
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import with_parts

MOST_PLACES = 2  # at which a recurrence may read what is computed at each of them anew
MUCH_LARGER = 4  # times the elements that it is made of, what a step computes again
MOST_OPERATORS = 120  # of a recurrence with everything that is written into it


def fuse_step_inputs(flat: Program, types: Types) -> tuple[Program, Types]:
    """The program with such statements written into the recurrences that read them, and the types of its tensors."""
    pending = any(map(reads_itself, flat.statements))
    while pending:
        found = next(_pairs(flat, types), None)
        pending = found is not None
        if found is not None:
            producer, left, recurrence, combined = found
            types = {**types, **{t.output: _without_numbers(producer, types) for t in left}}
            changed = {producer: left, recurrence: (combined,)}
            flat = replace(flat, statements=tuple(t for s in flat.statements for t in changed.get(s, (s,))))
    return _with_early_sums(flat), types


def _with_early_sums(program: Program) -> Program:
    """The program with what is read beside a recurrence's states, and does not depend on them, before it."""
    for s in program.statements:
        if not reads_itself(s):
            continue
        place, after, wanted = program.statements.index(s), {s.output}, set[str]()
        for r in program.statements[place + 1 :]:
            wanted |= {*reads(r)} if s.output in reads(r) else set()
            after |= {r.output} if after.intersection(reads(r)) else set()
        later = program.statements[place:]
        early = [r for r in later if r.output not in after]
        for r in reversed(early):
            wanted |= {*reads(r)} if r.output in wanted else set()
        early = [r for r in early if r.output in wanted]
        rest = [r for r in later if r not in early]
        program = replace(program, statements=(*program.statements[:place], *early, *rest)) if early else program
    return program


def _pairs(flat: Program, types: Types) -> Iterator[tuple[Statement, tuple[Statement, ...], Statement, Statement]]:
    """A producer, what is computed in its place, the recurrence that it can be written into, and what that becomes."""
    for given in flat.statements:
        readers = flat.readers(given.output)
        if given.output in flat.outputs or len(readers) != 1 or not reads_itself(readers[0]):
            continue
        left, s = ((), _product(given)) if _is_product(given, types) else _of_a_slice(given, types)
        if _simple(s):
            known = {**types, **{t.output: _without_numbers(given, types) for t in left}}
            into = readers[0] if s is given else _asked_of_inputs(readers[0], s.output, flat.input_names(), types)
            into = _bounded(into, s.output, types) if _is_product(given, types) else into
            if s is given and any(isinstance(e, Inside) and e.access.tensor == s.output for e in walk(*into.roots)):
                continue  # a value of each step, which takes less time in a kernel of its own
            combined = _combined(s, into, known)
            if combined is not None:
                yield given, left, readers[0], combined


def _is_product(s: Statement, types: Types) -> bool:
    """Whether a sum has one term for each element, made of tensors with few elements beside its own."""
    whole = {*index_variables(*s.roots)} <= {*(distinct_variables(s.index) or ())} and s.aggregation == "sum"
    read = sum(types[a.tensor].numel for a in {*accesses_in(*s.roots)})
    return whole and is_floating(types[s.output].dtype) and MUCH_LARGER * read <= types[s.output].numel


def _product(s: Statement) -> Statement:
    return replace(s, aggregation="assign")


def _bounded(into: Statement, tensor: str, types: Types) -> Statement:
    """A recurrence with constraints of its nested aggregations in the place of `in(...)` of that tensor."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, visit)
        found = [
            x.access for f in operands_of("mul", e.body) if isinstance(x := f, Inside) and x.access.tensor == tensor
        ]
        ends = [Constraint(i, Int(n)) for a in found for i, n in zip(a.index, types[tensor].shape, strict=True)]
        body = with_parts(e.body, {Inside(a): ONE for a in found})
        return replace(e, body=fold(rebuild(body, visit)), constraints=tuple(dict.fromkeys((*e.constraints, *ends))))

    return map_values(into, visit)


def _of_a_slice(s: Statement, types: Types) -> tuple[tuple[Statement, ...], Statement]:
    """A statement that is at numbers along some axes, as an assignment for all elements under the condition that they
    are there, after one for the elements of the slice where these are sums; others as they are."""
    numbers = [e for e in s.index or () if isinstance(e, Int)]
    names = distinct_variables([e for e in s.index or () if not isinstance(e, Int)])
    if not numbers or names is None or s.aggregation not in ("assign", "sum") or s.default is not None:
        return (), s
    used = all_variables(s)
    index = tuple(Index(fresh_variable("at", used)) if isinstance(e, Int) else e for e in s.index or ())
    there = [Call("eq", (v, e)) for v, e in zip(index, s.index or (), strict=True) if isinstance(e, Int)]
    own = () if s.guard is None else (Call("ne", (s.guard, ZERO)),)
    alone = replace(s, index=index, guard=all_of((*there, *own)), aggregation="assign")
    if _simple(alone) or not is_pure(s):
        return (), alone
    output = f"{s.output}_slice"
    kept = [(e, n) for e, n in zip(s.index or (), s.sizes or (), strict=True) if not isinstance(e, Int)]
    whole = replace(s, output=output, index=tuple(e for e, _ in kept), sizes=tuple(n for _, n in kept))
    read = Access(output, tuple(e for e, _ in kept))
    if output in types or not kept:
        return (), s
    return (whole,), replace(alone, body=read, guard=all_of(there), constraints=())


def _without_numbers(s: Statement, types: Types) -> TensorType:
    t = types[s.output]
    return replace(t, shape=tuple(n for e, n in zip(s.index or (), t.shape, strict=True) if not isinstance(e, Int)))


def _asked_of_inputs(s: Statement, tensor: str, inputs: Collection[str], types: Types) -> Statement:
    """A recurrence that asks whether places are inside of an input of this tensor's shape that it reads or asks there,
    where they are not all inside."""
    shape = types[tensor].shape
    found = [a for a in accesses_in(*s.roots) if a.tensor in inputs and types[a.tensor].shape == shape]
    others = {a.index: a for a in found}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Inside) and e.access.tensor == tensor and not _is_whole(e.access, s, types):
            return Inside(others.get(e.access.index, e.access))
        return rebuild(e, visit)

    return map_values(s, visit)


def _simple(s: Statement) -> bool:
    """One expression for each element."""
    own = distinct_variables(s.index)
    if s.aggregation != "assign" or not is_pure(s) or own is None:
        return False
    inside = list(walk(*s.roots))
    if draws(*s.roots) or any(isinstance(e, Aggregate) for e in inside):
        return False
    if not set(index_variables(s.body, *(c.expr for c in s.constraints))) <= set(own):
        return False
    accesses = [e for e in inside if isinstance(e, Access)]
    return not any(accesses_in(*(i for a in accesses for i in a.index)))


def _combined(s: Statement, into: Statement, types: Types) -> Statement | None:
    places: dict[Access, bool] = {}
    for root in (into.body, *into.guards):
        for access, kind in _places(root, s.output):
            whole = _is_whole(access, into, types)
            if kind is Aggregate or (kind is Pad and not whole):
                return None
            places[access] = whole
    elsewhere = [*(into.index or ()), *(c.expr for c in into.constraints), *([] if into.init is None else [into.init])]
    if any(e.tensor == s.output for root in elsewhere for e in walk(root) if isinstance(e, Access)):
        return None
    if len(places) > MOST_PLACES or into.default == s.output:
        return None
    values: dict[Expr, Expr] = {place: element_at(s, place, types) for place in places}
    bounds: dict[Constraint, None] = {}
    for place, whole in places.items():
        if not whole:
            bounds |= {Constraint(e, Int(n)): None for e, n in zip(place.index, types[s.output].shape, strict=True)}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Pad) and e.access in values:
            return values[e.access]
        if isinstance(e, Inside) and e.access in values:
            return ONE
        if isinstance(e, Pad) and isinstance(e.access, Inside):
            return ONE if e.access.access in values else rebuild(e, visit)
        return values[e] if e in values else rebuild(e, visit)

    combined = replace(map_values(into, visit), constraints=(*into.constraints, *bounds))
    asked = any(isinstance(e, Inside) and e.access in values for e in walk(*into.roots))
    combined = map_values(combined, fold) if asked else combined
    operators = set(walk(*combined.roots))
    return combined if sum(isinstance(e, Call | Pad) for e in operators) <= MOST_OPERATORS else None


def _is_whole(place: Access, into: Statement, types: Types) -> bool:
    """Whether the access is inside its tensor at every element of the statement's output."""
    sizes = dict(zip(into.index or (), into.sizes or (), strict=True))
    return all(sizes.get(e) == Int(n) for e, n in zip(place.index, types[place.tensor].shape, strict=True))


def _places(e: Expr, tensor: str) -> Iterator[tuple[Access, type]]:
    """Accesses of the tensor, and what they are in: nothing (Call), `pad` (Pad), or what they cannot be replaced in
    (Aggregate)."""
    match e:
        case Access():
            if e.tensor == tensor:
                gathers = any(accesses_in(*e.index))
                yield e, Aggregate if gathers else Call
            yield from ((x, Aggregate) for x in accesses_in(*e.index) if x.tensor == tensor)
        case Pad(Access() as access) | Pad(Inside(access)) if access.tensor == tensor:
            yield access, Pad
            yield from _places(e.value, tensor)
        case Inside(access) if access.tensor == tensor:
            yield access, Pad
        case Call():
            for x in e.args:
                yield from _places(x, tensor)
        case _:
            yield from ((x, Aggregate) for x in walk(e) if isinstance(x, Access) and x.tensor == tensor)


def element_at(s: Statement, place: Access, types: Types) -> Expr:
    """The element of an elementwise statement at a place: 0 where it writes none."""
    mapping = dict(zip(distinct_variables(s.index) or (), map(linear, place.index), strict=True))
    conditions: dict[Expr, None] = {}
    known: set[tuple[Expr, int]] = set()
    for root in (s.body, *s.guards):
        for a in constraining(root):
            asked = set(zip(a.index, types[a.tensor].shape, strict=True))
            if not asked <= known:
                conditions[Call("ne", (Pad(Inside(a), ZERO), ZERO))] = None
                known |= asked
    for c in s.constraints:
        conditions |= dict.fromkeys(as_conditions(c))
    if s.guard is not None:
        guard = fold(unconstrained(s.guard, types))
        if truth(guard) is not True:
            conditions[guard if is_bool(guard) else Call("ne", (guard, ZERO))] = None
    t = types[s.output]
    value = unconstrained(s.body, types)
    both = all_of(conditions)
    if both is not None:
        if t.dtype == "bool" and is_bool(value):
            value = Call("and", (both, value))
        else:
            value = Call("select", (both, value, Call("bool", (ZERO,)) if t.dtype == "bool" else ZERO))
    if t.dtype in NARROW or expression_type(value, types).dtype != t.dtype:
        value = Call(t.dtype, (value,))
    return replace_indices(value, mapping)


def unconstrained(e: Expr, types: Types) -> Expr:
    """The expression with nothing that constrains its point."""
    match e:
        case Access():
            return Pad(e, Call("bool", (ZERO,)) if types[e.tensor].dtype == "bool" else ZERO)
        case Inside():
            return ONE
        case Pad():
            return replace(e, value=unconstrained(e.value, types))
    return rebuild(e, lambda x: unconstrained(x, types))
