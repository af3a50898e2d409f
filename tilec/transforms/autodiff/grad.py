"""Reverse-mode differentiation: a program and its inputs' cotangents from its outputs', as a program like any other.

The gradient repeats the forward statements that derivatives read, then goes through them from last to first. What a
tensor receives is gathered first and added up when the statement that computes it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.errors import InputMistake, NameMistake, listed
from tilec.ir.functions import STRUCTURAL
from tilec.ir.program import (
    Aggregate,
    Call,
    Expr,
    Float,
    Input,
    Int,
    Name,
    Program,
    Statement,
    accesses_in,
    expressions,
    reads_itself,
    walk,
)
from tilec.ir.types import CASTS, TensorType, is_floating
from tilec.transforms.autodiff.adjoint import Contraction
from tilec.transforms.autodiff.limit_depth import cut
from tilec.transforms.autodiff.outline_reductions import lift
from tilec.transforms.autodiff.pullback import Cotangent, Leaf, pull_back, total, value_reads
from tilec.transforms.autodiff.reversal import cotangents
from tilec.transforms.autodiff.scans import scan_gradient, split_scans
from tilec.transforms.autodiff.shift_invariance import cancelling
from tilec.transforms.recurrence import padded
from tilec.transforms.simplify.simplify import simplify
from tilec.transforms.util.extents import Extent, extents
from tilec.transforms.util.naming import Names

MOST_COTANGENTS = 8  # cotangents added up in one statement


def grad(program: Program, wrt: Sequence[str] | None = None, rounded: bool = False) -> Program:
    """The gradient: (inputs..., one cotangent an output) -> one gradient for each input named in `wrt` (default: all).

    The cotangent of output O is called DO and the gradient by input I is called DI, or like it where that is taken.
    Raises NameMistake for a name that is no input, InputMistake if there is nothing to differentiate by. A recurrence
    is computed again and all its states are kept, wherever a derivative reads them. `rounded`: each cotangent has the
    type of its tensor, as where the text casts.
    """
    reverse = _Reverse(program, wanted_inputs(program, wrt), rounded)
    return simplify(reverse.run(), reverse.results)


def grad_with_outputs(
    program: Program, wrt: Sequence[str], rounded: bool = False, instead: Mapping[str, Statement] | None = None
) -> Program:
    """Values and gradient in one: (inputs..., one cotangent an output) -> (outputs..., one gradient a name of `wrt`).

    What the gradient computes of the inputs alone and what the outputs are made of have one statement and one name.
    `instead`: by output, statements that have the same gradient as the program's and are differentiated in their place.
    """
    reverse = _Reverse(program, tuple(wrt), rounded, instead or {})
    return simplify(reverse.run())


def are_mixed(types: Iterable[TensorType]) -> bool:
    """Whether these tensors have several floating types: then a tensor's cotangent may have another one than it."""
    return len({t.dtype for t in types if t.shape and not t.weak and is_floating(t.dtype)}) > 1


def wanted_inputs(program: Program, wrt: Sequence[str] | None) -> tuple[str, ...]:
    """The inputs to differentiate by, all by default. Raises NameMistake for a name that is no input, InputMistake
    where there is none."""
    wanted = program.input_names() if wrt is None else tuple(wrt)
    if not wanted:
        raise InputMistake("there is no input to differentiate by")
    for name in wanted:
        if name not in program.input_names():
            raise NameMistake(f"no input is called {name}", hint=listed(name, program.input_names()))
    return wanted


def differentiable(program: Program, names: Names) -> Program:
    """The same program in the form in which it is differentiated."""
    for rewritten in (lift, cut, split_scans):
        program = replace(program, statements=rewritten(program, names))
    return program


