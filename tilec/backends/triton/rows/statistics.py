"""Statistics of rows while they are found: what a block of values does to them, and how a row's come of the block's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import FreshNames
from tilec.backends.common.domain import Domain
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.ir.index import linear
from tilec.ir.program import Call, Inside, Statement
from tilec.ir.types import is_floating

JOINT = {4: "add_four_", 2: "add_two_"}
LARGEST_SHORT = 2**31 - 1


@dataclass(frozen=True)
class BlockReduction:
    """A statistic whose values stand in a block of that name."""

    statement: Statement
    accumulator: Accumulator
    block: str


def is_short(s: Statement, extent: Mapping[str, int]) -> bool:
    """Whether the numbers of places that a statement gives have 31 bits, the largest number of these aside."""
    body = s.body
    while isinstance(body, Call) and body.function == "mul" and isinstance(body.args[1], Inside):
        body = body.args[0]
    low, high = Domain(s, dict.fromkeys(extent, 0), extent, (), None).interval(linear(body))
    return 0 <= low and high < LARGEST_SHORT


def share_an_exchange(a: Accumulator, b: Accumulator) -> bool:
    """Whether one exchange serves both."""
    return a.aggregation == b.aggregation == "sum" and a.dtype == b.dtype


def combined_at_once(blocks: Sequence[tuple[Accumulator, str]]) -> Iterator[CodeLine]:
    """Lines that combine blocks of values along the columns, of which those of several `share_an_exchange`."""
    rest = list(blocks)
    while rest:
        n = next((n for n in JOINT if n <= len(rest)), 1)
        part, rest = rest[:n], rest[n:]
        if n == 1:
            yield from part[0][0].at_once(part[0][1], 1)
        else:
            values = ", ".join(block for _, block in part)
            yield assign([a.state[0] for a, _ in part], f"tl.reduce(({values}), 1, {JOINT[n]})")


class Running:
    """`accumulators`: by output, filled by whoever starts them. `maxima`: by sums that are relative to one, which.
    `places`: by first and last places of an extreme, of which; `last`: extremes whose last place is asked for."""

    def __init__(self, names: FreshNames, maxima: Mapping[str, str], places: Mapping[str, str], last: Collection[str]):
        self.names, self.maxima, self.places, self.last = names, maxima, places, last
        self.accumulators: dict[str, Accumulator] = {}
        self._relative: dict[str, tuple[str, str]] = {}  # by maximum: how earlier sums fade, what a value weighs
        self._better: dict[str, str] = {}  # by extreme: whether a block's values beat those before
        self._equal: dict[str, str] = {}  # the same: whether they are equal

    def stepped(self, output: str, code: str) -> list[CodeLine]:
        """Lines that take a block of values, of that name, into a statistic."""
        accumulator = self.accumulators[output]
        (acc, *_) = accumulator.state
        if output in self.maxima.values():
            top, fading, part = (self.names.fresh(n) for n in ("greatest", "fading", "part"))
            self._relative[output] = fading, part
            return [
                assign(top, f"maximum_({acc}, tl.reduce({code}, 1, maximum_))"),
                assign(fading, f"shifted_exp_({acc}, {top})[:, None]"),
                assign(part, f"shifted_exp_({code}, {top}[:, None])"),
                assign(acc, top),
            ]
        if output in self.maxima:
            fading, part = self._relative[self.maxima[output]]
            return [assign(acc, f"{acc} * {fading} + {code} * {part}")]
        if output in self.places.values():
            better = self._better[output] = self.names.fresh("better")
            test = f"{code} {'>' if accumulator.aggregation == 'max' else '<'} {acc}"
            test = f"({test}) | (({code} != {code}) & ({acc} == {acc}))" if is_floating(accumulator.dtype) else test
            tests = [assign(better, test)]
            if output in self.last:
                equal = self._equal[output] = self.names.fresh("equal")
                tests.append(assign(equal, f"({code} == {acc}) | (({code} != {code}) & ({acc} != {acc}))"))
            return [*tests, *accumulator.step(code)]
        if output in self.places:
            better = self._better[self.places[output]]
            if accumulator.aggregation == "max":  # the last place
                after = f"tl.where({self._equal[self.places[output]]}, tl.maximum({acc}, {code}), {acc})"
                return [assign(acc, f"tl.where({better}, {code}, {after})")]
            return [assign(acc, f"tl.where({better} | ({acc} == {accumulator.identity_text}), {code}, {acc})")]
        return accumulator.step(code)

    def ended(self, outputs: Sequence[str]) -> list[CodeLine]:
        """Lines that make rows' statistics of the blocks' of their columns."""
        lines: list[CodeLine] = []
        ended: list[CodeLine] = []
        lanes: dict[str, str] = {}
        sums: dict[str, list[Accumulator]] = {}
        for output in outputs:
            accumulator = self.accumulators[output]
            (acc, *_) = accumulator.state
            if output in self.maxima.values():
                continue
            if output in self.places.values():
                lanes[output] = self.names.fresh("lanes")
                lines.append(assign(lanes[output], acc))
            if output in self.places:
                of = lanes[self.places[output]]
                (top,) = self.accumulators[self.places[output]].state
                there = f"({of} == {top}[:, None]) | ({of} != {of})"
                lines.append(assign(acc, f"tl.where({there}, {acc}, {accumulator.identity_text})"))
            if output in self.maxima:
                (top,) = self.accumulators[self.maxima[output]].state
                lost = f'tl.where({top} == float("-inf"), float("nan"), 1.0)'  # exp(-inf - -inf)
                ended.append(assign(acc, lost, "*="))
            if share_an_exchange(accumulator, accumulator):
                sums.setdefault(accumulator.dtype, []).append(accumulator)
            else:
                lines += accumulator.reduce(1)
        for group in sums.values():
            lines += combined_at_once([(a, a.state[0]) for a in group])
        return lines + ended
