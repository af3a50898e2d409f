"""Elementwise statements that others read at neighbours, written into these.

Gradients of stencils are products of cotangents and inputs (`D[y, x] = DY[y, x] * C[y, x]`) that are read a step to
each side (`D[y - 1, x] + D[y + 1, x]`). No group has both as members, so each product would be stored, and what reads
it is another kernel. Written out at the places that are read, all of it is one kernel over what products are made of,
which caches hold for a neighbour. What would be stored in 16 bits keeps more digits, as what members of a group read of
each other does: neighbours of equal values stay equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.common.box_values import resolved
from tilec.backends.common.domain import Domain, access_conditions, build_domain
from tilec.backends.triton.fusion.fuse_producers import MOST_READS, elementwise, inside_tests, writes_all
from tilec.backends.triton.fusion.recomputed.kernel_times import reads_around
from tilec.backends.triton.iteration.coalesce import values
from tilec.backends.triton.recurrence.fuse_producers import element_at, unconstrained
from tilec.ir.constraining import access_of
from tilec.ir.functions import FUNCTIONS, ONE, draws
from tilec.ir.index import linear, replace_indices
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
    rebuild,
    value_accesses,
    walk,
)
from tilec.ir.types import NARROW, Types, is_floating

LONGEST = 1024  # of a body
MOST_NEIGHBOURS = 8  # at which a statement reads what it computes again
SUMS = frozenset(("add", "sub", "neg", "max", "min", "clamp", "mod"))  # the last of places
CIRCLES = frozenset(("mod", "clamp", "max", "min"))  # of positions that turn round or stop at an end


def with_shifted_reads(program: Program, types: Types) -> Program:
    """The program with all such reads written out, whether that pays or not."""
    statements = {s.output: s for s in program.statements}
    readers: dict[str, dict[str, None]] = {}
    for s in program.statements:
        for name in reads(s):
            readers.setdefault(name, {})[s.output] = None
    compared: set[str] | None = None
    inputs = frozenset(program.input_names())
    for s in [statements[s.output] for s in reversed(program.statements)]:
        s = statements[s.output]
        own = [statements[n] for n in readers.get(s.output, ()) if n in statements]
        read = ((r, a) for r in own for a in value_accesses(r) if a.tensor == s.output)
        if all(_in_place(a, r, s, types) for r, a in read):
            continue
        compared = _compared_tensors(program) if compared is None else compared
        stays = s.output in compared and not _rounds_alike(s, inputs)
        producer = None if stays else _Producer.of(s, types)
        written = {} if producer is None else _all_written(own, producer, types)
        statements |= written
        for r in written.values():
            for name in reads(r):
                readers.setdefault(name, {})[r.output] = None
        if written and s.output not in program.outputs and not any(s.output in reads(r) for r in written.values()):
            del statements[s.output]
    left = tuple(statements[s.output] for s in program.statements if s.output in statements)
    return replace(program, statements=left)


def _all_written(readers: Sequence[Statement], s: _Producer, types: Types) -> dict[str, Statement]:
    """All that read a statement with its values written out; none where one has another form or all read too much."""
    written: dict[str, Statement] = {}
    places: set[Access] = set()
    for r in readers:
        made = _written_out(r, s, types)
        places.update(() if made is None else reads_around([made]))
        if made is None or len(places) > MOST_READS:
            return {}
        written[made.output] = made
    return written


def comparisons(statements: Iterable[Statement]) -> Iterator[tuple[str, Call]]:
    """What is true or false, each with the output of its statement."""
    for s in statements:
        for e in walk(*expressions(s)):
            if isinstance(e, Call) and FUNCTIONS[e.function].result == "bool":
                yield s.output, e


def _compared_tensors(program: Program) -> set[str]:
    """Tensors that statements compare with others: what is equal in one kernel may be rounded otherwise in another."""
    among = (e for _, e in comparisons(program.statements) if not any(isinstance(x, Int | Float) for x in e.args))
    return {a.tensor for e in among for a in accesses_in(e)}


def _rounds_alike(s: Statement, inputs: Collection[str]) -> bool:
    """Whether its values are the same in each kernel: sums of what is read, which no product is a part of."""
    parts = [e for e in walk(*s.roots) if not isinstance(e, Index | Int | Float)]
    return all(
        e.tensor in inputs if isinstance(e, Access) else isinstance(e, Call) and e.function in SUMS for e in parts
    )


def _variables(s: Statement) -> tuple[str, ...] | None:
    """Of an elementwise statement, which may bound them."""
    names = elementwise(replace(s, constraints=()))
    asked = index_variables(*(c.expr for c in s.constraints))
    return names if names is not None and set(asked) <= set(names) and not _gathers(s) else None


def _gathers(s: Statement) -> bool:
    """Whether it reads at places that are data."""
    return any(True for a in accesses_in(*expressions(s)) for _ in accesses_in(*a.index))


@dataclass(frozen=True)
class _Producer:
    """An elementwise statement whose values may be computed anywhere. `filled`: whether it writes every element;
    `counted`: its variables that are values; `padded`: its body where it constrains nothing; `known`: its elements
    that were asked for, which several statements read."""

    statement: Statement
    names: tuple[str, ...]
    filled: bool
    counted: frozenset[str]
    padded: Expr
    known: dict[tuple, Expr] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, s: Statement, types: Types) -> _Producer | None:
        names = _variables(s)
        if names is None or draws(*s.roots) or types[s.output].dtype == "bool":
            return None
        extent = dict(zip(names, types[s.output].shape, strict=True))
        filled = s.guard is None and not s.constraints and writes_all(s, extent, types)
        counted = frozenset(e.name for root in s.roots for e in values(root) if isinstance(e, Index))
        return cls(s, names, filled, counted, unconstrained(s.body, types))

    def over(self, box: Domain, a: Access, types: Types, bare: bool) -> Expr:
        """Its element there, for all points of a box that begins at 0."""
        key = (a.index, bare, *box.extent.items())
        if key not in self.known:
            self.known[key] = resolved(self.at(a, types, bare), box, types)
        return self.known[key]

    def at(self, a: Access, types: Types, bare: bool) -> Expr:
        """Its element there. `bare`: where the places that it reads may say which points count. What is 16 bits wide
        keeps the digits that members of a group have of each other."""
        dtype, of_body = types[self.statement.output].dtype, expression_type(self.statement.body, types).dtype
        narrowed = dtype in NARROW and is_floating(of_body)
        if not self.filled:
            found = element_at(self.statement, a, types)
            return found.args[0] if narrowed and isinstance(found, Call) and found.function == dtype else found
        body = self.statement.body if bare else self.padded
        body = body if narrowed or of_body == dtype else Call(dtype, (body,))
        return replace_indices(body, {v: linear(e) for v, e in zip(self.names, a.index, strict=True)})


def _in_place(a: Access, reader: Statement, s: Statement, types: Types) -> bool:
    """Whether an access is the element that its statement writes, of a tensor over the same points, or the same for
    all values of a variable that the tensor does not know."""
    own = {
        e.name: n for e, n in zip(reader.index or (), types[reader.output].shape, strict=True) if isinstance(e, Index)
    }
    return all(
        isinstance(e, Index) and own.get(e.name) == n for e, n in zip(a.index, types[s.output].shape, strict=True)
    )


def _is_near(a: Access, reader: Statement) -> bool:
    """Whether a place is a few steps from the element that the statement writes, or at a numbered place along an axis:
    memory runs as it does for that element."""
    order = [e.name for e in reader.index or () if isinstance(e, Index)]
    found: list[str] = []
    for e in a.index:
        form = linear(e)
        if not form.is_integral or len(form.terms) > 1:
            return False
        for atom, c in form.terms:
            names = index_variables(atom)
            if abs(c) != 1 or len(set(names)) != 1 or not (isinstance(atom, Index) or _is_wrapped(atom)):
                return False
            found.append(names[0])
    return len(set(found)) == len(found) and [v for v in order if v in found] == found


def _is_wrapped(e: Expr) -> bool:
    """Whether it is a position plus a number that turns round or stops at an end."""
    if not isinstance(e, Call) or e.function not in CIRCLES:
        return False
    forms = [linear(x) for x in e.args]
    return all(f.is_integral and len(f.terms) <= 1 for f in forms) and all(
        abs(c) == 1 and (isinstance(x, Index) or _is_wrapped(x)) for f in forms for x, c in f.terms
    )


def _written_out(reader: Statement, producer: _Producer, types: Types) -> Statement | None:
    """A statement with what it reads of another at neighbours computed there; None where that is of another form."""
    s, own = producer.statement, _variables(reader)
    if own is None or any(a.tensor == s.output for c in reader.constraints for a in accesses_in(c.expr)):
        return None
    moved = {a for a in value_accesses(reader) if a.tensor == s.output and not _in_place(a, reader, s, types)}
    if len(moved) > MOST_NEIGHBOURS or not all(_is_near(a, reader) for a in moved):
        return None
    padded = {access_of(e.access) for e in walk(*reader.roots) if isinstance(e, Pad)} & moved
    tests = {a: inside_tests(a, reader, types) for a in padded}
    if producer.counted and reader.constraints or None in tests.values():
        return None
    points = dict(zip(own, types[reader.output].shape, strict=True))
    box = Domain(reader, dict.fromkeys(points, 0), points, (), None)
    asked: dict[Access, None] = {}

    def value(a: Access, bare: bool) -> Expr:
        return producer.over(box, a, types, bare)

    def visit(e: Expr) -> Expr:
        match e:
            case Pad(Access() | Inside() as read, other) if (a := access_of(read)) in moved:
                inner = value(a, False) if isinstance(read, Access) else ONE
                test = tests[a] or ONE
                return inner if test == ONE else Call("select", (test, inner, visit(other)))
            case Access() | Inside() if (a := access_of(e)) in moved:
                asked[a] = None
                return value(a, True) if isinstance(e, Access) else ONE
        return rebuild(e, visit)

    made = map_values(reader, visit)
    return _bounded(made, asked, box, types) if node_count(made.body) <= LONGEST else None


def _bounded(s: Statement, asked: Collection[Access], box: Domain, types: Types) -> Statement:
    """The statement with constraints for what these accesses asked of its points, where nothing else does. `box`: of
    all elements that it may write."""
    left = {c for a in asked for c in access_conditions(a, types) if not box.holds(c)}
    domain = build_domain(s, types) if left else None
    needed = {(c.form, c.bound) for c in left if domain is None or not domain.holds(c)}
    bounds: Mapping[Constraint, None] = {
        Constraint(e, Int(n)): None
        for a in asked
        for e, n in zip(a.index, types[a.tensor].shape, strict=True)
        if (linear(e), n) in needed
    }
    return replace(s, constraints=(*s.constraints, *bounds)) if bounds else s
