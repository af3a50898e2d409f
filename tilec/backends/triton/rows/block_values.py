"""Values of a group's statements over a block of rows and columns: at each point, and as statistics of the rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Kernel, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.fusion.groups import conditions
from tilec.backends.triton.rows.online_softmax import Rescaled
from tilec.backends.triton.rows.statistics import BlockReduction, Running, combined_at_once, is_short, share_an_exchange
from tilec.ir.program import Access, Expr, Statement, index_variables, value_accesses, variables_of
from tilec.ir.types import NARROW


class BlockValues:
    """The lines that compute values, in the kernel `k`. `filled`: every block of columns is full."""

    def __init__(self, k: Kernel, made: Rescaled, filled: bool):
        self.k, self.group, self.types, self.filled = k, made.group, made.types, filled
        self.maxima, self.places = made.maxima, made.places
        self.values: dict[Expr, ScalarValue] = {}  # of members, at hand where the next line goes
        places = [s for s in made.group.statements if s.output in made.places]
        last = {made.places[s.output] for s in places if s.aggregation == "max"}
        self.running = Running(k.names, made.maxima, made.places, last)
        self.count = 0

    def _evaluate(self, frame: Frame, statements: Sequence[Statement], running: Collection[str] = ()) -> None:
        """Values of statements in order; those in `running` are added to their accumulators."""
        roots = [r for s in statements for r in (s.body, *s.guards)]
        evaluator = TritonScalars.of(frame, statements, self.values)
        frame.given, frame.made = self.values, {s.output for s in self.group.statements}
        evaluator.read_first(*roots, made={s.output for s in self.group.statements})
        pending: list[BlockReduction] = []
        ends = [] if self.filled else [frame.spread("col_in", "col")]
        for s in statements:
            target = Access(s.output, s.index or ())
            if target in self.values:
                continue
            if any(a.tensor == r.statement.output for a in value_accesses(s) for r in pending):
                self._reduce(frame, evaluator, pending)
            tests = frame.tests(conditions(s, self.group, self.types))
            tests += map(evaluator.test, s.guards)
            value = evaluator.value(s.body)
            if s.output in self.group.scans:
                self.values[target] = evaluator.give(target, self._scanned(frame, s, evaluator, [*tests, *ends]))
            elif s.output in self.group.sums:
                accumulator = self.running.accumulators[s.output]
                inside = [frame.spread("row_in", "row"), *(ends if self.group.totals else ())]
                code = self._spread(s, evaluator, [*tests, *inside], accumulator)
                self.k.add(*accumulator.step(code))
            elif s.output in running:
                accumulator = self.running.accumulators[s.output] = self._accumulator(s)
                rowwise = s.output in self.maxima.values()
                self.k.scopes[0].lines += accumulator.start("(BM,)" if rowwise else "(BM, BN)")
                code = self._spread(s, evaluator, [*tests, *ends], accumulator)
                self.k.add(*self.running.stepped(s.output, code))
            elif self.group.reductions(s):
                accumulator = self._accumulator(s)
                code = self._spread(s, evaluator, [*tests, *ends], accumulator)
                pending.append(BlockReduction(s, accumulator, code))
            else:
                self.values[target] = evaluator.give(target, self._plain(frame, s, evaluator, value, tests))
        self._reduce(frame, evaluator, pending)

    def _reduce(self, frame: Frame, evaluator: TritonScalars, pending: list[BlockReduction]) -> None:
        """Combine blocks of values along the columns; sums of one type go together, which takes one exchange."""
        while pending:
            r = pending[0]
            group = [o for o in pending if o is r or share_an_exchange(o.accumulator, r.accumulator)]
            pending[:] = [o for o in pending if o not in group]
            self.k.add(*combined_at_once([(o.accumulator, o.block) for o in group]))
            for o in group:
                s, result = o.statement, o.accumulator.result()
                target = Access(s.output, s.index or ())
                evaluator.give(target, self._give_statistic(frame, s, o.accumulator, result))

    def _plain(
        self, frame: Frame, s: Statement, evaluator: TritonScalars, value: ScalarValue, tests: Sequence[str]
    ) -> ScalarValue:
        """The value of a statement that aggregates nothing, the identity where the point is not valid."""
        t = self.types[s.output]
        compute_dtype = compute_dtype_of(t.dtype)
        code = evaluator.text(s.body, compute_dtype)
        code = where_text(tests, code, Accumulator(s.aggregation, compute_dtype).identity_text)
        read = [value] if s.guard is None else [value, evaluator.value(s.guard)]
        variables = frozenset(variables_of(s)).union(*(v.variables for v in read))  # those of members' values too
        exact = value.exact and value.type.dtype == t.dtype
        if self._rounds(s) and not exact:
            code, exact = f"({code}).to({triton_type(t.dtype)}).to({triton_type(compute_dtype)})", True
        return ScalarValue(frame.assign("at", code, variables), t.element(), compute_dtype, variables, exact=exact)

    def _scanned(self, frame: Frame, s: Statement, evaluator: TritonScalars, tests: Sequence[str]) -> ScalarValue:
        """What a scan of a row's columns makes of a block of values."""
        scan, t = self.group.scans[s.output], self.types[s.output]
        accumulator, rounds = Accumulator.of(s.aggregation, t.dtype), self._rounds(s)
        code = self._spread(s, evaluator, tests, accumulator)
        if scan.before:
            both = [self.k.names.fresh(n) for n in ("whole", "before")]
            nothing = f"tl.full((BM, BN), {accumulator.identity_text}, {triton_type(accumulator.dtype)})"
            self.k.assign(both, f"tl.associative_scan(({code}, {nothing}), 1, {scan.then[:-1]}_before_)")
            code = both[1]
        else:
            code = f"tl.associative_scan({code}, 1, {scan.then}{'' if scan.rising else ', reverse=True'})"
        code += f".to({triton_type(t.dtype)}).to({triton_type(accumulator.dtype)})" if rounds else ""
        variables = frozenset(self.group.extent)
        name = frame.assign("scanned", code, variables)
        return ScalarValue(name, t.element(), accumulator.dtype, variables, exact=rounds)

    def _rounds(self, s: Statement) -> bool:
        return s.output in self.group.rounded and self.types[s.output].dtype in NARROW

    def _accumulator(self, s: Statement) -> Accumulator:
        suffix = ""
        while not suffix or any(self.k.names.fresh(n) != n for n in (f"acc{suffix}", f"top{suffix}", f"total{suffix}")):
            self.count += 1
            suffix = f"_{self.count}"
        dtype = "int32" if s.output in self.places and is_short(s, self.group.extent) else self.types[s.output].dtype
        # two sums of exponentials in one walk take half as long again where each chooses its exponential
        alone = sum(x.aggregation == "logsumexp" for x in self.group.statements) == 1
        return replace(Accumulator.of(s.aggregation, dtype), suffix=suffix, choosing=alone)

    def _spread(self, s: Statement, evaluator: TritonScalars, tests: Sequence[str], accumulator: Accumulator) -> str:
        """A name of the block of values, the identity where the point does not count."""
        block = f"tl.broadcast_to({evaluator.text(s.body, accumulator.term_dtype)}, (BM, BN))"
        name = self.k.names.fresh("value")
        self.k.assign(name, where_text(tests, block, accumulator.identity_text))
        return name

    def _give_statistic(self, frame: Frame, s: Statement, accumulator: Accumulator, result: str) -> ScalarValue:
        t = self.types[s.output]
        compute_dtype = compute_dtype_of(t.dtype)
        if accumulator.dtype == "int32" != compute_dtype and accumulator.aggregation == "min":
            dtype, empty = triton_type(compute_dtype), replace(accumulator, dtype=compute_dtype).identity_text
            none = f"{result} == {accumulator.identity_text}"
            result = f"tl.where({none}, tl.full((), {empty}, {dtype}), {result}.to({dtype}))"
        cast = f".to({triton_type(t.dtype)})" if self._rounds(s) else ""
        cast += "" if compute_dtype == accumulator.dtype and not cast else f".to({triton_type(compute_dtype)})"
        variables = frozenset(index_variables(*(s.index or ())))
        name = frame.assign("statistic", f"({result}){cast}[:, None]", variables)
        value = ScalarValue(name, t.element(), compute_dtype, variables, exact=self._rounds(s))
        self.values[Access(s.output, s.index or ())] = value
        return value