class _Reverse:
    """One pass from the outputs back to the inputs."""

    def __init__(
        self, program: Program, wanted: tuple[str, ...], rounded: bool, instead: Mapping[str, Statement] | None = None
    ):
        self.names, self.instead = Names.of(program), instead or {}
        self.program = differentiable(program, self.names)
        self.wanted = wanted
        self.casts = rounded or _has_cast(program)
        self.extents: dict[str, Extent] = extents(self.program)
        self.active = depend_on(self.program, frozenset(wanted), cancelling(self.program, self.extents))
        self.statements: list[Statement] = []
        # What each tensor has received: elementwise expressions of its shape, and statements still to be named.
        self.received: dict[str, list[Expr | Statement]] = {}
        self.seeds = tuple(Input(self.names.fresh(f"D{o}"), None) for o in program.outputs)
        self.seeded = [(o, Name(seed.name)) for o, seed in zip(program.outputs, self.seeds, strict=True)]
        self.results = tuple(self.names.fresh(f"D{i}") for i in wanted)

    def run(self) -> Program:
        """The program's outputs and then the gradients, `results`, not yet simplified."""
        program, seeds, results = self.program, self.seeds, self.results
        for output, seed in zip(program.outputs, seeds, strict=True):
            self.extents[seed.name] = self.extents[output]
            self._receive(output, Name(seed.name))
        for s in reversed(program.statements):
            if s.output in self.active and s.output in self.received:
                self._reverse(self.instead.get(s.output, s))
        cast = len(program.inputs) > 1 or self.casts
        for name, result in zip(self.wanted, results, strict=True):
            self._result(name, result, cast)
        statements = (*program.statements, *self.statements)
        return Program(None, (*program.inputs, *seeds), (*program.outputs, *results), statements)

    # cotangents

    def _receive(self, tensor: str, cotangent: Expr | Statement) -> None:
        self.received.setdefault(tensor, []).append(cotangent)

    def _emit(self, s: Statement) -> str:
        """Append a statement under a fresh name like its own, which is returned."""
        name = self.names.fresh(s.output)
        self.statements.append(replace(s, output=name))
        return name

    def _assign(self, base: str, value: Expr) -> str:
        """The name of a tensor that holds an elementwise expression."""
        return value.name if isinstance(value, Name) else self._emit(Statement(base, None, None, value))

    def _collect(self, tensor: str, base: str) -> Expr | Statement:
        """The sum of what a tensor has received: one statement or one expression."""
        received = self.received.pop(tensor)
        if len(received) == 1:
            return received[0]
        terms = [
            Name(self._emit(replace(r, output=base))) if isinstance(r, Statement) else r for r in received
        ]  # fmt: skip
        while len(terms) > MOST_COTANGENTS:
            sums = [_sum(terms[k : k + MOST_COTANGENTS]) for k in range(0, len(terms), MOST_COTANGENTS)]
            terms = [Name(self._assign(base, e)) for e in sums]
        return _sum(terms)

    def _cotangent(self, tensor: str) -> str:
        """The name of a tensor's whole cotangent, which has the tensor's type; there must be one."""
        base = f"G{tensor}" if self.casts else f"D{tensor}"
        whole = self._collect(tensor, base)
        if isinstance(whole, Statement):
            whole = Name(self._emit(replace(whole, output=base)))
        if self.casts and (tensor, whole) not in self.seeded:
            whole = as_type(whole, tensor)
        name = self._assign(f"D{tensor}", whole)
        self.extents[name] = self.extents[tensor]
        return name

    def _result(self, tensor: str, result: str, cast: bool) -> None:
        """Assign the gradient of an input; zeros of its shape where nothing depends on it."""
        if tensor not in self.received:
            zeros: Expr = Call("select", (Int(0), Name(tensor), Float(0.0)))
            self.statements.append(Statement(result, None, None, as_type(zeros, tensor) if cast else zeros))
            return
        # a copy, in case the same input is asked for twice
        kept = list(self.received[tensor])
        whole = self._collect(tensor, f"G{tensor}")
        self.received[tensor] = kept
        if not cast:
            whole = whole if isinstance(whole, Statement) else Statement(result, None, None, whole)
            self.statements.append(replace(whole, output=result))
            return
        if isinstance(whole, Statement):
            whole = Name(self._emit(replace(whole, output=f"G{tensor}")))
        name = self._assign(f"G{tensor}", whole)
        self.statements.append(Statement(result, None, None, as_type(Name(name), tensor)))

    # statements

    def _reverse(self, s: Statement) -> None:
        cotangent = self._cotangent(s.output)
        if reads_itself(s):
            whole = cotangents(s, cotangent, self.extents, self.names, self._emit)
            if whole is not None:
                self.statements.append(whole)
                cotangent = whole.output
                self.extents[cotangent] = self.extents[s.output]
            s = padded(s)
        if s.index is not None:
            self._contraction(s, cotangent)
        elif isinstance(s.body, Call) and s.body.function in STRUCTURAL:
            self._structural(s.body, cotangent)
        else:
            self._elementwise(s, cotangent)

    def _contraction(self, s: Statement, cotangent: str) -> None:
        scanned = scan_gradient(s, cotangent, self.extents, self.names, self.statements.append)
        if scanned is not None:
            self._receive(scanned.output, scanned)
            return
        contraction = Contraction(s, cotangent, self.extents, self._emit)
        for flipped in contraction.contributions(lambda tensor: tensor in self.active and tensor != s.output):
            self._receive(flipped.output, flipped)
        if s.default is not None and s.default in self.active:
            unwritten = Call("select", (Name(contraction.written()), Int(0), Name(cotangent)))
            self._reduced(s.default, unwritten, s.output)

    def _structural(self, call: Call, cotangent: str) -> None:
        """Whole tensors, by name: a gather's cotangent is scattered, a scatter's gathered, a sum's broadcast."""
        names = [a.name if isinstance(a, Name) else "" for a in call.args]
        g, first = Name(cotangent), names[0]
        if first not in self.active:
            return
        match call.function:
            case "reshape":
                whole: Expr = Call("reshape", (g, Call("shape", (Name(first),))))
            case "gather":
                whole = Call("scatter", (g, call.args[1], Name(first)))
            case "scatter":
                whole = Call("gather", (g, call.args[1]))
            case _:
                whole = Call("select", (Int(0), Name(first), g))
        if self.extents[first] == self.extents[cotangent] and call.function in ("reshape", "simple_reduce"):
            whole = g
        self._receive(first, Name(self._assign(f"D{first}", whole)))

    def _elementwise(self, s: Statement, cotangent: str) -> None:
        terms: dict[str, list[Cotangent]] = {}
        start = Cotangent(Name(cotangent))
        for leaf in pull_back(s.body, start, None, self.active.__contains__, _nothing, known=Name(s.output)):
            terms.setdefault(_whole(leaf), []).append(leaf.cotangent)
        for tensor, found in terms.items():
            self._reduced(tensor, total(found).expression(), s.output)

    def _reduced(self, tensor: str, value: Expr, like: str) -> None:
        """Give a tensor an elementwise expression of the shape of `like`, summed over broadcast dimensions."""
        if self.extents[tensor] != self.extents[like]:
            whole = Name(self._assign(f"D{tensor}", value))
            value = Name(self._assign(f"D{tensor}", Call("simple_reduce", (whole, Name(tensor)))))
        self._receive(tensor, value)


