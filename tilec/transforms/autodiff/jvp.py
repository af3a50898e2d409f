"""Forward-mode differentiation: a program and its outputs' tangents from its inputs', as a program like any other.

Each statement that depends on the inputs in question is followed by one of its tangent, over the same points:

    TO[f : sizes] = +(guard ? tangent of body * d O[f] / d body at that point * in(...)), constraints

The second factor is the rule of the aggregation, the same one as in reverse mode (`adjoint.RULES`): there it multiplies
the cotangent of the result, here the tangent of the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.errors import InputMistake
from tilec.ir.constraining import Demand, as_factor, demands
from tilec.ir.functions import STRUCTURAL
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Input,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    index_variables,
    reads_itself,
    rebuild,
    walk,
)
from tilec.transforms.autodiff.adjoint import NESTED_TANGENTS, TANGENTS, Contraction, parts
from tilec.transforms.autodiff.grad import as_type, depend_on, differentiable, wanted_inputs
from tilec.transforms.autodiff.pullback import Cotangent, conjunction, product
from tilec.transforms.autodiff.pushforward import TANGENT, added_tangents, addends, push_forward, signed_factors
from tilec.transforms.autodiff.scans import scan_tangent
from tilec.transforms.autodiff.shift_invariance import cancelling
from tilec.transforms.recurrence import initial, padded
from tilec.transforms.simplify.simplify import simplify
from tilec.transforms.util.extents import Extent, extents, shaping, sizes, statement_extent
from tilec.transforms.util.naming import Names, separate


def jvp(program: Program, wrt: Sequence[str] | None = None) -> Program:
    """Values and tangents: (inputs..., one tangent for each input named in `wrt`) -> (outputs..., one tangent each).

    `wrt` defaults to all inputs. The tangent of X is called TX, or like it where that is taken. Raises NameMistake for
    a name that is no input, InputMistake for one that is named twice and where there is none.
    """
    wanted = wanted_inputs(program, wrt)
    if len(set(wanted)) < len(wanted):
        raise InputMistake("an input has one tangent; " + ", ".join(wanted) + " names one twice")
    return simplify(_Forward(program, wanted).run())


class _Forward:
    """One pass over the statements; `tangents` names the tangent of each tensor that has one."""

    def __init__(self, program: Program, wanted: tuple[str, ...]):
        self.names = Names.of(program)
        inputs = {i.name: i for i in program.inputs}
        given = [replace(inputs[n], name=self.names.fresh(f"T{n}"), span=None) for n in wanted]
        self.results = {o: self.names.fresh(f"T{o}") for o in program.outputs}
        self.program = differentiable(program, self.names)
        self.extents: dict[str, Extent] = extents(self.program)
        self.active = depend_on(self.program, frozenset(wanted), cancelling(self.program, self.extents))
        self.tangents: dict[str, str] = {}
        self.given: set[str] = set()
        for name, i in zip(wanted, given, strict=True):
            self._give(name, i.name)
        self.reserved: dict[str, str] = {}  # fresh names of statements, which may read themselves, and their stems
        self.inputs: tuple[Input, ...] = (*program.inputs, *given)
        self.statements: list[Statement] = []

    def run(self) -> Program:
        """The program's outputs and then their tangents, not yet simplified."""
        for s in self.program.statements:
            self.statements.append(s)
            if s.output in self.active:
                self._tangent(s)
        for output, result in self.results.items():
            zeros: Expr = Call("select", (Int(0), Name(output), Float(0.0)))
            value = Name(self.tangents[output]) if output in self.tangents else zeros
            self.statements.append(Statement(result, None, None, as_type(value, output)))
        outputs = (*self.program.outputs, *(self.results[o] for o in self.program.outputs))
        return Program(None, self.inputs, outputs, tuple(self.statements))

    def emit(self, s: Statement) -> str:
        """Append a statement under a fresh name like its own, which is returned, or under its own if it is reserved."""
        stem = self.reserved.get(s.output, s.output)
        free = s.output in self.reserved and s.output not in self.extents
        name = s.output if free else self.names.fresh(stem)
        self.statements.append(replace(s, output=name))
        self.extents[name] = statement_extent(self.statements[-1], self.extents)
        return name

    def _give(self, tensor: str, tangent: str) -> None:
        self.tangents[tensor] = tangent
        self.given.add(tangent)
        self.extents[tangent] = self.extents[tensor]

    def _moving(self, tensor: str) -> bool:
        return tensor in self.tangents

    # statements

    def _tangent(self, s: Statement) -> None:
        if s.index is not None:
            self._contraction(s)
        elif isinstance(s.body, Call) and s.body.function in STRUCTURAL:
            self._structural(s, s.body)
        else:
            value = push_forward(s.body, Cotangent(TANGENT), self._moving, self._whole, Name(s.output))
            if value is not None:
                self._assign(s, value)

    def _whole(self, e: Expr) -> Expr | None:
        return Name(self.tangents[e.name]) if isinstance(e, Name) and e.name in self.tangents else None

    def _assign(self, s: Statement, value: Expr) -> None:
        """An elementwise tangent has the shape of its output, whatever it is made of."""
        made = Statement(f"T{s.output}", None, None, value)
        given, wanted = ({self.extents[e.name] for e in shaping(x) if e.name in self.extents} for x in (value, s.body))
        if not wanted <= given and self.extents[s.output] not in given:
            made = replace(made, body=Call("select", (Int(0), Name(s.output), value)))
        self._give(s.output, self.emit(made))

    def _structural(self, s: Statement, call: Call) -> None:
        """Linear in the first argument, of which the others say the places and the shape."""
        tangent = self._whole(call.args[0])
        if tangent is not None:
            made = Statement(f"T{s.output}", None, None, replace(call, args=(tangent, *call.args[1:])))
            self._give(s.output, self.emit(made))

    def _contraction(self, s: Statement) -> None:
        given = self.tangents.get(s.default or "")
        whole = Contraction(padded(s) if reads_itself(s) else s, s.output, self.extents, self.emit)
        made = scan_tangent(s, self.tangents, self.extents, self.names, self.statements.append)
        terms = list(_Tangent(self, s, whole).run()) if made is None else [made]
        if given is None:
            if terms:
                self._give(s.output, self._added(terms))
        elif terms and s.aggregation in ("sum", "assign", "mean"):  # over the same points
            self._give(s.output, self._added([replace(terms[0], default=given), *terms[1:]]))
        else:
            value = Name(self._added(terms)) if terms else Int(0)
            self._assign(s, Call("select", (Name(whole.written()), value, Name(given))))

    def _added(self, terms: list[Statement]) -> str:
        first, *others = [Name(self.emit(s)) for s in terms]
        if not others:
            return first.name
        return self.emit(Statement(terms[0].output, None, None, added_tangents([first, *others])))


