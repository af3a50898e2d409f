"""A program applied to each element of a batch: every access of a batched tensor gets one more index variable.

A tensor is batched if something that it is computed from is; its batch dimension is the first, an input's is where the
caller says. Contractions then are contractions with one more output variable. Elementwise statements broadcast from the
last dimension on, so that a batched operand of fewer dimensions than the others gets dimensions of size 1 in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tilec.errors import InputMistake, SizeMistake, Unsupported
from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Input,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    children,
    expressions,
    map_expressions,
    rebuild,
    walk,
)
from tilec.transforms.autodiff.limit_depth import apart
from tilec.transforms.batching.elementwise import batch_elementwise
from tilec.transforms.batching.ranks import Ranks, ranks_of_reads, with_ranks
from tilec.transforms.batching.scalars import Scalars, never_outside
from tilec.transforms.batching.structural import BATCH_RULES
from tilec.transforms.bind.value_inputs import size_inputs
from tilec.transforms.simplify.simplify import rename_reads, simplify
from tilec.transforms.util.extents import extents, statement_extent
from tilec.transforms.util.naming import Names, all_variables, fresh_variable

RANDOMNESS = ("same", "different", "error")
# between the seeds of the elements of a batch, and of batches of it: primes, so that no two elements share a seed
STRIDES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def vmap(
    program: Program,
    in_axes: Sequence[int | None],
    out_axes: Sequence[int | None],
    randomness: str = "same",
    ranks: Mapping[str, int] | None = None,
) -> Program:
    """The program over a batch.

    `in_axes` says for each input which dimension is the batch's, None where all elements of the batch share it;
    `out_axes` says where each output has it, None for one that depends on no batched input and is to stay as it is.
    `ranks` gives the number of dimensions, without the batch's, of inputs that are declared without.
    `randomness`: "same", what a loop over the batch would draw; "different", another series for each element, whose
    seed is increased by the element's number times a prime; "error", to refuse random numbers.

    Raises InputMistake for axes that do not fit, SizeMistake where a size would depend on the element of the batch and
    UnknownRank where a rank is needed and not known.
    """
    _check(program, in_axes, randomness)
    program = with_ranks(program, {**_ranks_of_elements(program, in_axes), **(ranks or {})})
    return Batch(program, tuple(in_axes), tuple(out_axes), randomness).run()


class Batch:
    """One pass over the statements. `axis` holds the batch dimension of each batched tensor."""

    def __init__(
        self, program: Program, in_axes: tuple[int | None, ...], out_axes: tuple[int | None, ...], randomness: str
    ):
        self.names = Names.of(program)
        self.program = replace(program, statements=apart(program, self.names))
        self.known = extents(self.program)
        self.ranks = Ranks(self.program)
        self.scalars = Scalars(self.program, self.ranks)
        self.out_axes, self.different = out_axes, randomness == "different"
        self.axis: dict[str, int] = {}
        self.moved: dict[str, str] = {}
        self.statements: list[Statement] = []
        self.dimension = self.names.fresh("Batch")
        self.inputs = tuple(map(self._input, program.inputs, in_axes))
        self._check_ranks()
        declared = any(i.dims is not None and i.name in self.axis for i in self.inputs)
        name, axis = next(iter(self.axis.items()))
        self.size: Expr = Name(self.dimension) if declared else Call("shape", (Name(name), Int(axis)))
        used = {v for s in self.program.statements for v in all_variables(s)}
        self.variable = Index(fresh_variable("b", used))

    def _input(self, i: Input, axis: int | None) -> Input:
        if axis is None:
            return i
        if i.dims is None:
            if axis < 0:
                self.ranks.of(i.name)
            self.axis[i.name] = axis
            return i
        rank = len(i.dims) + 1
        if not -rank <= axis < rank:
            told = f"{i.name} has {rank} dimensions with the batch's, so none is number {axis}"
            raise InputMistake(told, i.span, hint=f"in_dims counts them from 0 to {rank - 1}")
        self.axis[i.name] = axis = axis % rank
        return replace(i, dims=(*i.dims[:axis], self.dimension, *i.dims[axis:]))

    def _check_ranks(self) -> None:
        """Dimensions that are not declared would not be compared."""
        bare = [i.name for i in self.inputs if i.dims is None and i.name in self.axis]
        if bare and len(self.axis) > 1:
            self.ranks.of(bare[0])

    def run(self) -> Program:
        for s in self.program.statements:
            self.statement(s)
        outputs = [self._output(o, a) for o, a in zip(self.program.outputs, self.out_axes, strict=True)]
        swapped = {o: new for o, new in zip(self.program.outputs, outputs, strict=True) if new != o}
        statements = tuple(self.statements)
        inputs = self.program.input_names()
        if swapped:
            names = {**{new: old for old, new in swapped.items() if old not in inputs}}
            names |= {old: new for new, old in names.items()}
            statements = tuple(
                replace(rename_reads(s, names), output=names.get(s.output, s.output)) for s in statements
            )
            outputs = [names.get(o, o) for o in outputs]
        return simplify(Program(None, self.inputs, tuple(outputs), statements))

    # what the rules need

    def emit(self, s: Statement, batched: bool) -> str:
        self.statements.append(s)
        if batched:
            self.axis[s.output] = 0
        return s.output

    def batched(self, e: Expr) -> bool:
        """Does the value of an expression depend on the element of the batch?"""
        match e:
            case Name(name):
                return name in self.axis
            case Access(tensor) if tensor in self.axis:
                return True
            case Call("shape"):
                return False
            case Call("as_type", (value, _)):
                return self.batched(value)
        return self.different and _is_draw(e) or any(map(self.batched, _below(e)))

    def variables(self, count: int) -> tuple[Index, ...]:
        """Index variables other than the batch's."""
        return tuple(Index(f"{self.variable.name}{d}") for d in range(count))

    def read(self, tensor: str, index: Sequence[Expr]) -> Access:
        """An element of a tensor, of the batch's element at hand if it is batched."""
        places = list(index)
        if tensor in self.axis:
            places.insert(self.axis[tensor], self.variable)
        return Access(tensor, tuple(places))

    def sizes(self, tensor: str) -> tuple[Expr, ...]:
        """Of each dimension but the batch's."""
        return tuple(self.shape(tensor, Int(d)) for d in range(self.ranks.of(tensor)))

    def whole(self, tensor: str) -> Name:
        """The tensor with its batch dimension, if it has one, in front."""
        if not self.axis.get(tensor):
            return Name(tensor)
        if tensor not in self.moved:
            index = self.variables(self.ranks.of(tensor))
            made = Statement(
                self.names.fresh(tensor), (self.variable, *index), (self.size, *self.sizes(tensor)),
                self.read(tensor, index),
            )  # fmt: skip
            self.moved[tensor] = self.emit(made, True)
            self.ranks.give(made.output, len(index))
            self.known[made.output] = self.known[tensor]
        return Name(self.moved[tensor])

    def aligned(self, tensor: str, like: str) -> Name:
        """The tensor with dimensions of size 1 after the batch's, as many as `like` has more: NumPy would broadcast
        the batch along another dimension."""
        name = self.whole(tensor)
        if tensor not in self.axis or self.known[tensor] == self.known[like]:
            return name
        missing = self.ranks.of(like) - self.ranks.of(tensor)
        if missing <= 0:
            return name
        ones = (Int(1),) * missing
        made = Call("reshape", (name, self.size, *ones, *self.sizes(tensor)))
        return Name(self.emit(Statement(self.names.fresh(tensor), None, None, made), True))

    # statements

    def statement(self, s: Statement) -> None:
        self.mixed = self.scalars.meet_others(s, self.known, self.axis)
        roots = [e for e in (s.guard, s.body, s.init) if e is not None]
        match s.body:
            case Call(function) as call if function in STRUCTURAL:
                BATCH_RULES[function](self, s, call)
                return
            case Call("shape", (Name(tensor),)) if tensor in self.axis:
                self._shape_vector(s, tensor)
                return
        if not any(map(self.batched, (*roots, *(s.index or ())))) and s.default not in self.axis:
            self.emit(map_expressions(s, self.unbatched), False)
        elif s.index is None:
            batch_elementwise(self, s)
        else:
            self._contraction(s)

    def as_scalar(self, e: Expr, value: Expr) -> Expr:
        """The value of an expression over the batch, which promotes as that of an element does."""
        marked = self.mixed and self.batched(e) and self.scalars.is_scalar(e)
        return Call("as_scalar", (value,)) if marked else value

    def _contraction(self, s: Statement) -> None:
        assert s.index is not None
        body_batched = any(map(self.batched, s.roots))
        sizes = s.sizes
        if sizes is None and not body_batched:
            sizes = tuple(Call("shape", (Name(s.default or ""), Int(d))) for d in range(len(s.index)))
        self.axis[s.output] = 0
        made = map_expressions(replace(s, sizes=None, index=()), self.value)
        made = replace(
            made,
            index=(self.variable, *map(self.position, s.index)),
            sizes=None if sizes is None else (self.size, *map(self.unbatched, sizes)),
            default=None if s.default is None else self._default(s.default, len(s.index)),
        )
        self.emit(made, True)

    def _default(self, tensor: str, rank: int) -> str:
        """A default has as many dimensions as what it is one of, as far as they are known."""
        if tensor not in self.axis and not self.ranks.known(tensor):
            return tensor
        if tensor in self.axis and self.ranks.of(tensor) == rank:
            return self.whole(tensor).name
        ones = (Int(1),) * (rank - self.ranks.of(tensor))
        lead = self.size if tensor in self.axis else Int(1)
        made = Call("reshape", (self.whole(tensor), lead, *ones, *self.sizes(tensor)))
        return self.emit(Statement(self.names.fresh(tensor), None, None, made), tensor in self.axis)

    def value(self, e: Expr) -> Expr:
        """An expression of a contraction at the batch's element at hand."""
        match e:
            case Name(name) if name in self.axis:
                return self.as_scalar(e, self.read(name, ()))
            case Access():
                return self.as_scalar(e, self.position(e))
            case Pad(Access() as read, other) if (
                self.mixed and read.tensor in self.axis and self.scalars.is_scalar(read)
            ):
                return never_outside(self.value(read), self.value(other))
            case Inside() | Pad():
                return rebuild(e, lambda x: self.position(x) if isinstance(x, (Access, Inside)) else self.value(x))
            case Aggregate():
                return self.as_scalar(e, rebuild(e, self.value))
            case Call("shape", (Name(tensor), axis)):
                return self.shape(tensor, axis)
            case Call("as_type", (value, like)):
                return replace(e, args=(self.value(value), like))
            case Call(function, (seed, counter)) if function in RANDOM:
                return replace(e, args=(self.seed(self.value(seed)), self.value(counter)))
        return rebuild(e, self.value)

    def position(self, e: Expr) -> Expr:
        """An index at the batch's element at hand: what it reads are integers, and these do not promote."""
        match e:
            case Name(name) if name in self.axis:
                return self.read(name, ())
            case Access(tensor, index):
                return replace(self.read(tensor, tuple(map(self.position, index))), span=e.span)
            case Call("shape", (Name(tensor), axis)):
                return self.shape(tensor, axis)
            case Aggregate():
                return rebuild(e, self.value)
        return rebuild(e, self.position)

    def seed(self, seed: Expr) -> Expr:
        """That of the batch's element at hand."""
        return seed + self.variable * self.stride if self.different else seed

    @cached_property
    def stride(self) -> Int:
        """Between the seeds of elements: not that of a batch whose elements these are batches of."""
        every = (e for s in self.program.statements for e in walk(*expressions(s)))
        there = {e.value for e in every if isinstance(e, Int)}
        found = next((n for n in STRIDES if n not in there), None)
        if found is None:
            raise Unsupported(f"different random numbers for batches in more than {len(STRIDES)} levels")
        return Int(found)

    def unbatched(self, e: Expr) -> Expr:
        """An expression that does not depend on the batch's element; the sizes that it asks for are elements'."""
        match e:
            case Call("shape", (Name(tensor), axis)):
                return self.shape(tensor, axis)
        return rebuild(e, self.unbatched)

    def shape(self, tensor: str, axis: Expr) -> Expr:
        """The size of a dimension of an element's tensor."""
        if tensor in self.axis:
            at = self.axis[tensor]
            if isinstance(axis, Int):
                axis = Int(axis.value + (axis.value >= at))
            elif at == 0:
                axis = axis + Int(1)
            else:
                tensor, axis = self.whole(tensor).name, axis + Int(1)
        return Call("shape", (Name(tensor), axis))

    def _shape_vector(self, s: Statement, tensor: str) -> None:
        """`shape(X)` without the batch's dimension."""
        whole = self.emit(
            replace(s, output=self.names.fresh(s.output), body=Call("shape", (self.whole(tensor),))), False
        )
        (d,) = self.variables(1)
        count = Call("shape", (Name(whole), Int(0))) - Int(1)
        self.emit(Statement(s.output, (d,), (count,), Access(whole, (d + Int(1),)), span=s.span), False)

    def note(self, s: Statement) -> None:
        """Keep what is known of a statement that the program does not have."""
        self.known[s.output] = statement_extent(s, self.known)
        self.ranks.add(s)
        self.scalars.add(s)

    # outputs

    def _output(self, output: str, axis: int | None) -> str:
        """The name of the tensor that holds an output with its batch dimension in its place."""
        if output not in self.axis and axis is None:
            return output
        if axis is None:
            raise InputMistake(f"{output} depends on the element of the batch, so it has a batch dimension")
        if self.axis.get(output) == axis:
            return output
        rank = self.ranks.of(output) + 1
        if not -rank <= axis < rank:
            told = f"{output} has {rank} dimensions with the batch's, so none is number {axis}"
            raise InputMistake(told, hint=f"out_dims counts them from 0 to {rank - 1}")
        axis %= rank
        if self.axis.get(output) == axis:
            return output
        index: list[Expr] = list(self.variables(rank - 1))
        sizes, body = list(self.sizes(output)), self.read(output, index)
        index.insert(axis, self.variable)
        sizes.insert(axis, self.size)
        made = Statement(self.names.fresh(output), tuple(index), tuple(sizes), body)
        self.statements.append(made)
        return made.output


