"""What a call keeps for its backward pass: the least that its cost rule allows.

Values and gradient are written as one flat program, which is then cut in two. What the gradient part computes of the
inputs alone is either computed again from inputs that are kept, or kept itself. It is kept

- where it is small: at most 1/SMALL_FRACTION of the inputs it is made of (the statistics of a row), and 1/
  OUTPUT_FRACTION where it is an output (a pool's), which whoever reads it keeps as well;
- where it is dear: HEAVY operations a byte or more, HEAVY_SINGLE if no 16-bit values go into it, a recurrence, or
  written at places that are data, for which points would be sorted again, and no larger than all outputs together, so
  that what is kept grows with what the call returns and not with the points it visits;
- where it is dearest: HEAVIEST operations a byte or more, HEAVY of what outputs are made of and no 16-bit values go
  into, and all such take no more than MOST_HEAVY_BYTES (the logits of a linear layer that goes into a cross-entropy, of
  some thousand rows);
- where it is an output and takes the place of an input that is at least as large (exp, a softmax);
- where it is all that is asked of what would be kept, and there anyway: a hidden layer that the next product reads, or
  16-bit sums with their bias, and not the sums, which are rounded before it is added;
- where it says which elements of small windows are their extremum, if less is kept with it (a pool).

An extremum that the gradient looks for among sums computed again, or among what is made of computed values of 16 bits,
is computed again beside them.

A recurrence that is not kept is computed again in the backward pass: whole, or, where the states of all such take more
than TILEC_STATE_BUDGET bytes, in chunks of time (`transforms/checkpoint/chunks.py`), from states that are kept between
these.

An input that neither part reads after that is not kept, and one of which only the shape is asked leaves nothing but its
shape. What is kept beside inputs and outputs is an output of the forward pass that the caller does not see: its own
cotangent, which only derivatives of the gradient have, runs through `extended`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.operands.before_gradient import before_gradient
from tilec.backends.common.operands.extremum_places import TIES, with_extremum_places
from tilec.backends.common.pairs import in_pairs
from tilec.cost import operations, size_in_bytes
from tilec.ir.aggregations import LOGICAL
from tilec.ir.infer import infer
from tilec.ir.program import Access, Expr, Input, Program, Statement, accesses_in, reads, reads_itself
from tilec.ir.types import NARROW, TensorType, Types, is_floating, shapes_in
from tilec.late import puts_off_collection
from tilec.pipeline import bind_flat
from tilec.transforms.autodiff.biased_sums import with_biased_sums
from tilec.transforms.autodiff.grad import are_mixed, grad_with_outputs
from tilec.transforms.autodiff.window_places import with_window_places
from tilec.transforms.bind.bind import bind
from tilec.transforms.checkpoint.backward import Backward, with_fallback
from tilec.transforms.checkpoint.chunks import Chunks, choose_chunks, independent, share_at_once
from tilec.transforms.checkpoint.counts import with_stored_counts
from tilec.transforms.lower.stack_operands import with_stacked_operands
from tilec.transforms.simplify.evaluated import compared_sides, tensors_evaluated, values_read
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_map

SMALL_FRACTION = 8  # what is at most one eighth of its inputs is kept
OUTPUT_FRACTION = 4  # of an output, which somebody reads anyway
HEAVY = 128  # operations a byte from which computing again costs more than writing and reading
HEAVY_SINGLE = 65  # the same of wider values, whose products are slower: up to 64 a chain computes them as fast
HEAVIEST = 512  # the same of 16-bit values, which chains compute again at no cost
MOST_HEAVY_BYTES = 2**28  # bytes that such values may take together
LEAST_WORK_SPARED = 4  # times the work that places of extrema leave, for them to be kept


@dataclass(frozen=True)
class Partition:
    """`forward` gives the outputs and then `extra`; None where there are no extras and the program itself will do.
    `kept`: everything that is kept and its type, inputs first. `extended`: the gradient where extras have cotangents
    too, which come after the outputs' in their order; None where none of them has a derivative. `constant`: extras that
    have none. `chunks`: how both parts fall into chunks of time, where states are computed again so; the states between
    these are the last extras, and the texts of both parts do without them."""

    forward: Program | None
    backward: Backward
    extended: Backward | None
    extra: tuple[str, ...]
    constant: tuple[str, ...]
    kept: dict[str, TensorType]
    chunks: Chunks | None = None


@puts_off_collection
def partition(
    program: Program,
    wrt: Sequence[str],
    types: Types,
    values: Mapping[str, int],
    extras: bool,
    bound: Program | None = None,
    chooses: bool = False,
) -> Partition:
    """Divide values and gradient by `wrt` for inputs of these types. `extras`: may the forward pass have outputs that
    the caller does not see? `bound`: the program bound to these types, if at hand. `chooses`: does a backend leave out
    values that data say nothing reads? Raises what binding raises."""
    plain = _Joint.of(program, wrt, types, values, bound)
    if not extras:
        return _partition(plain, program, wrt, types, extras)
    joints = [_with_places(plain, program.outputs), plain]
    if chooses and (placed := _Joint.of(program, wrt, types, values, bound, plain)).pays(program.outputs):
        joints.insert(0, placed)
    for joint in joints:
        parts = _partition(joint, program, wrt, types, extras)
        if joint.places <= set(parts.kept):  # else derivatives of the places ask for more
            break
    return _with_states(joint, parts, program.outputs)


def _with_places(plain: _Joint, outputs: Sequence[str]) -> _Joint:
    """The same with tensors that say where extrema stand, if all of these are kept and less is."""
    joint = plain.with_places()
    if not joint.places:
        return plain
    kept, without = (set(x.backward(x.kept(outputs)).values) for x in (joint, plain))
    return joint if joint.places <= kept and joint.bytes_of(kept) < plain.bytes_of(without) else plain


def _partition(joint: _Joint, program: Program, wrt: Sequence[str], types: Types, extras: bool) -> Partition:
    outputs = program.outputs
    kept = joint.kept(outputs) if extras else joint.found_again(joint.with_outputs(outputs, ()))
    backward = joint.backward(kept)
    if (other := joint.otherwise) is not None:
        more = other.kept(outputs)
        backward = with_fallback(backward, other.backward(more), dict.fromkeys(joint.places, TIES), joint.types)
        kept = tuple(dict.fromkeys((*kept, *more)))
    extra = tuple(t for t in kept if t not in outputs)
    if not extra:
        return Partition(None, backward, None, (), (), joint.typed(backward.values))
    inputs = joint.program.inputs[: len(program.inputs)]
    forward = Program(None, inputs, (*outputs, *extra), drop_dead(joint.forward_statements(), (*outputs, *extra)))
    constant = tuple(t for t in extra if not is_floating(joint.types[t].dtype) or t not in joint.varying(wrt))
    if len(constant) == len(extra):
        return Partition(forward, backward, None, extra, constant, joint.typed(backward.values))
    beyond = _Joint.of(forward, wrt, types, {})
    if joint.places:
        beyond = beyond.with_places()
    extended = beyond.backward(beyond.found_again(kept))
    needed = joint.typed((*backward.values, *extended.values))
    if set(needed) - set(backward.values):  # derivatives of the extras ask for more
        plain = joint.backward(joint.found_again(joint.with_outputs(outputs, ())))
        if joint.bytes_of(needed) > joint.bytes_of(plain.values):
            return Partition(None, plain, None, (), (), joint.typed(plain.values))
    return Partition(forward, backward, extended, extra, constant, needed)


def _with_states(joint: _Joint, parts: Partition, outputs: tuple[str, ...]) -> Partition:
    """The same parts in chunks of time, where the rule says so and they fall into chunks."""
    backward = parts.backward
    again = independent(backward.program.statements, backward.cotangents)
    share = share_at_once(backward.program, backward.cotangents, joint.types)
    if share is None:
        return parts
    names = Names.of(joint.program)
    kept = {name: names.fresh(f"{name}_kept") for name in again}
    chunks = choose_chunks(backward.program, infer(backward.program, backward.types), kept, share)
    if chunks is None:
        return parts
    states = {s.kept: chunks.kept_type(s, joint.types[s.recurrence]) for s in chunks.states}
    extra = (*parts.extra, *states)
    made = [chunks.kept_statement(s, joint.types[s.recurrence]) for s in chunks.states]
    all_outputs = (*outputs, *extra)
    statements = drop_dead([*joint.forward_statements(), *made], all_outputs)
    forward = Program(None, joint.program.inputs[: len(joint.inputs)], all_outputs, statements)
    inputs = (*backward.program.inputs, *(Input(n, t.shape) for n, t in states.items()))
    backward = replace(
        backward,
        program=replace(backward.program, inputs=inputs),
        values=(*backward.values, *states),
        types={**backward.types, **states},
    )
    constant, all_kept = (*parts.constant, *states), {**parts.kept, **states}
    return Partition(forward, backward, parts.extended, extra, constant, all_kept, chunks)


@dataclass(frozen=True)
class _Joint:
    """Values and gradient as one flat program: what reads no cotangent belongs to either part. `places`: tensors that
    say where extrema stand, which are there to be kept. `otherwise`: the gradient where these say that it differs."""

    program: Program
    inputs: tuple[str, ...]
    cotangents: tuple[str, ...]
    gradients: tuple[str, ...]
    types: Types
    places: frozenset[str] = frozenset()
    otherwise: _Joint | None = None

    @staticmethod
    def of(
        program: Program,
        wrt: Sequence[str],
        types: Types,
        values: Mapping[str, int],
        bound: Program | None = None,
        otherwise: _Joint | None = None,
    ) -> _Joint:
        inputs = {name: types[name] for name in program.input_names()}
        bound = bound or bind(program, inputs, values)
        outputs = infer(bound, inputs)
        written, bound = before_gradient(program, bound, inputs, values)
        divided = with_stacked_operands(in_pairs(written, bound, inputs), bound, inputs)
        found = with_extremum_places(divided, bound, inputs) if otherwise is not None else None
        divided, instead = (divided, {}) if found is None else (found.program, found.at_place)
        joint = grad_with_outputs(divided, wrt, are_mixed(inputs.values()), instead)
        cotangents = joint.input_names()[len(inputs) :]
        for name, o in zip(cotangents, program.outputs, strict=True):
            t = outputs[o]
            inputs[name] = TensorType(t.shape, t.dtype if is_floating(t.dtype) else "float32")
        counted = with_stored_counts(bind_flat(joint, inputs, values), inputs, cotangents)
        flat = with_biased_sums(counted, inputs, cotangents)
        gradients = flat.outputs[len(program.outputs) :]
        places = frozenset(() if found is None else found.places.values())
        return _Joint(flat, program.input_names(), cotangents, gradients, infer(flat, inputs), places, otherwise)

    def pays(self, outputs: Sequence[str]) -> bool:
        """Whether the gradient by places takes little beside the one that it is given otherwise."""
        there, other = self.places and self.places <= self.types.keys(), self.otherwise
        if not there or other is None or any(self.types.get(n) != other.types[n] for n in other.kept(outputs)):
            return False
        work = [sum(operations(s, shapes_in(x.types)) for s in x.needed(x.kept(outputs))) for x in (self, other)]
        return LEAST_WORK_SPARED * work[0] <= work[1]

    def with_places(self) -> _Joint:
        """The same with tensors that say where the extrema of windows stand."""
        flat, places = with_window_places(self.program, self.types, self.cotangents)
        if not places:
            return self
        inputs = {name: self.types[name] for name in flat.input_names()}
        return replace(self, program=flat, types=infer(flat, inputs), places=self.places | places)

    def forward_statements(self) -> tuple[Statement, ...]:
        """Those that depend on no cotangent."""
        beyond = set(self.cotangents)
        found = []
        for s in self.program.statements:
            if beyond.isdisjoint(reads(s)):
                found.append(s)
            else:
                beyond.add(s.output)
        return tuple(found)

    def varying(self, wrt: Collection[str]) -> set[str]:
        """Names that depend on the inputs `wrt`."""
        found = set(wrt)
        for s in self.program.statements:
            if not found.isdisjoint(reads(s)):
                found.add(s.output)
        return found

    def needed(self, kept: Collection[str]) -> tuple[Statement, ...]:
        """The statements that the gradients need where `kept` is at hand."""
        return drop_dead([s for s in self.program.statements if s.output not in kept], self.gradients)

    def backward(self, kept: Collection[str]) -> Backward:
        statements = self.needed(kept)
        mentioned = {name for s in statements for name in reads(s)} | set(self.gradients)
        read = {name for s in statements for name in values_read(s)} | set(self.gradients)
        values = tuple(n for n in (*self.inputs, *kept) if n in read)
        shapes = tuple(n for n in self.inputs if n in mentioned and n not in read)
        names = (*values, *shapes, *self.cotangents)
        inputs = tuple(Input(n, self.types[n].shape) for n in names)
        types = {n: self.types[n] for n in names}
        return Backward(Program(None, inputs, self.gradients, statements), values, shapes, self.cotangents, types)

    def bytes_of(self, names: Iterable[str]) -> int:
        return sum(size_in_bytes(self.types[n]) for n in names)

    def typed(self, names: Collection[str]) -> dict[str, TensorType]:
        """Each once, inputs first, in the order in which they are assigned."""
        every = (*self.inputs, *(s.output for s in self.program.statements))
        return {n: self.types[n] for n in every if n in names}

    # the rule

    def kept(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """What to keep beside inputs, without what only looks equal."""
        return self.found_again(self.with_operands(self.choose(outputs), outputs))

    def choose(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """What to keep beside inputs."""
        forward = self.forward_statements()
        made_of = self._made_of(forward)
        most = self.bytes_of(dict.fromkeys(outputs))
        shapes = shapes_in(self.types)
        computed = {s.output for s in drop_dead(forward, outputs)}  # by the forward pass, whatever is kept
        candidates = []
        beside = 0
        for s in forward:
            t, size = self.types[s.output], size_in_bytes(self.types[s.output])
            if not self._may_be_kept(t):
                continue
            fraction = OUTPUT_FRACTION if s.output in outputs else SMALL_FRACTION
            small = s.output in self.places or size * fraction <= self.bytes_of(made_of[s.output])
            work = operations(s, shapes)
            scattered = any(accesses_in(*(s.index or ())))
            halves = any(self.types[n].dtype in NARROW for n in values_read(s))
            heavy = HEAVY if halves else HEAVY_SINGLE
            compute_heavy = size <= most and (reads_itself(s) or scattered or work >= heavy * size)
            heaviest = HEAVY if s.output in computed and not halves else HEAVIEST
            if not (small or compute_heavy) and work >= heaviest * size and beside + size <= MOST_HEAVY_BYTES:
                beside += size
                compute_heavy = True
            if small or compute_heavy:
                candidates.append(s.output)
        return self.with_outputs(outputs, self._frontier(candidates))

    def with_operands(self, kept: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
        """`kept` with what alone is made of it in its place: operands of products, maps of 16-bit sums."""
        forward, found = self.forward_statements(), list(kept)
        sums = (s for s in drop_dead(forward, outputs) if s.aggregation == "sum")
        products = {n for s in sums for n in reads(s) if len(reads(s)) > 1}
        for k, name in enumerate(found):
            readers = [s for s in self.needed(found) if name in reads(s) and name not in outputs]
            if len(readers) == 1 and readers[0] in forward and is_map(readers[0]):
                operand, t = readers[0].output, self.types[name]
                if self.types[operand] == t and operand not in found and (operand in products or t.dtype in NARROW):
                    found[k] = operand
        return tuple(found)

    def with_outputs(self, outputs: Sequence[str], kept: Sequence[str]) -> tuple[str, ...]:
        """`kept`, and each output that lets inputs go which are as large, or 16-bit sums, of which it was made before
        they were rounded."""
        assigned = {s.output for s in self.forward_statements()}
        chosen = tuple(kept)
        for o in dict.fromkeys(outputs):
            if o in assigned and o not in chosen and self._may_be_kept(self.types[o]):
                larger = (*chosen, o)
                after, before = self.backward(larger), self.backward(chosen)
                spared = assigned & {s.output for s in before.program.statements if s.aggregation == "sum"}
                spared -= {s.output for s in after.program.statements}
                fewer = self.bytes_of(after.values) <= self.bytes_of(before.values)
                if o in after.values and (fewer or any(self.types[n].dtype in NARROW for n in spared)):
                    chosen = larger
        return tuple(n for n in self.backward(chosen).values if n in chosen)

    def found_again(self, kept: Sequence[str]) -> tuple[str, ...]:
        """`kept` without extrema that the gradient looks for, by equality, among values that it computes again, and
        without what was counted so: another kernel may round a sum otherwise, and then no value equals the extremum. So
        it is with an extremum of what is made of 16-bit values that its own kernel computed, and need not round."""
        made = {s.output: s for s in self.program.statements}
        extrema = {name for name, s in made.items() if s.aggregation in ("max", "min")}
        while True:
            again = self._summed_again(kept)
            compared = [
                (s.output, names)
                for s in made.values()
                for sides in compared_sides(s)
                if (names := tensors_evaluated(*sides))
                and (names & again or any(self._unrounded(e, made, kept) for e in sides))
            ]
            sought = {n for _, names in compared for n in names & extrema}
            counted = {output for output, names in compared if not sought.isdisjoint(names)}
            left = tuple(n for n in kept if n not in sought | counted)
            if len(left) == len(kept):
                return left
            kept = left

    def _unrounded(self, e: Expr, made: Mapping[str, Statement], kept: Collection[str]) -> bool:
        """Whether a side of a comparison is computed of 16-bit values that are computed themselves. An element that is
        kept is not: the greatest is rounded as each is."""
        if isinstance(e, Access):
            s = made.get(e.tensor)
            return s is not None and e.tensor not in kept and any(map(self._computed_narrow, values_read(s)))
        return any(map(self._computed_narrow, tensors_evaluated(e)))

    def _computed_narrow(self, name: str) -> bool:
        return self.types[name].dtype in NARROW and name not in self.program.input_names()

    def _summed_again(self, kept: Sequence[str]) -> set[str]:
        """What the gradient computes again that sums of floating values go into."""
        found: set[str] = set()
        for s in self.needed(kept):
            summed = s.aggregation != "assign" and s.aggregation not in ("max", "min", *LOGICAL)
            if is_floating(self.types[s.output].dtype) and (summed or not found.isdisjoint(values_read(s))):
                found.add(s.output)
        return found

    def _may_be_kept(self, t: TensorType) -> bool:
        """Weak values and integers of rank 0 mean another thing as inputs: they are computed again."""
        return not t.weak and (is_floating(t.dtype) or t.shape != ())

    def _frontier(self, candidates: Sequence[str]) -> tuple[str, ...]:
        """The candidates that the gradient reads, without those that are elementwise made of others."""
        needed = self.backward(candidates)
        kept = [c for c in candidates if c in needed.values]
        for s in reversed(self.program.statements):
            if s.output in kept and s.aggregation == "assign" and not reads_itself(s):
                size = size_in_bytes(self.types[s.output])
                if all(n in kept and size_in_bytes(self.types[n]) <= size for n in reads(s)):
                    kept.remove(s.output)
        return tuple(kept)

    def _made_of(self, statements: Sequence[Statement]) -> dict[str, set[str]]:
        """For each name the inputs whose values it depends on."""
        found = {name: {name} for name in self.inputs}
        for s in statements:
            found[s.output] = set().union(*(found[n] for n in values_read(s) if n in found))
        return found
