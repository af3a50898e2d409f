"""How a kernel combines the values of an output element's points: the running state, a step, the result.

logsumexp runs on a maximum and a sum relative to it, all others on one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import literal
from tilec.backends.common.scalar_writer import ScalarWriter
from tilec.backends.common.scalars import accumulation_dtype, identity
from tilec.backends.triton.emit.kernel import triton_type, where_text
from tilec.backends.triton.emit.scalar import compute_dtype_of
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.ir.aggregations import AGGREGATIONS, LOGICAL
from tilec.ir.program import Aggregate, Statement
from tilec.ir.types import NARROW, Types
from tilec.lattice.spans import WIDEST, EndsOf

COMBINE_TEXT = {a.name: a.triton.combine for a in AGGREGATIONS.values() if a.triton}
REDUCE_TEXT = {a.name: a.triton.reduce for a in AGGREGATIONS.values() if a.triton}


@dataclass(frozen=True)
class Accumulator:
    """`dtype`: what values are combined in, never a 16-bit float. `suffix`: of the names of the running values, where a
    kernel has several. `names`: others than these, where it has more. `exponential`: what scales the terms of a sum.
    `choosing`: a term takes one exponential, and a choice what it scales, in the place of two."""

    aggregation: str
    dtype: str
    suffix: str = ""
    names: tuple[tuple[str, str], ...] = ()
    exponential: str = "term_"
    choosing: bool = True

    @staticmethod
    def of(aggregation: str, result: str) -> Accumulator:
        if result == "bool" and aggregation in ("assign", "max"):
            aggregation = "any"
        if result == "bool" and aggregation == "min":
            aggregation = "all"
        dtype = accumulation_dtype(aggregation, result)
        return Accumulator(aggregation, "float32" if dtype in NARROW else compute_dtype_of(dtype))

    @staticmethod
    def over(space: Space, s: Statement, types: Types) -> Accumulator:
        """Of a statement over a space: a sum of integers that cannot leave 32 bits is one of these."""
        found = Accumulator.of(s.aggregation, types[s.output].dtype)
        if found.dtype == "int64" and s.aggregation == "sum":
            span = EndsOf(space.ends, types).of(s.body)
            if span is not None and max(map(abs, span)) * space.count(space.reductions) < WIDEST:
                return replace(found, dtype="int32")
        return found

    @property
    def identity_text(self) -> str:
        return literal(identity(self.aggregation, self.dtype))

    @property
    def state(self) -> tuple[str, ...]:
        """Names of the running values."""
        names = ("top", "total") if self.aggregation == "logsumexp" else ("acc",)
        return tuple(self._name(name) + self.suffix for name in names)

    def _name(self, name: str) -> str:
        return dict(self.names).get(name, name)

    @property
    def term_dtype(self) -> str:
        """What a value is before it is combined: a test where the result is a truth."""
        return "bool" if self.aggregation in LOGICAL else self.dtype

    def term(self, evaluator: ScalarWriter, s: Statement | Aggregate, tests: Sequence[str]) -> str:
        """Text of a point's value, the identity where the guard or a test does not hold."""
        tests = [*tests, *map(evaluator.test, s.guards)]
        return where_text(tests, evaluator.text(s.body, self.term_dtype), self.identity_text)

    def start(self, shape: str, like: str | None = None) -> list[CodeLine]:
        """Lines that begin the state. `like`: a block of zeros whose layout it takes."""
        kind_ = triton_type(self.dtype)

        def filled(value: str) -> str:
            block = f"tl.full({shape}, {value}, {kind_})"
            return block if like is None else f"tl.where({like} == 0, {block}, tl.full({shape}, 1, {kind_}))"

        first = assign(self.state[0], filled(self.identity_text))
        return [first, assign(self.state[1], filled("0"))] if len(self.state) == 2 else [first]

    def step(self, value: str) -> list[CodeLine]:
        """Lines that add a block of values, of the state's own shape."""
        if self.aggregation == "logsumexp":
            (top, total), new_top, scaled = self.state, self._name("new_top"), self._name("scaled")
            kept, added = (f"{self.exponential}({e}, {new_top})" for e in (top, value))
            lines = [assign(total, f"{total} * {kept} + {added}")]
            if self.choosing:  # of the two exponentials, that of the greater is 1
                lines = [
                    assign(scaled, f"{self.exponential}(tl.minimum({top}, {value}), {new_top})"),
                    assign(total, f"tl.where({value} > {top}, {total} * {scaled} + 1, {total} + {scaled})"),
                ]
            return [assign(new_top, f"maximum_({top}, {value})"), *lines, assign(top, new_top)]
        (acc,) = self.state
        combined = COMBINE_TEXT[self.aggregation].format(acc, value)
        return [assign(acc, f"({combined}).to({triton_type(self.dtype)})")]

    def reduce(self, axis: int) -> list[CodeLine]:
        """Lines that combine the state along a dimension."""
        if self.aggregation == "logsumexp":
            (top, total), highest, scaled = self.state, self._name("highest"), self._name("scaled")
            return [
                assign(highest, f"tl.reduce({top}, {axis}, maximum_)"),
                assign(scaled, f"{total} * {self.exponential}({top}, tl.expand_dims({highest}, {axis}))"),
                assign(total, f"tl.sum({scaled}, {axis})"),
                assign(top, highest),
            ]
        return self.at_once(self.state[0], axis)

    def result(self) -> str:
        return f"log_of_sum_({', '.join(self.state)})" if self.aggregation == "logsumexp" else self.state[0]

    def at_once(self, value: str, axis: int) -> list[CodeLine]:
        """Lines that combine all of a block of values along a dimension into the state."""
        if self.aggregation == "logsumexp":
            top, total = self.state
            return [
                assign(top, f"tl.reduce({value}, {axis}, maximum_)"),
                assign(total, f"tl.sum({self.exponential}({value}, tl.expand_dims({top}, {axis})), {axis})"),
            ]
        text = REDUCE_TEXT[self.aggregation].format(value, axis)
        return [assign(self.state[0], f"{text}.to({triton_type(self.dtype)})")]