def depend_on(program: Program, sources: frozenset[str], constant: frozenset[str]) -> set[str]:
    """The tensors that depend on the sources through derivatives other than by `constant`, the sources among them."""
    active = set(sources)
    integers = _places(program)
    for s in program.statements:
        if s.output in constant or s.output in integers:
            continue
        body = s.body.args[0] if isinstance(s.body, Call) and s.body.function in STRUCTURAL else s.body
        roots = (body,) if s.init is None else (body, s.init)
        if any(name in active for root in roots for name in value_reads(root)) or s.default in active:
            active.add(s.output)
    return active


def _places(program: Program) -> set[str]:
    """The tensors whose elements stand in indices: of integers, whatever the inputs are."""
    roots = [e for s in program.statements for e in expressions(s)]
    indices = [i for a in accesses_in(*roots) for i in a.index]
    written = [i for s in program.statements for i in s.index or ()]
    return {a.tensor for a in accesses_in(*indices, *written)}


def _has_cast(program: Program) -> bool:
    """Does a statement change an element type, so that a gradient may have another type than its input?"""
    calls = (e for s in program.statements for e in walk(s.body) if isinstance(e, Call))
    return any(e.function in CASTS or e.function == "as_type" for e in calls)


def as_type(e: Expr, tensor: str) -> Expr:
    return Call("as_type", (e, Name(tensor)))


def _sum(terms: Sequence[Expr]) -> Expr:
    return total([Cotangent(t) for t in terms]).value


def _nothing(e: Aggregate, g: Cotangent, scope: object) -> None:
    return None


def _whole(leaf: Leaf) -> str:
    assert isinstance(leaf.read, Name)
    return leaf.read.name
