"""What both kernels of a scan have in common (`blocks.py`, `lanes.py`).

`scan` goes through a row, or a chunk of one. Chunks of a row run side by side: `totals` composes the terms of each, and
who goes through a chunk first composes the totals of those before it. The order of all this depends on shapes alone, so
that a result has the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.common.code import literal, python_name, tuple_text
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.epilogue import finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.scan.form import Scan
from tilec.ir.aggregations import LOGICAL
from tilec.ir.program import Expr, Statement

TOTALS = 2048  # of chunks and lanes, composed at a time


@dataclass(frozen=True)
class ScanTiling:
    """Blocks of `steps` x `lanes`, the steps last in memory where `along`; `tiles` such blocks make a chunk (None: a
    row is not cut). `apart`: the block's steps are written out one by one, over lanes alone."""

    steps: int
    lanes: int
    along: bool
    tiles: int | None = None
    warps: int = 4
    apart: bool = False


def workspaces(scan: Scan) -> list[str]:
    """Names of the tensors of the chunks' totals, one a component."""
    return [f"{scan.statement.output}.total{j}" for j in range(len(scan.algebra.dtypes))]


class ScanWriter:
    """What both forms of a scan's kernels have in common; `flat_lanes`: a program has one lane, a scalar."""

    def __init__(self, scan: Scan, view: StridedView, tiling: ScanTiling, epilogue: Sequence[Statement] = ()):
        self.scan, self.view, self.tiling, self.epilogue = scan, view, tiling, epilogue
        self.algebra = scan.algebra
        self.flat_lanes = tiling.lanes == 1  # blocks have no dimension of lanes

    # pieces

    def _begin(self, suffix: str) -> Kernel:
        s = self.scan.statement
        name = python_name(s.output) + suffix
        self.kernel = k = Kernel(name, self.scan.space, self.view.types, self.view.strides, self.view.int64_index)
        for v in self.scan.space.low[0]:
            if v not in self.scan.lanes and v != self.scan.along:
                k.value_of[v] = k.low(v)
        self._along_name = k.names.fresh(python_name(self.scan.along))
        self._shifted = {v: k.names.fresh(python_name(v)) for v in self.scan.circular_shifts}
        self._lanes()
        return k

    def _go_through(self, chunks: int) -> list[str]:
        """Begin the kernel that goes through rows or their chunks; names of what these start from."""
        self._begin("_scan")
        carries = self._start() if chunks == 1 else self._head(chunks)
        self._chunk(chunks > 1)
        return carries

    @property
    def _lane_shape(self) -> str:
        return "()" if self.flat_lanes else "(BL,)"

    def _lanes(self) -> None:
        k = self.kernel
        if self.flat_lanes:
            k.assign("lane", k.program())
        else:
            count = k.count([v for v in self.scan.lanes if k.space.largest(v) > 1])
            k.assign("lane", f"{k.program()} * BL + tl.arange(0, BL)")
            k.assign("lane_in", f"lane < {count}")
            if self.scan.circular_shifts:  # a lane that moves round stays inside only from inside
                k.assign("lane", f"tl.minimum(lane, {count} - 1)")
        self._lane_axis = Axis("lane", self.scan.lanes, None if self.flat_lanes else "BL")
        k.decode(self._lane_axis)
        self._at_rest = {v: k.value_of[v] for v in self.scan.circular_shifts}

    def _full(self, names: Sequence[str], shape: str) -> list[CodeLine]:
        """Lines that make the names what leaves a state alone."""
        parts = zip(names, self.algebra.identity, map(triton_type, self.algebra.dtypes), strict=True)
        return [assign(n, f"tl.full({shape}, {literal(x)}, {t})") for n, x, t in parts]

    def _start(self) -> list[str]:
        """Names of what a row starts from."""
        k = self.kernel
        names = [k.names.fresh("carry") for _ in (self.algebra.dtypes if self.scan.step is None else "1")]
        if self.scan.step is None:
            k.scopes[0].lines += self._full(names, self._lane_shape)
        else:
            self._at("0")
            frame = Frame(k, [] if self.flat_lanes else ["lane"], {} if self.flat_lanes else {"lane": "lane_in"})
            before = self.scan.step.before
            value = TritonScalars(frame, before).text(before, self.scan.step.dtype)
            k.assign(names[0], f"{value if self.flat_lanes else f'tl.broadcast_to({value}, (BL,))'}")
        return names

    def _head(self, chunks: int) -> list[str]:
        """Names of what a chunk starts from: the totals of the chunks before it, composed."""
        k, names = self.kernel, self._start()
        rows = k.number("rows", "rows", self.scan.rows)
        k.constants["BC"] = min(power_of_two(chunks), max(1, TOTALS // self.tiling.lanes))
        to_int64 = ".to(tl.int64)" if self.view.int64_index else ""
        flat = self.flat_lanes
        k.scopes.append(Scope())
        k.assign("chunk", "from_chunk + tl.arange(0, BC)")
        place = f"chunk{to_int64} * {rows} + lane" if flat else f"chunk{to_int64}[:, None] * {rows} + lane[None, :]"
        k.assign("at_chunk", place)
        known = f"(chunk < {PROGRAM[1]})"
        k.assign("known", f"{known if flat else f'{known}[:, None] & lane_in[None, :]'}")
        found = []
        for tensor, start in zip(workspaces(self.scan), self.algebra.identity, strict=True):
            found.append(k.names.fresh("own"))
            k.assign(found[-1], f"tl.load({k.pointer(tensor)} + at_chunk, mask=known, other={literal(start)})")
        loop = ("from_chunk", f"range(0, {PROGRAM[1]}, BC)")
        if self.algebra.commutes:
            found_names = [k.names.fresh("before") for _ in found]
            k.assign(found_names, self._reduced(found, 0))
            k.assign(names, self._then([*names, *found_names]))
            k.close(*loop)
            return names
        pick = f"(tl.arange(0, BC) == BC - 1){'' if flat else '[:, None]'}"
        kinds = map(triton_type, self.algebra.dtypes)
        found = self._scanned(found, 0)
        last = [f"tl.sum(tl.where({pick}, {n}, 0), 0).to({t})" for n, t in zip(found, kinds, strict=True)]
        k.assign("reached", self.algebra.apply.format(*last, "reached"))
        lines = tuple(k.scopes.pop().lines)
        k.assign("reached", names[0])
        k.add(ForLoop(*loop, lines))
        if self.algebra.certified:
            unsure = f"({self.algebra.certified.format('reached')} ^ True)"
            unsure = unsure if flat else f"tl.max(({unsure} & lane_in).to(tl.int32), 0) > 0"
            k.scopes += [Scope(), Scope()]
            self._one_step(names[0], 2)
            lines, outer = tuple(k.scopes.pop().lines), k.scopes.pop().lines
            tiles = k.number("tiles", "tiles", self.tiling.tiles or 1, False)
            chunk_start = f"{k.program(1)} * {tiles} * BT"
            stepped = (*outer, ForLoop("at_step", f"range(0, {chunk_start})", lines))
            k.add(If(unsure, stepped, (assign(names[0], "reached"),)))
        else:
            k.assign(names[0], "reached")
        return names

    def _chunk(self, chunked: bool = True) -> None:
        k = self.kernel
        steps = k.number("steps", "steps", self.scan.steps, False)
        if self.tiling.tiles is None or not chunked:
            k.assign("start", "tl.full((), 0, tl.int64)" if self.view.int64_index else "0")
            k.assign("end", steps)
            return
        tiles = k.number("tiles", "tiles", self.tiling.tiles, False)
        k.assign("start", f"{k.program(1)} * {tiles} * BT")
        k.assign("end", f"tl.minimum(start + {tiles} * BT, {steps})")

    def _at(self, step: str) -> None:
        """Bind `along`, and lanes that turn, at a step, a scalar."""
        k, scan = self.kernel, self.scan
        k.axis_of.pop(scan.along, None)
        name = k.names.fresh(self._along_name)
        k.assign(name, self._value(step))
        k.value_of[scan.along] = name
        for v, shift in scan.circular_shifts.items():
            n = k.extent(v)
            moved = k.names.fresh(self._shifted[v])
            at = f"{step} * {k.number(('turn', v), 'turn', shift, False)} % {n}"
            k.assign(moved, f"{self._at_rest[v]} + {at}")
            k.assign(moved, f"tl.where({moved} >= {n}, {moved} - {n}, {moved})")
            k.value_of[v] = moved
            if self.flat_lanes:
                k.axis_of.pop(v, None)
            else:
                k.axis_of[v] = self._lane_axis

    def _value(self, step: str) -> str:
        """Text of `along` at a step."""
        first = self.scan.first
        if self.scan.rising and not first:
            return step
        return f"{self.kernel.number('first', 'begin', first, False)} {'+' if self.scan.rising else '-'} {step}"

    def _term_test(self, step: str, along: str) -> str:
        k, scan = self.kernel, self.scan
        tests = [f"({step} < {k.number('steps', 'steps', scan.steps, False)})"]
        last = scan.first + (scan.steps - 1) * (1 if scan.rising else -1)
        if min(scan.first, last) < scan.low:
            tests.append(f"({along} >= {k.number('low', 'low', scan.low, False)})")
        if max(scan.first, last) >= scan.low + scan.count:
            tests.append(f"({along} < {k.number('high', 'high', scan.low + scan.count, False)})")
        return " & ".join(tests)

    def _seen_test(self, step: str, along: str) -> str:
        """Text of the test that an element of the output stands beside a step."""
        k, scan = self.kernel, self.scan
        test = f"({step} < {k.number('steps', 'steps', scan.steps, False)})"
        seen_from = scan.shift if scan.rising else scan.size - 1 + scan.shift
        if seen_from == scan.first:
            return test
        return f"{test} & ({along} {'>=' if scan.rising else '<='} {k.number('seen', 'seen', seen_from, False)})"

    def _terms(self, frame: Frame, inside: str, shape: str) -> list[str]:
        """Names of the components of the terms of a block of this shape, where the test `inside` holds."""
        k, scan, s = self.kernel, self.scan, self.scan.statement
        bodies = (s.body,) if scan.step is None else (scan.step.scale, scan.step.offset)
        evaluator = TritonScalars(frame, *s.guards, *bodies)
        tests = [*frame.tests(scan.valid), *map(evaluator.test, s.guards)]
        if scan.step is None:
            valid = all_text([inside, *tests])
            texts = [self._term(evaluator, s.body)]
        else:
            valid = inside
            texts = [evaluator.text(e, scan.step.dtype) for e in bodies]
            if tests:  # what is no point holds 0, whatever came before
                k.assign((counts := k.names.fresh("counts")), all_text(tests))
                zero = literal(self.algebra.identity[1])
                texts = [f"tl.where({counts}, {t}, {z})" for t, z in zip(texts, (zero, "0"), strict=True)]
        texts += ["1.0"] * (len(self.algebra.dtypes) - len(texts))  # sums of exponentials
        k.assign("valid", valid)
        names = []
        for text, start, dtype in zip(texts, self.algebra.identity, self.algebra.dtypes, strict=True):
            name = k.names.fresh("own")
            whole = f"tl.where(valid, {text}, {literal(start)}).to({triton_type(dtype)})"
            k.assign(name, f"tl.broadcast_to({whole}, {shape})")
            names.append(name)
        return names

    def _term(self, evaluator: TritonScalars, body: Expr) -> str:
        s = self.scan.statement
        if s.aggregation in LOGICAL or self.view.types[s.output].dtype == "bool":
            return f"{evaluator.test(body)}.to(tl.int32)"
        return evaluator.text(body, self.algebra.dtypes[0])

    def _scanned(self, names: list[str], axis: int) -> list[str]:
        what = names[0] if len(names) == 1 else tuple_text(names)
        found = [self.kernel.names.fresh("up_to") for _ in names]
        self.kernel.assign(found, f"tl.associative_scan({what}, {axis}, {self.algebra.then})")
        return found

    def _reduced(self, names: Sequence[str], axis: int) -> str:
        what = names[0] if len(names) == 1 else tuple_text(names)
        return f"tl.reduce({what}, {axis}, {self.algebra.then})"

    def _then(self, states: Sequence[str]) -> str:
        return f"{self.algebra.then}({', '.join(states)})"

    def _result(self, states: Sequence[str]) -> str:
        """Text of what an element holds, from the components of a state."""
        return f"log_of_sum_({', '.join(states)})" if len(states) == 2 else states[0]

    def _store_totals(self, flat: Statement, names: Sequence[str], chunks: int) -> Launch:
        k = self.kernel
        rows = k.number("rows", "rows", self.scan.rows)
        chunk = k.program(1)
        mask = None if self.flat_lanes else "lane_in"
        for name, tensor in zip(names, workspaces(self.scan), strict=True):
            k.store(f"{k.pointer(tensor)} + {chunk} * {rows} + lane", name, mask)
        return self._launch(flat, chunks)

    def _store(self, frame: Frame, value: str, tests: Sequence[str]) -> None:
        """Store the block's results, the epilogue's values if there is one."""
        k, s = self.kernel, self.scan.statement
        compute_dtype = self.algebra.dtypes[0]
        if self.view.types[s.output].dtype == "bool":
            value, compute_dtype = f"({value} != 0)", "bool"
        value, compute_dtype = finish(frame, self.scan.space, value, compute_dtype, self.epilogue)
        output = self.epilogue[-1].output if self.epilogue else s.output
        dtype = self.view.types[output].dtype
        k.assign("result", f"{value if compute_dtype == dtype else f'({value}).to({triton_type(dtype)})'}")
        k.store(frame.element_address(s, output), "result", " & ".join(tests) or None)

    def _one_step(self, carry: str, depth: int) -> Frame:
        """Lines that take the carried state one step on; scopes from `depth` on belong to the step."""
        k, scan = self.kernel, self.scan
        self._at("at_step")
        moving = frozenset((scan.along, *scan.circular_shifts))
        inner = [frozenset[str]() for _ in range(depth - 1)] + [moving]
        axes = [] if self.flat_lanes else ["lane"]
        frame = Frame(k, axes, {} if self.flat_lanes else {"lane": "lane_in"}, *inner)
        self._advance(frame, carry, carry)
        return frame

    def _advance(self, frame: Frame, carry: str, target: str) -> None:
        """Lines that take the carried state over the frame's step, to a state of that name."""
        k, scan, s = self.kernel, self.scan, self.scan.statement
        assert scan.step is not None
        dtype, moving = scan.step.dtype, frozenset((scan.along, *scan.circular_shifts))
        state = ScalarValue(carry, self.view.types[s.output].element(), dtype, moving, exact=True)
        evaluator = TritonScalars(frame, *s.roots, given={scan.step.state: state})
        tests = [*frame.tests(scan.valid), *map(evaluator.test, s.guards)]
        value = f"({where_text(tests, evaluator.text(s.body, dtype), '0')}).to({triton_type(dtype)})"
        k.assign(target, f"{value if self.flat_lanes else f'tl.broadcast_to({value}, (BL,))'}")

    # assembly

    def _launch(self, flat: Statement, chunks: int) -> Launch:
        blocks = -(-self.scan.rows // self.tiling.lanes)
        k = self.kernel
        k.constants = {"BT": self.tiling.steps, **({} if self.flat_lanes else {"BL": self.tiling.lanes}), **k.constants}
        return k.launch((blocks, chunks, 1), self.tiling.warps, 2, flat, *self.epilogue)