class _Tangent:
    """The tangent of one contraction. A recurrence's is a recurrence, of the same name as its statement will have.

    `whole` is the contraction as it reads when its output is known. Nested aggregations of a recurrence that depend on
    the left side alone become statements of their own then, computed for all times at once: `outlined` says which
    aggregation a tensor holds.
    """

    def __init__(self, forward: _Forward, s: Statement, whole: Contraction):
        self.forward, self.whole = forward, whole
        self.original = separate(s)
        self.own = s.output if reads_itself(s) else None
        self.outlines = self.own is not None
        self.name = forward.names.fresh(f"T{s.output}")
        forward.reserved[self.name] = f"T{s.output}"
        self.outlined: dict[str, Aggregate] = {}
        if self.own is not None:
            guard = whole.s.guard
            guard = None if guard is None else self._outline(guard)
            whole.s = replace(whole.s, guard=guard, body=self._outline(whole.s.body))

    def run(self) -> Iterator[Statement]:
        """Statements that add up to the tangent: products that are summed stay products."""
        s = self.whole.s
        aggregation, rule = TANGENTS[s.aggregation]
        start = None if rule is None else rule(Cotangent(TANGENT), self.whole.aggregation())
        if start is None:
            return
        known = self.whole.result if s.aggregation == "assign" else None
        value = push_forward(s.body, Cotangent(start.value), self._moving, self._leaf, known)
        variables = index_variables(*self.whole.index, *s.roots, *parts(s.constraints))
        split = aggregation == "sum" and self.own is None
        for term in [] if value is None else addends(value) if split else [value]:
            scaled = self._scaled(term)
            if scaled is not None:
                yield scaled
                continue
            guard, body = self._guarded((*s.guards, *start.masks), term, demands(s.guard, s.body), True)
            made = Statement(
                self.name,
                self.whole.index,
                sizes(self.forward.extents[s.output], len(self.whole.index)),
                body,
                aggregation,
                self.whole.keep(variables, guard, *self.whole.index, body),
                s.constraints,
                no_defract=s.no_defract,
            )
            init = self.original.init
            if init is not None and reads_itself(made):
                self.outlines = False  # its places lie outside of any tensor over the left side
                made = replace(made, init=push_forward(init, Cotangent(TANGENT), self._moving, self._leaf))
            yield separate(made)

    def _scaled(self, term: Expr) -> Statement | None:
        """A term of a sum's tangent that is the sum itself times an element over the left side's variables, as factors
        like `exp(S - L)` have. It needs no sum of its own."""
        s = self.whole.s
        if s.aggregation != "sum" or self.own is not None or not _distinct(self.whole.index):
            return None
        (sign, found), (own, wanted) = signed_factors(term), signed_factors(s.body)
        for e in wanted:
            if e not in found:
                return None
            found.remove(e)
        if len(found) != 1 or not isinstance(found[0], Access) or found[0].tensor not in self.forward.given:
            return None
        if not set(index_variables(found[0])) <= set(index_variables(*self.whole.index)):
            return None
        value = found[0] * self.whole.result
        extent = sizes(self.forward.extents[s.output], len(self.whole.index))
        return Statement(self.name, self.whole.index, extent, value if sign == own else -value)

    def _guarded(
        self, conditions: tuple[Expr, ...], value: Expr, asked: tuple[Demand, ...], outer: bool
    ) -> tuple[Expr | None, Expr]:
        """A guard and a body over the points that meet the demands, accesses that are no longer read included."""
        guard = conjunction(conditions)
        given = demands(guard, value, own=self.name)
        provided = (self.whole.result, *given) if outer else given
        return guard, product(value, *map(as_factor, self.whole.missing(asked, provided)))

    # what is read

    def _moving(self, tensor: str) -> bool:
        return tensor == self.own or tensor in self.outlined or tensor in self.forward.tangents

    def _leaf(self, e: Expr) -> Expr | None:
        match e:
            case Access(tensor) if tensor in self.outlined:
                return self._nested(self.outlined[tensor], e)
            case Access(tensor):
                return replace(e, tensor=self.name if tensor == self.own else self.forward.tangents[tensor])
            case Name(tensor):
                return Access(self.forward.tangents[tensor], ())
            case Aggregate():
                return self._nested(e, e)
            case Pad(Access(tensor) as access, value) if tensor == self.own and value == initial(self.original, access):
                return replace(access, tensor=self.name)
        return None

    def _nested(self, e: Aggregate, value: Expr) -> Expr | None:
        """The tangent of a nested aggregation, whose own value is at hand as `value`."""
        aggregation, rule = NESTED_TANGENTS[e.aggregation]
        start = None if rule is None else rule(Cotangent(TANGENT), replace(self.whole.nested(e), value=value))
        if start is None:
            return None
        tangent = push_forward(e.body, Cotangent(start.value), self._moving, self._leaf)
        if tangent is None:
            return None
        own, others = [tangent], list[Expr]()
        if aggregation == "sum" and self.outlines:
            found = addends(tangent)
            own = [x for x in found if any(isinstance(a, Access) and a.tensor == self.name for a in walk(x))]
            others = [x for x in found if x not in own]
        made = [self._aggregated(e, aggregation, start.masks, added_tangents(x)) for x in (own, others) if x]
        return added_tangents([made[0], *map(self._outline, made[1:])] if own else [self._outline(made[0])])

    def _aggregated(self, e: Aggregate, aggregation: str, masks: tuple[Expr, ...], tangent: Expr) -> Expr:
        guard, body = self._guarded((*e.guards, *masks), tangent, demands(e.guard, e.body), False)
        return replace(e, aggregation=aggregation, body=body, guard=self.whole.keep(e.bound, guard, body), span=None)

    def _outline(self, e: Expr) -> Expr:
        """Nested aggregations over the left side's variables as elements of statements of their own."""
        if isinstance(e, Pad):
            return e
        inner = rebuild(e, self._outline)
        if not isinstance(inner, Aggregate) or inner.aggregation == "assign":
            return inner
        left = [i.name if isinstance(i, Index) else "" for i in self.whole.index]
        free = index_variables(inner)
        if any(left.count(v) != 1 for v in free):
            return inner
        extent = sizes(self.forward.extents[self.original.output], len(left))
        made = Statement(
            f"{self.original.output}_{inner.aggregation}",
            tuple(map(Index, free)),
            tuple(extent[left.index(v)] for v in free),
            inner.body,
            inner.aggregation,
            inner.guard,
            inner.constraints,
        )
        name = self.forward.emit(separate(made))
        self.whole.extents[name] = self.forward.extents[name]
        self.outlined[name] = inner
        return Access(name, tuple(map(Index, free)))


def _distinct(index: tuple[Expr, ...]) -> bool:
    """Are the indices variables, each another?"""
    return all(isinstance(e, Index) for e in index) and len(set(index)) == len(index)
