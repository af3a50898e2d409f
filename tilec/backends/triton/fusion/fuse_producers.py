"""Elementwise statements that one statement alone reads, written into it: their values are never stored.

Groups take most of them. What is left are reductions that are split over programs, such as a mean of all elements of
`abs(X - T)`, sums over an axis that no group walks, pools whose windows do not meet, sums of tensors that are written a
step apart (the gradient of what reads even and odd elements), and what reads neighbours of a tensor that is computed
from neighbours: the two steps of a resize. Elements are computed again there for each element that reads them, which
pays where the caches deliver what is read again sooner than memory takes and gives the tensor between.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.domain import access_conditions, build_domain, whole_arguments
from tilec.backends.common.terms import sum_of
from tilec.backends.triton.emit.epilogue import as_assignment
from tilec.backends.triton.iteration.coalesce import StridedView, values
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.backends.triton.pointwise.residues import MOST_CLASS_ELEMENTS, choose_residues, period, reads_of_elements
from tilec.backends.triton.recurrence.fuse_producers import element_at, unconstrained
from tilec.cost import size_in_bytes
from tilec.ir.constraining import access_of, constraining
from tilec.ir.functions import ONE, ZERO, all_of, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
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
    index_variables,
    map_values,
    node_count,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.rational import Fraction, as_int
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import NARROW, Types
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import body_at, with_parts


def with_producers(
    program: Program, types: Types, barred: Collection[str], reads: Mapping[str, Sequence[str]]
) -> Program:
    """The program without elementwise statements that one statement reads, where that pays. `barred`: outputs that stay
    as they are; `reads`: by output, what each reads."""
    statements = {s.output: s for s in program.statements}
    read = {output: set(names) for output, names in reads.items() if output in statements}
    times = Counter(t for names in read.values() for t in names)
    taken = {*barred, *program.outputs, *(t for t, n in times.items() if n > 1)}
    for s in program.statements:
        parts = {t: statements[t] for t in reads.get(s.output, ()) if t in statements and t not in taken}
        made = _interleaved(s, parts, types) if len(parts) > 1 and s.output not in barred else None
        if made is not None:
            statements[s.output] = made
            read[s.output] = read[s.output].union(*(read.pop(t) for t in parts)) - parts.keys()
            for t in parts:
                del statements[t]
    for s in [statements[s.output] for s in reversed(program.statements) if s.output in statements]:
        readers = [output for output, names in read.items() if s.output in names]
        if s.output in program.outputs or s.output in barred or len(readers) != 1 or readers[0] in barred:
            continue
        made = _computing(statements[readers[0]], s, types) or _inlined(statements[readers[0]], s, types)
        if made is not None:
            (reader,) = readers
            statements[reader] = made
            read[reader] = (read[reader] | read.pop(s.output)) - {s.output}
            del statements[s.output]
    left = tuple(statements[s.output] for s in program.statements if s.output in statements)
    return replace(program, statements=left)


def _computing(reader: Statement, s: Statement, types: Types) -> Statement | None:
    """The reduction with what it reads of an elementwise statement computed at each of its points; None where that is
    of another form or would compute elements more than once."""
    names = elementwise(s)
    if names is None or s.aggregation != "assign" or s.guard is not None:
        return None
    if not is_pure(reader) or not reads_values(reader, s.output):
        return None
    places = {a.index for a in accesses_in(*reader.roots) if a.tensor == s.output}
    if len(places) != 1:
        return None
    (place,) = places
    if not reads_each_once(place, reader, types) or not set(index_variables(*place)) - set(
        index_variables(*(reader.index or ()))
    ):
        return None  # of elements that are read again, or no reduction
    filled = writes_all(s, dict(zip(names, types[s.output].shape, strict=True)), types)
    read = Access(s.output, place)
    value = _filled_at(s, read, types) if filled else element_at(s, read, types)
    ranges = _unbounded(value if filled else None, read, types)
    made = map_values(reader, lambda e: with_parts(e, {read: value}))
    return replace(made, constraints=(*reader.constraints, *ranges))


def reads_each_once(place: Sequence[Expr], reader: Statement, types: Types) -> bool:
    """Whether a statement's points read different elements at a place: by bare variables, or in windows that do not
    overlap."""
    forms = [linear(e) for e in place]
    found = [v for form in forms for v in form.variables()]
    if len(set(found)) < len(found) or not set(variables_of(reader)) <= set(found):
        return False
    if all(form.bare is not None for form in forms):
        return True
    space = build_space(reader, types)
    if space is None or not all(form.is_affine and form.is_integral for form in forms):
        return False
    return all(_steps_over(form, space) for form in forms)


def _steps_over(form: Affine, space: Space) -> bool:
    """Whether a form has another value for all values of its variables: each goes by steps beyond what those of lesser
    steps reach."""
    reach = 0
    for step, v in sorted((abs(as_int(form.coefficient(v))), v) for v in form.variables()):
        if step <= reach:
            return False
        reach += step * (space.largest(v) - 1)
    return True


def reads_values(s: Statement, tensor: str) -> bool:
    """Whether a statement takes a tensor's elements as values alone: it neither finds places by them nor asks whether
    one lies inside."""
    places = (*(c.expr for c in s.constraints), *(s.index or ()))
    asked = (e.access for e in walk(*s.roots) if isinstance(e, Inside | Pad))
    gathered = (i for e in walk(*s.roots) if isinstance(e, Access) for i in e.index)
    return all(a.tensor != tensor for a in accesses_in(*places, *asked, *gathered))


def _filled_at(s: Statement, read: Access, types: Types) -> Expr:
    """An element of a statement that writes each."""
    value = body_at(s, read.index)
    return Call(types[s.output].dtype, (value,)) if types[s.output].dtype in NARROW else value


def writes_all(s: Statement, extent: Mapping[str, int], types: Types) -> bool:
    """Does an elementwise statement write every element? Where it does not, the element is 0."""
    domain = build_domain(s, types)
    if domain is None or domain.conditions:
        return False
    return all(domain.low[v] == 0 and domain.extent[v] == n for v, n in extent.items())


def _unbounded(value: Expr | None, read: Access, types: Types) -> tuple[Constraint, ...]:
    """That a place lies in the tensor, along axes of which no read of a value says so; None for a value whose reads say
    nothing."""
    told: set[tuple[Expr, int]] = set()
    for a in () if value is None else accesses_in(value):
        told |= set(zip(a.index, types[a.tensor].shape, strict=True))
    own = zip(read.index, types[read.tensor].shape, strict=True)
    return tuple(Constraint(e, Int(n)) for e, n in own if (e, n) not in told)


# parts of a tensor

MOST_WRITTEN_OUT = 4  # terms of a part, where parts have sums of their own


def _interleaved(reader: Statement, parts: Mapping[str, Statement], types: Types) -> Statement | None:
    """A sum of tensors that are written a step apart, such as the even elements and the odd ones, as one statement:
    no part is filled with zeros, stored and read. None where a part is of another form, or no program takes all
    residue classes."""
    names = elementwise(reader)
    if names is None or reader.guard is not None or types[reader.output].dtype == "bool":
        return None
    terms = operands_of("add", reader.body)
    tensors = [e.tensor if isinstance(e, Access) and e.index == reader.index else "" for e in terms]
    if len(set(tensors)) < len(tensors) or set(tensors) != parts.keys():
        return None
    built = (build_space(parts[t], types) for t in tensors)
    spaces = [x for x in built if x is not None and len(x.classes) == 1]
    if len(spaces) < len(tensors):
        return None
    summed = {tuple(x.extent[0][v] for v in x.reductions) for x in spaces}
    used = {v for s in parts.values() for v in all_variables(s)} | set(names)
    counts = summed.pop() if len(summed) == 1 else ()
    if any(any(map(is_symbolic, n)) or not 0 < math.prod(n) <= MOST_WRITTEN_OUT for n in summed):
        return None
    fresh = [fresh_variable("k", used) for _ in counts]
    found: list[Expr | None] = []
    for t, x in zip(tensors, spaces, strict=True):
        ranges = [range(x.extent[0][v]) for v in x.reductions]  # of different sums all terms are written out
        points = [tuple(map(Index, fresh))] if not summed else [tuple(map(Int, n)) for n in itertools.product(*ranges)]
        found += [_part(parts[t], x, names, point, types) for point in points]
    values = [e for e in found if e is not None]
    if len(values) < len(found):
        return None
    body = sum_of(values)
    limits = tuple(Constraint(Index(v), Int(n)) for v, n in zip(fresh, counts, strict=True))
    made = replace(reader, body=body, aggregation="sum" if fresh else reader.aggregation, constraints=limits)
    space = build_space(made, types)
    if space is None or node_count(body) > LONGEST_BODY:
        return None
    view = StridedView(made, types, contiguous_strides(types))
    if choose_residues(space, view) is not None:
        return made
    numbered = any(linear(e).terms == () for s in parts.values() for e in s.index or ())
    few = math.prod(counts) <= MOST_CLASS_ELEMENTS
    return made if numbered and few or names and not fresh and period(made, names[-1]) > 1 else None


def _part(s: Statement, space: Space, names: Sequence[str], summed: Sequence[Expr], types: Types) -> Expr | None:
    """A part's value at the element that `names` give, 0 where it writes none; `summed`: what its own sums
    go over, there."""
    rows = [linear(e) for e in s.index or ()]
    if (
        not is_pure(s)
        or s.aggregation not in ("assign", "sum")
        or not all(row.is_affine and row.is_integral for row in rows)
    ):
        return None
    own = [row.variables()[0] if row.terms else "" for row in rows]
    moved = [v for v in own if v]
    if any(len(row.terms) > 1 for row in rows) or len(set(moved)) < len(moved):
        return None
    low, extent = space.low[0], space.extent[0]
    if space.stored or space.steps or any(low[v] for v in space.reductions):
        return None
    change = {v: linear(w) for v, w in zip(space.reductions, summed, strict=True)}
    tests: list[Expr] = []
    for v, w, row, size in zip(own, names, rows, types[s.output].shape, strict=True):
        if not v:
            tests += [Call("eq", (Index(w), Int(as_int(row.constant))))] if size > 1 else []
            continue
        step, place = as_int(row.coefficient(v)), linear(Index(w)) - row.constant
        if step < 1:
            return None
        change[v] = place * Fraction(1, step)
        first, last = as_int(row.constant) + step * low[v], as_int(row.constant) + step * (low[v] + extent[v] - 1)
        tests += [Call("eq", (Call("mod", (place.to_value(), Int(step))), ZERO))] if step > 1 else []
        tests += [Call("ge", (Index(w), Int(first)))] if first >= step else []
        tests += [Call("le", (Index(w), Int(last)))] if last + step < size else []
    for c in space.valid:
        form = c.form.substitute(change)
        if not c.form.is_integral or set(c.form.variables()) - set(moved) or not form.is_affine:
            return None
        form, bound = form * form.denominator, c.bound * form.denominator
        tests += [Call("ge", (form.to_value(), ZERO)), Call("lt", (form.to_value(), Int(bound)))]
    tests += [] if s.guard is None else [unconstrained(replace_indices(s.guard, change), types)]
    valid = all_of(tests)
    if valid is None:
        return None
    value = unconstrained(replace_indices(s.body, change), types)
    if types[s.output].dtype in NARROW and not summed:
        value = Call(types[s.output].dtype, (value,))
    return Call("select", (valid, value, ZERO))


# what is computed again for each reader

CACHED = 4  # bytes that the caches deliver in the time of one of memory
MOST_READS = 64  # of an element, equal ones counted once
LONGEST_BODY = 4096  # of a body
LEAST_GAIN = 1.15  # time apart over time together
CHEAP = frozenset((
    "add", "sub", "mul", "neg", "abs", "max", "min", "clamp", "select", "and", "or", "not", "mod",
    "eq", "ne", "lt", "le", "gt", "ge", "float32", "float16", "bfloat16",
))  # fmt: skip


def _inlined(reader: Statement, s: Statement, types: Types) -> Statement | None:
    """An elementwise statement with what it reads of another computed at each place; None where that is of another
    form or takes longer."""
    names = elementwise(s)
    if names is None or elementwise(reader) is None or types[s.output].dtype == "bool":
        return None
    if any(a.tensor == s.output for e in accesses_in(*reader.roots) for a in accesses_in(*e.index)):
        return None
    bare = {e for e in constraining(*reader.roots) if e.tensor == s.output}
    own = [a for a in dict.fromkeys(accesses_in(*reader.roots)) if a.tensor == s.output]
    found = {a: whole_places(a, reader, types) or (None if a in bare else inside_tests(a, reader, types)) for a in own}
    places = {a: e for a, e in found.items() if e is not None}
    counted = {e.name for root in s.roots for e in values(root) if isinstance(e, Index)}
    at = {a: {v: linear(e) for v, e in zip(names, a.index, strict=True)} for a in places}
    if len(places) < max(len(found), 1) or not all(at[a][v].is_integral for a in places for v in counted):
        return None
    if len(places) > 1 and not all(_is_cheap(e) for e in values(s.body) if isinstance(e, Call)):
        return None

    asked: dict[Constraint, None] = {}
    extent = dict(zip(names, types[s.output].shape, strict=True))
    whole = as_assignment(s, types)
    filled = whole.guard is None and writes_all(whole, extent, types)

    def visit(e: Expr) -> Expr:
        match e:
            case Access() if e.tensor == s.output and filled and places[e] == ONE:
                return _filled_at(whole, e, types)
            case Pad(Access() | Inside() as read, other) if (a := access_of(read)).tensor == s.output:
                inner = element_at(s, a, types) if isinstance(read, Access) else ONE
                return Call("select", (places[a], inner, visit(other))) if places[a] != ONE else inner
            case Access() | Inside() if (a := access_of(e)).tensor == s.output:
                sizes = types[s.output].shape if places[a] != ONE else ()
                asked.update((Constraint(i, Int(n)), None) for i, n in zip(a.index, sizes, strict=False))
                return element_at(s, a, types) if isinstance(e, Access) else ONE
        return rebuild(e, visit)

    made = map_values(reader, visit)
    made = replace(made, constraints=(*reader.constraints, *asked))
    if node_count(made.body) > LONGEST_BODY:
        return None
    return made if is_faster(made, (s, reader), types) else None


def _is_cheap(e: Call) -> bool:
    return e.function in CHEAP or e.function == "div" and isinstance(e.args[1], Int | Float)


def inside_tests(access: Access, reader: Statement, types: Types) -> Expr | None:
    """That a place of whole numbers lies in the tensor, as a value; None for other places."""
    space = build_space(reader, types)
    if space is None or len(space.classes) != 1:
        return None
    box, tests = space.box(0), list[Expr]()
    for c in access_conditions(access, types):
        if not c.form.is_affine or not c.form.is_integral:
            return None
        low, high = box.interval(c.form)
        tests += [Call("ge", (c.form.to_value(), ZERO))] if low < 0 else []
        tests += [Call("lt", (c.form.to_value(), Int(c.bound)))] if high >= c.bound else []
    return all_of(tests) or ONE


def elementwise(s: Statement) -> tuple[str, ...] | None:
    """The variables of a statement with a value for each element of its output; None where it is none."""
    names = distinct_variables(s.index)
    if s.aggregation not in ("assign", "sum") or not is_pure(s) or s.constraints or names is None:
        return None
    return names if set(variables_of(s)) <= set(names) else None


def whole_places(access: Access, reader: Statement, types: Types) -> Expr | None:
    """The condition that a place is one of whole numbers, as a value, where it then lies in the tensor; None where it
    may lie outside."""
    space = build_space(reader, types)
    if space is None or len(space.classes) != 1:
        return None
    box, tests = space.box(0), dict[Expr, None]()
    for c in (*access_conditions(access, types), *whole_arguments(access.index)):
        n = c.form.denominator
        whole = Call("mod", ((c.form * n).to_value(), Int(n)))
        low, high = box.interval(c.form)
        if low > -1 and high < (c.bound if n == 1 else c.bound + Fraction(n - 1, n)):  # of whole numbers
            tests.update({Call("eq", (whole, ZERO)): None} if n > 1 else {})
        elif c.bound == 1 and len(c.form.terms) == 1 and not c.form.constant:
            tests[Call("eq", (c.form.to_value(), ZERO))] = None  # that an argument of `%` or `clamp` is whole
        else:
            return None
    return all_of(tests) or ONE


def is_faster(made: Statement, apart: Iterable[Statement], types: Types, *, summed: bool = False) -> bool:
    """Whether one statement takes clearly less time than several, elementwise ones or over windows if `summed`."""
    together, others = _seconds(made, types, summed), time_of_all([_seconds(s, types, summed) for s in apart])
    return together is not None and others is not None and others >= LEAST_GAIN * together


def time_of_all(times: Sequence[float | None]) -> float | None:
    """None where one is."""
    known = [t for t in times if t is not None]
    return sum(known) if len(known) == len(times) else None


def _seconds(s: Statement, types: Types, summed: bool) -> float | None:
    """Time of an elementwise statement, or one over windows if `summed`, in that of a byte of memory; None where it has
    no kernel of its own, or one that reads too much."""
    space = build_space(s, types)
    if space is None or (space.reductions and not summed) or not space.covers or not space.outputs:
        return None
    if period(s, space.outputs[-1]) > 1:
        return None
    view = StridedView(s, types, contiguous_strides(types))
    accesses, elements = reads_of_elements(space, view)
    if not accesses or len(accesses) > MOST_READS:
        return None
    memory = size_in_bytes(types[s.output]) + sum(size_in_bytes(types[t]) for t in {a.tensor for a in accesses})
    widths = sum(size_in_bytes(types[a.tensor]) / max(types[a.tensor].numel, 1) for a in accesses)
    points = space.count(space.reductions) if elements == 1 else 1  # several elements' are written out
    return max(memory, types[s.output].numel / elements * points * widths / CACHED)