def _check(program: Program, in_axes: Sequence[int | None], randomness: str) -> None:
    """What is refused whatever the ranks are."""
    batched = [i.name for i, axis in zip(program.inputs, in_axes, strict=True) if axis is not None]
    if not batched:
        raise InputMistake("no input is batched", hint="give at least one input a batch dimension")
    for name in size_inputs(program):
        if name in batched:
            raise SizeMistake(f"{name} is used in a size, and all elements of a batch have the same sizes")
    if randomness not in RANDOMNESS:
        raise InputMistake(f"randomness is one of {', '.join(RANDOMNESS)}, not {randomness!r}")
    if randomness == "error" and any(map(_draws, program.statements)):
        raise InputMistake(
            "the program draws random numbers", hint='randomness="same" or "different" says which ones a batch gets'
        )


def _ranks_of_elements(program: Program, in_axes: Sequence[int | None]) -> dict[str, int]:
    """The ranks of batched inputs that their elements tell."""
    read = ranks_of_reads(program)
    batched = (i.name for i, axis in zip(program.inputs, in_axes, strict=True) if axis is not None)
    return {name: read[name] for name in batched if name in read}


def _below(e: Expr) -> tuple[Expr, ...]:
    return (e.args[0],) if isinstance(e, Call) and e.function == "index" else children(e)


def _is_draw(e: Expr) -> bool:
    return isinstance(e, Call) and e.function in RANDOM


def _draws(s: Statement) -> bool:
    return any(_is_draw(e) for e in walk(*expressions(s)))
