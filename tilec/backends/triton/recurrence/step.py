"""The lines of one step of a recurrence: its expression over a block of lanes, nested aggregations as loops over blocks
of lanes x summed points.

What a line depends on decides the loop that it stands in: what does not change from step to step is computed before the
loop over time. A read of the recurrence's own output never leaves that loop, whatever its index says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilec.backends.common.code import literal, python_name, tuple_text
from tilec.backends.common.domain import Condition, access_conditions, free, whole_arguments
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import Frame, free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.plan.lines import assign
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_conditions
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Inside,
    Int,
    Pad,
    Statement,
    accesses_in,
    children,
    index_variables,
    walk,
)
from tilec.ir.types import NARROW

FEW_SUMMED_POINTS = 8  # summed points up to here are walked one by one
MOST_IN_BLOCK = 16384  # lanes x summed points held at once
MOST_PER_THREAD = 64  # of these, where lanes have a sum in common
MOST_ADDRESSES = 8  # elements that a thread reads of each tensor at once, where each has an address of its own
SPECIALISED = 16  # of whose multiples alone Triton knows


@dataclass(frozen=True)
class Moment:
    """The step of a number: `further` ones after `counter`."""

    counter: str
    further: int = 0

    def __str__(self) -> str:
        return f"{self.counter} + {self.further}" if self.further else self.counter


class StepFrame(Frame):
    """A frame of a step. `bound`: the scope in which time, moving lanes and aggregates have got their values: what
    depends on them stands there or deeper. `loaded`: names of elements that were read already. `running`: the test that
    the step takes place at all, where it may not. `shared`: what loads of the own output are told beside. `only`: a
    test where loads are needed at all."""

    def __init__(
        self,
        kernel: Kernel,
        axes: Sequence[str],
        tails: Mapping[str, str],
        inner: Sequence[frozenset[str]],
        loop: SkewedLoop,
        bound: dict[str, int],
    ):
        super().__init__(kernel, axes, tails, *inner)
        self.states, self.time, self.bound = loop.states, loop.time, bound
        self.loaded: dict[Access, str] = {}
        self.running: str | None = None
        self.only: str | None = None
        self.only_depth = 0
        self.shared = ""
        self._least = 0

    def depth(self, variables: frozenset[str]) -> int:
        return max([super().depth(variables), self._least, self.only_depth, *(self.bound.get(v, 0) for v in variables)])

    def dependencies(self, access: Access) -> frozenset[str]:
        return super().dependencies(access) | ({self.time} if self._asks_states(access) else frozenset())

    def _asks_states(self, *roots: Expr) -> bool:
        return any(isinstance(e, Access) and e.tensor in self.states for e in walk(*roots))

    def masked_over(self, access: Access) -> frozenset[str]:
        shape = self.types[access.tensor].shape
        states = [n for e, n in zip(access.index, shape, strict=True) if self._asks_states(e)]
        lanes = self.axes[:1] if states and all(n == 1 for n in states) else ()  # a place that moves nothing
        return super().masked_over(access) | {*lanes}

    def read(self, access: Access, other: float | int | None, wanted: Sequence[str] = ()) -> str:
        if access in self.loaded:
            return self.loaded[access]
        with self._in_the_loop(access, how=self.shared if access.tensor in self.states and self.inner else ""):
            return super().read(access, other)

    def atom(self, e: Expr) -> str:
        with self._in_the_loop(e):
            return super().atom(e)

    def tests(self, conditions: Sequence[Condition]) -> list[str]:
        with self._in_the_loop(*(c.form.to_expr() for c in conditions)):
            return super().tests(conditions)

    def inside(self, access: Access) -> str | None:
        with self._in_the_loop(*access.index):
            return super().inside(access)

    @contextmanager
    def _in_the_loop(self, *roots: Expr, how: str = "") -> Iterator[None]:
        """What is made of the recurrence's own elements stands where these are read, or deeper; its other parts need
        not. `how`: of loads."""
        before = self._least, self.how
        self._least = self.bound.get(self.time, 0) if self.inner and self._asks_states(*roots) else 0
        self.how = how
        try:
            yield
        finally:
            self._least, self.how = before

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        running = [] if self.running is None or self.time not in variables else [self.running]
        return [*super().tail_tests(variables), *running, *([] if self.only is None else [self.only])]

    def store_tests(self) -> list[str]:
        """Texts of the tests that there are such a step and such lanes."""
        tails = [self.spread(text, axis) for axis, text in self.tails.items()]
        return [*tails, *self.tail_tests(frozenset((self.time,)))]


class StepWriter:
    """Writes steps into a kernel. `blocks`: text of the size of each axis's block."""

    frames: type[StepFrame] = StepFrame

    def __init__(self, kernel: Kernel, loop: SkewedLoop):
        self.kernel, self.loop = kernel, loop
        self.bound: dict[str, int] = {}
        self.blocks: dict[str, str] = {"row": "BM"}
        self.warps, self.together = 1, False

    def frame(
        self, axes: Sequence[str], tails: Mapping[str, str], inner: Sequence[frozenset[str]], around: StepFrame | None
    ) -> StepFrame:
        """`around`: the frame of the step that the new one is part of."""
        made = self.frames(self.kernel, axes, tails, inner, self.loop, self.bound)
        if around is not None:
            made.running, made.shared = around.running, around.shared
        return made

    def moment(self, moment: Moment, certain: bool) -> str | None:
        """Bind time to that step; the name of the test that there is such a step, unless it is certain."""
        k, loop, depth = self.kernel, self.loop, len(self.kernel.scopes) - 1
        low, n = k.low(loop.time), k.extent(loop.time)
        count = k.line("count", f"tl.full((), 0, {'tl.int64' if k.int64_index else 'tl.int32'}) + {moment.counter}")
        count = k.line("count", f"{count} + {moment.further}") if moment.further else count
        place = f"{k.line('end', f'{n} - 1', 0)} - {count}" if loop.falling else count
        now = count if (place, low) == (count, "0") else k.line("now", place if low == "0" else f"{low} + {place}")
        k.value_of[loop.time] = now
        self.bound[loop.time] = depth
        return None if certain else k.line("running", f"{count} < {n}")

    def let(self, values: Mapping[str, str]) -> None:
        """Lines that give names their values, in a loop or for it to change."""
        for name, value in values.items():
            self.kernel.assign(name, value)

    def waiting(self, frame: StepFrame, accesses: Sequence[Access], steps: int) -> list[dict[Access, str]]:
        """Names of blocks, of zeros as yet, for what as many steps to come read."""
        result = []
        for _ in range(steps):
            names = {}
            for a in accesses:
                names[a] = self.kernel.names.fresh(f"next_{python_name(a.tensor).lower()}")
                along = frame.dimensions(free_of(a))
                shape = tuple_text([self.blocks[x] if x in along else "1" for x in frame.axes if along])
                self.let({names[a]: f"tl.full({shape}, 0, {triton_type(self.loop.types[a.tensor].dtype)})"})
            result.append(names)
        return result

    def element(self, frame: StepFrame, lanes: int) -> tuple[str, str]:
        """Text and dtype of the elements that a step computes, before they are rounded to the tensor's type. `lanes`:
        the size of the block of lanes."""
        evaluator = self.evaluator(frame, self.loop.roots, lanes)
        return self.selected(frame, self.loop.statement, evaluator, self.kernel.space.valid)

    def selected(
        self, frame: StepFrame, s: Statement, evaluator: TritonScalars, valid: Sequence[Condition]
    ) -> tuple[str, str]:
        """Text and dtype of a statement's elements: its body where the point is valid, elsewhere 0 or the default's."""
        dtype = self.loop.types[s.output].dtype
        tests = frame.tests(valid)
        tests += map(evaluator.test, s.guards)
        compute_dtype = compute_dtype_of(dtype)
        code = evaluator.text(s.body, compute_dtype)
        if not tests:
            return code, compute_dtype
        if s.default is None:
            other = f"tl.full((), {literal(identity('assign', dtype))}, {triton_type(compute_dtype)})"
        else:
            other = frame.read(Access(s.default, s.index or ()), None)
            other = other if compute_dtype == dtype else f"{other}.to({triton_type(compute_dtype)})"
        return where_text(tests, code, other), compute_dtype

    def store(
        self, frame: StepFrame, name: str, compute_dtype: str, output: str | None = None, tests: Sequence[str] = ()
    ) -> None:
        """Store a step's elements, given the name of their block, where the tests hold; `output`: another tensor than
        the recurrence's."""
        k, s = self.kernel, self.loop.statement
        output = output or s.output
        mask = all_text([*frame.store_tests(), *tests, *frame.tests(k.space.stored)])
        dtype = self.loop.types[output].dtype
        cast = "" if compute_dtype == dtype else f".to({triton_type(dtype)})"
        shape = tuple_text([self.blocks[a] for a in frame.axes])
        where = f"tl.broadcast_to({mask}, {shape})" if mask else None
        k.store(frame.element_address(s, output), f"{name}{cast}", where)

    # nested aggregations

    def evaluator(self, frame: StepFrame, roots: Sequence[Expr], points: int) -> TritonScalars:
        """`points`: elements of a block of the frame."""
        given: dict[Expr, ScalarValue] = {
            e: self._aggregate(e, frame, points) for e in reached(roots) if isinstance(e, Aggregate)
        }
        given |= self.insides(frame, roots)
        given |= {e: self._padded(e, frame) for e in reached(roots) if isinstance(e, Pad) and self._is_timed(e)}
        return TritonScalars(frame, *roots, given=given)

    def _is_timed(self, e: Pad) -> bool:
        """Whether a state is padded with elements of tensors, and time alone says where."""
        access, loop = e.access, self.loop
        if not isinstance(access, Access) or access.tensor != loop.own:
            return False
        asked = (*access_conditions(access, loop.types), *whole_arguments(access.index))
        box = self.kernel.space.box(0)
        timed = all(free(c.form) <= {loop.time} for c in asked if not box.holds(c))
        kinds = {type(x) for x in walk(e.value)}
        return timed and Access in kinds and Aggregate not in kinds

    def _padded(self, e: Pad, frame: StepFrame) -> ScalarValue:
        """Such a state: what it is padded with is loaded in the few steps that need it."""
        assert isinstance(e.access, Access)
        state = TritonScalars(frame, e.access).value(e.access)
        inside, t = frame.inside(e.access), expression_type(e, self.loop.types)
        if inside is None:
            return state
        frame.only, frame.only_depth = f"({inside} ^ True)", frame.depth(free_of(e.access))
        evaluator = TritonScalars(frame, e.value)
        value = evaluator.value(e.value)
        frame.only, frame.only_depth = None, 0
        compute_dtype, variables = compute_dtype_of(t.dtype), state.variables | value.variables | {self.loop.time}
        code = f"tl.where({inside}, {evaluator.cast(state, compute_dtype)}, {evaluator.tensor(value, compute_dtype)})"
        return ScalarValue(frame.assign("padded", code, variables), t, compute_dtype, variables, depth=1)

    def insides(self, frame: StepFrame, roots: Sequence[Expr]) -> dict[Expr, ScalarValue]:
        """Values of `pad(in(A[e]), 0) != 0`, which is a test and no number."""
        found: dict[Expr, ScalarValue] = {}
        for e in reached(roots):
            match e:
                case Call("ne", (Pad(Inside(access), Int(0)), Int(0))):
                    inside, t = frame.inside(access), expression_type(e, self.loop.types)
                    known = ScalarValue("True", t, None, number=True)
                    found[e] = known if inside is None else ScalarValue(inside, t, "bool", free_of(access))
        return found

    def _aggregate(self, e: Aggregate, frame: StepFrame, points: int) -> ScalarValue:
        k, loop = self.kernel, self.loop
        t = aggregate_type(e.aggregation, expression_type(e.body, loop.types))
        accumulator = Accumulator.of(e.aggregation, t.dtype)
        count = loop.count(e.bound)
        if not count:
            n = identity(e.aggregation, t.dtype)
            return ScalarValue(literal(n), t, None, number=n)
        own = {w: k.names.fresh(w) for w in ("acc", "top", "total", "new_top", "highest", "scaled", "value", "red")}
        accumulator = replace(accumulator, names=tuple(own.items()))
        alone = count > FEW_SUMMED_POINTS and not frame.dimensions(frozenset(index_variables(e)))
        points = 1 if alone else points
        tiled = count > FEW_SUMMED_POINTS and (alone or len(frame.axes) == 1)
        most = min(MOST_IN_BLOCK, 32 * self.warps * MOST_PER_THREAD) if alone else MOST_IN_BLOCK
        size = max(1, min(power_of_two(count), most // points)) if tiled else 1
        if self.together and size < count and not self._has_vectors(e):
            size = max(1, min(size, 32 * self.warps * MOST_ADDRESSES // points))
        whole = tiled and count <= size
        red, at, first = own["red"], own["value"], k.names.fresh("first")
        tails, axes = dict(frame.tails), list(frame.axes)
        inner = frame.inner if whole else (*frame.inner, frozenset((red, *e.bound)))
        if tiled:
            block = k.names.fresh("BR")
            k.constants[block] = size
            self.blocks[red] = block
            if alone:
                tails, axes = {}, [red]
            else:
                axes.append(red)
            if count % size:
                tails[red] = k.names.fresh(f"{red}_in")
        shape, along = tuple_text([self.blocks[a] for a in axes]), axes.index(red) if tiled else 0

        total = k.count([v for v in e.bound if k.space.largest(v) > 1])
        if not whole:
            rows = (
                tiled and not alone and e.aggregation == "logsumexp"
            )  # whose terms are best combined a block at a time
            k.add(*accumulator.start(f"({self.blocks[axes[0]]},)" if rows else shape))
            k.scopes.append(Scope())
        lines = k.scopes[0 if whole else -1].lines
        lines.append(assign(red, self._summed_place("" if whole else first, block if tiled else None)))
        lines += [assign(tails[red], f"{red} < {total}")] if red in tails else []
        k.decode(Axis(red, e.bound, block if tiled else None), 0 if whole else None)
        within = self.frame(axes, tails, inner, frame)
        evaluator = self.evaluator(within, e.roots, points * size)
        tests = [within.spread(tails[red], red)] if red in tails else []
        tests += within.tests(step_conditions(e.roots, e.constraints, loop.types))
        code = accumulator.term(evaluator, e, tests)
        if whole:
            k.assign(at, f"tl.broadcast_to({code}, {shape})")
            k.add(*accumulator.at_once(at, along))
        else:
            k.assign(at, f"tl.broadcast_to({code}, {shape})" if rows else code)
            if rows:
                before, state = [own["highest"], own["scaled"]], accumulator.state
                k.add(*(assign(x, y) for x, y in zip(before, state, strict=True)))
                k.add(*accumulator.at_once(at, along))
                k.assign(state, f"join_logs_({', '.join((*before, *state))})")
            else:
                k.add(*accumulator.step(at))
            k.close(first, f"range(0, {total}, {block})" if tiled else f"range(0, {total})")
            if tiled and not rows:
                k.add(*accumulator.reduce(along))
        result = accumulator.result()
        if t.dtype in NARROW:
            result = f"{result}.to({triton_type(t.dtype)}).to(tl.float32)"
        name = k.names.fresh("aggregate")
        k.assign(name, result)
        depends = frozenset((*index_variables(e), loop.time, f"={name}"))
        self.bound[f"={name}"] = len(k.scopes) - 1
        return ScalarValue(name, t, compute_dtype_of(t.dtype), depends, exact=True)

    def _summed_place(self, first: str, block: str | None) -> str:
        """Text of the number of the summed point, or of a block of them, from `first` on."""
        if block is None:
            return f"tl.full((), 0, {'tl.int64' if self.kernel.int64_index else 'tl.int32'}) + {first}"
        place = f"{first} + tl.arange(0, {block})" if first else f"tl.arange(0, {block})"
        return f"({place}).to(tl.int64)" if self.kernel.int64_index else place

    def _has_vectors(self, e: Aggregate) -> bool:
        """Whether rows of all that is read begin at whole vectors, so that several elements have one address."""
        strides = (n for a in accesses_in(e.body) for n in self.kernel.strides[a.tensor])
        return all(n == 1 or n % SPECIALISED == 0 for n in strides)


def reached(roots: Sequence[Expr]) -> list[Expr]:
    """Expressions that stand in no aggregation, and these themselves."""
    found: dict[Expr, None] = {}
    stack = list(reversed(roots))
    while stack:
        e = stack.pop()
        found[e] = None
        if not isinstance(e, Aggregate):
            stack.extend(reversed(children(e)))
    return list(found)
