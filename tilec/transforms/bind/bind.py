"""Bind a program to its inputs' shapes: sizes become literals, names become accesses, and every statement an indexed
contraction. What can only be checked with sizes at hand is checked here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.errors import AggregationMistake, DividesByZero, NameMistake, RankMistake, SizeMistake
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.index import integer
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    expressions,
    node_count,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import DEFAULT_FLOAT, MOST_ELEMENTS, WEAK_INT, TensorType, is_integer
from tilec.language import show_expr
from tilec.transforms.bind.branches import resolve
from tilec.transforms.bind.legality import check_bounded, check_writes, features, scaled_by_sizes
from tilec.transforms.bind.scalars import promoted, with_tests
from tilec.transforms.bind.sizes import bind_inputs, counted
from tilec.transforms.bind.structural import STRUCTURAL_EXPANSIONS, Argument, expand_reshape
from tilec.transforms.bind.value_inputs import size_inputs
from tilec.transforms.bind.values import BindingScope, ValueBinder
from tilec.transforms.recurrence import check_recurrence
from tilec.transforms.simplify.copies import drop_copies
from tilec.transforms.simplify.keep_variables import keep_variables
from tilec.transforms.util.broadcast import Axes, BroadcastOperand, Shape, axes, broadcast_shape, broadcasts_to
from tilec.transforms.util.naming import Names

__all__ = ["bind", "size_inputs"]

FOLD_LIMIT = 16  # nodes of a literal expression that is repeated in each of its readers


def bind(program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]) -> Program:
    """The program for inputs of these types. `values` gives the integer of each of `size_inputs(program)`.

    Raises InputMistake, RankMistake, SizeMistake, TypeMistake, WriteConflict, UnboundIndex and Unsupported with the
    span of what is wrong.
    """
    return _Binder(program, types, values).run()


class _Binder:
    """One pass over the statements: `types` and `sizes.shapes` grow with each; `folded` holds the literals."""

    def __init__(self, program: Program, types: Mapping[str, TensorType], values: Mapping[str, int]):
        self.program = program
        self.sizes = bind_inputs(program, types, values)
        self.types = {i.name: types[i.name] for i in program.inputs}
        self.scope = BindingScope(self.sizes, self.types)
        self.folded = self.scope.folded
        self.statements: list[Statement] = []
        self.kept = {*program.outputs, *(s.default for s in program.statements if s.default is not None)}
        self.removable: set[str] = set()
        self.names = Names.of(program)

    def run(self) -> Program:
        for s in self.program.statements:
            called = features(s)
            if s.index is not None:
                self.contraction(s)
            elif not self.size_statement(s):
                self.elementwise(s, called)
        inputs = tuple(replace(i, dims=self.types[i.name].shape) for i in self.program.inputs)
        program = Program(self.program.name, inputs, self.program.outputs, self._read_statements())
        return drop_copies(program, self.types)

    def emit(self, s: Statement) -> None:
        s = with_tests(promoted(s, self.types), self.types)
        t = statement_type(s, self.types)
        if math.prod(t.shape) > MOST_ELEMENTS:
            raise SizeMistake(
                f"{s.output} would have the shape {t.shape}: more elements than memory can hold",
                s.span,
                hint="what one statement aggregates is not stored: put the body into the aggregation that reads it",
            )
        self.types[s.output] = t
        self.sizes.shapes[s.output] = t.shape
        self.statements.append(resolve(s, self.types))

    # elementwise statements

    def size_statement(self, s: Statement) -> bool:
        """Note what is known of a statement of literals alone; true where nothing but its readers needs it."""
        if s.guard is not None or s.default is not None:
            return False
        if self.sizes.is_size(s.body):
            try:
                self.sizes.values[s.output] = self.sizes.evaluate(s.body)
                self.sizes.sources[s.output] = f"`{show_expr(s.body, tight=True)}`"
            except DividesByZero as mistake:
                self.sizes.failed[s.output] = mistake
        if not self._is_literal(s.body):
            return False
        value = ValueBinder(self.scope, Axes((), ())).bind(s.body)
        element = expression_type(value, {})
        if element == WEAK_INT and s.output in self.sizes.values:
            value = integer(self.sizes.values[s.output])
        if not element.weak or node_count(value) > FOLD_LIMIT:
            return False
        self.folded[s.output] = value
        self.sizes.shapes[s.output] = ()
        if s.output in self.kept:
            self.emit(replace(s, index=(), sizes=(), body=value))
        return True

    def _is_literal(self, e: Expr) -> bool:
        match e:
            case Int() | Float():
                return True
            case Name(name) | Access(name, ()):
                return name in self.folded or name in self.sizes.values and name not in self.types
            case Call("shape", (Name(), axis)):
                return self._is_literal(axis)
            case Call(function, args):
                scalar = function not in (*STRUCTURAL, *RANDOM, "index", "shape", "as_type")
                return scalar and all(map(self._is_literal, args))
        return False

    def elementwise(self, s: Statement, called: frozenset[str]) -> None:
        if s.output in self.sizes.values and s.output not in self.kept:
            self.removable.add(s.output)
        if called.intersection(STRUCTURAL):
            if isinstance(s.body, Call) and s.body.function in STRUCTURAL:
                self.structural(s, s.body)
                return
            s = replace(s, body=self._lifted(s.body, s))
        shape = broadcast_shape([o for o in self._operands(s.body, *s.guards) if o.shape], s.body.span or s.span)
        taken = {e.name for e in walk(s.body) if isinstance(e, Index)} if "aggregate" in called else ()
        whole = axes(shape, taken)
        values = ValueBinder(self.scope, whole)
        guard = None if s.guard is None else values.bind(s.guard)
        self.emit(replace(s, index=whole.variables, sizes=whole.sizes, body=values.bind(s.body), guard=guard))

    def _operands(self, *roots: Expr) -> Iterator[BroadcastOperand]:
        """What gives an elementwise expression its shape."""
        stack = list(roots)
        while stack:
            match e := stack.pop():
                case Name():
                    yield self._operand(e)
                case Call("as_type" | "shape" | "index", args):
                    first = args[0]
                    if e.function == "as_type":
                        stack.append(first)
                    elif not isinstance(first, Name):
                        raise NameMistake(f"{e.function} asks for a tensor's name", e.span)
                    elif e.function == "index":
                        yield self._operand(first)
                    elif len(args) == 1:
                        yield BroadcastOperand(f"shape({first.name})", (len(self.sizes.shape(first)),), e.span)
                case Call():
                    if e.function in RANDOM:
                        self._check_seed(e)
                    stack.extend(reversed(e.args[e.function in RANDOM :]))

    def _check_seed(self, e: Call) -> None:
        for operand in self._operands(e.args[0]):
            if operand.shape:
                raise RankMistake(
                    f"the seed of {e.function} is one integer, but {operand.label} has shape {operand.shape}",
                    operand.span or e.span,
                    hint="each element of the statement gets a number; the seed, one integer, says of which series",
                )

    def _operand(self, e: Name) -> BroadcastOperand:
        t = self.types.get(e.name)
        if t is None and e.name not in self.folded and e.name not in self.sizes.values:
            raise NameMistake(f"nothing is called {e.name}", e.span)
        return BroadcastOperand(e.name, t.shape if t else (), e.span)

    # structural functions

    def structural(self, s: Statement, e: Call) -> None:
        if e.function == "reshape":
            self.emit(expand_reshape(s, self._argument(e.args[0], s), self._reshape_sizes(e)))
        else:
            positions = (1,) if e.function in ("gather", "scatter") else ()
            arguments = (self._position(a, s) if k in positions else self._argument(a, s) for k, a in enumerate(e.args))
            self.emit(STRUCTURAL_EXPANSIONS[e.function](s, *arguments))

    def _argument(self, e: Expr, s: Statement) -> Argument:
        """A structural function's operand; anything but a name or a number gets a statement of its own."""
        if not isinstance(e, Name) and not self._is_literal(e):
            e = self._lift(e, s)
        if isinstance(e, Name) and e.name in self.types and e.name not in self.folded:
            t = self.types[e.name]
            return Argument(e.name, t.shape, t.element(), e)
        value = ValueBinder(self.scope, Axes((), ())).bind(e)
        return Argument(None, (), expression_type(value, self.types), value)

    def _position(self, e: Expr, s: Statement) -> Argument:
        """An operand that will stand in an index, where a rank-0 input would count as a size: a cast keeps it apart."""
        argument = self._argument(e, s)
        if argument.tensor in self.program.input_names() and not argument.shape and is_integer(argument.element.dtype):
            return self._argument(Call("int64", (argument.value,)), s)
        return argument

    def _reshape_sizes(self, e: Call) -> Shape:
        sizes = e.args[1:]
        match sizes:
            case (Call("shape", (Name() as like,)),):
                return self.sizes.shape(like)
        if Call("neg", (Int(1),)) in sizes:
            raise SizeMistake("reshape: -1 is no size", e.span, hint="write the size, such as N*M or shape(X, 0)/4")
        return tuple(self.sizes.size(n, f"size {k} of the reshape").value for k, n in enumerate(sizes))

    def _lifted(self, e: Expr, s: Statement) -> Expr:
        """Structural calls below the root as names of statements of their own."""
        if isinstance(e, Call) and e.function in STRUCTURAL:
            return self._lift(e, s)
        return rebuild(e, lambda x: self._lifted(x, s)) if isinstance(e, Call) else e

    def _lift(self, e: Expr, s: Statement) -> Name:
        stem = f"{s.output}_{e.function if isinstance(e, Call) else 'operand'}"
        name = self.names.fresh(stem)
        inner = Statement(name, None, None, e, span=e.span or s.span)
        self.elementwise(inner, features(inner))
        return Name(name, span=e.span)

    # contractions

    def contraction(self, s: Statement) -> None:
        own = reads_itself(s)
        if own:  # its shape is known before its type is
            sizes = self._sizes(s)
            self.types[s.output] = TensorType(tuple(n.value for n in sizes), DEFAULT_FLOAT)
        values = ValueBinder(self.scope, None, s.output if own else None)
        index = tuple(values.index(e) for e in s.index or ())
        if not AGGREGATIONS[s.aggregation].data_dependent:
            for e in index:
                if any(isinstance(x, (Access, Pad, Aggregate)) for x in walk(e)):
                    raise AggregationMistake(
                        f"an output index that holds a tensor's element takes +, *, > or <, not {s.aggregation}", e.span
                    )
        sizes = self._sizes(s)
        new = replace(
            s,
            index=index,
            sizes=sizes,
            guard=None if s.guard is None else values.bind(s.guard),
            body=values.bind(s.body),
            constraints=values.constraints(s.constraints),
            init=None if s.init is None else values.bind(s.init),
        )
        new = self._with_whole_default(keep_variables(new, s))
        self.emit(new)
        if own:
            check_recurrence(self.statements[-1], self.sizes.shapes)
        if any(map(scaled_by_sizes, expressions(s))):
            check_bounded(self.statements[-1], self.sizes.shapes)
        check_writes(new, self.sizes.shapes)

    def _sizes(self, s: Statement) -> tuple[Int, ...]:
        assert s.index is not None
        if s.sizes is None:
            return self._left_out_sizes(s)
        if len(s.sizes) != len(s.index):
            raise RankMistake(
                f"{s.output} has {counted(len(s.index), 'index')} and {counted(len(s.sizes), 'size')}", s.span
            )
        return tuple(self.sizes.size(e, f"size {k} of {s.output}") for k, e in enumerate(s.sizes))

    def _left_out_sizes(self, s: Statement) -> tuple[Int, ...]:
        """Sizes from where the output's index variables stand bare as indices of what the statement reads."""
        found: dict[str, dict[str, int]] = {}
        for e in (*(s.index or ()), *s.roots):
            for access in (x for x in walk(e) if isinstance(x, Access) and x.tensor != s.output):
                for axis, (i, size) in enumerate(zip(access.index, self.scope.shape(access), strict=True)):
                    if isinstance(i, Index):
                        found.setdefault(i.name, {})[f"dimension {axis} of {access.tensor}"] = size
        sizes = []
        for k, e in enumerate(s.index or ()):
            places = found.get(e.name, {}) if isinstance(e, Index) else {}
            if not places:
                raise SizeMistake(
                    f"size {k} of {s.output} cannot be worked out from `{show_expr(e, tight=True)}`",
                    e.span or s.span,
                    hint=f"write the sizes: {s.output}[... : N, ...]",
                )
            if len(set(places.values())) > 1:
                shown = ", ".join(f"{size} ({place})" for place, size in places.items())
                raise SizeMistake(
                    f"size {k} of {s.output}: the places where {show_expr(e)} stands disagree: {shown}",
                    e.span or s.span,
                    hint=f"pass tensors that agree, or write the sizes that are meant: {s.output}[... : N, ...]",
                )
            sizes.append(Int(next(iter(places.values()))))
        return tuple(sizes)

    # checks and the rest

    def _with_whole_default(self, s: Statement) -> Statement:
        """The statement with a default of the output's shape: one of another shape is broadcast to it first."""
        if s.default is None:
            return s
        shape, given = statement_type(s, self.types).shape, self.types[s.default].shape
        if given == shape:
            return s
        if not broadcasts_to(given, shape):
            raise SizeMistake(
                f"the default {s.default} of shape {given} does not broadcast to {s.output} of shape {shape}", s.span
            )
        whole = axes(shape)
        name = self.names.fresh(f"{s.output}_default")
        self.emit(Statement(name, whole.variables, whole.sizes, whole.read(s.default, given), span=s.span))
        return replace(s, default=name)

    def _read_statements(self) -> tuple[Statement, ...]:
        """Without the size statements that no other statement reads as a value."""
        if not self.removable:
            return tuple(self.statements)
        result: list[Statement] = []
        read: set[str] = set()
        for s in reversed(self.statements):
            if s.output not in self.removable or s.output in read:
                result.append(s)
                read.update(x.tensor for x in walk(*expressions(s)) if isinstance(x, Access))
        return tuple(reversed(result))
