"""Which blocks a kernel visits where integers of rows and columns decide: documents, lengths, prefixes.

A small kernel runs first. For each block of rows it bounds both sides of every comparison over each block of columns
(by the least and greatest integers that these read), and lists the blocks in which a point may be valid: those where
all are, and the others. The chain's kernel walks the two lists, without and with a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilec.backends.common.blocks.builder import INDEX_TYPE, INT64, Builder
from tilec.backends.common.blocks.ir import BlockProgram, Tensor, Value
from tilec.backends.common.blocks.verify import verify_kernel
from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.codegen.places import Tiling, size_name
from tilec.backends.common.code import python_name
from tilec.ir.at_sizes import fixed_value
from tilec.ir.functions import COMPARISONS
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Int, accesses_in, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import Types, is_integer, kind
from tilec.lattice.spans import EndsOf

LIMIT = {"int8": 2**7, "int16": 2**15, "int32": 2**31, INT64: 2**62}
MOST_FACTOR = 2**31 - 1
CHUNK = 64  # blocks of columns at a time
_ARITHMETIC = ("add", "sub", "mul", "neg", "max", "min", "div")


@dataclass(frozen=True)
class Visits:
    """`bounds` and `conditions` hold at every valid point of each target. `batch`: the variables beside rows and
    columns that these depend on. `blocks` and `counts`: names of the tensors that lists and their lengths are in, by
    `batch`, block of rows, and whether a block needs a mask."""

    bounds: tuple[Affine, ...]
    conditions: tuple[Expr, ...]
    batch: tuple[str, ...]
    blocks: str
    counts: str


def visits_of(kernel: ChainKernel, types: Types) -> Visits | None:
    """What decides the blocks of a kernel's walk; None where affine bounds say it all."""
    if kernel.looped is None or len(kernel.blocked) != 1:
        return None
    sides = (kernel.blocked[0], kernel.looped)
    targets = [r.target for r in kernel.targets]
    known = {*sides, *kernel.batch, *kernel.walked, *(v for v, n in kernel.extent.items() if n == 1)}
    shared = [c for c in targets[0].conditions if all(c in t.conditions for t in targets)]
    stored = [c for c in shared if kernel.in_place.keys().isdisjoint(a.tensor for a in accesses_in(c))]
    conditions = tuple(c for c in stored if _is_telling(c, sides, types) and known >= {*index_variables(c)})
    bounds = [f for f in targets[0].bounds if all(f in t.bounds for t in targets) and known >= {*f.variables()}]
    if not conditions:
        return None
    used = index_variables(*conditions, *(f.to_expr() for f in bounds))
    batch = tuple(v for v in (*kernel.batch, *kernel.walked) if v in used and kernel.extent[v] > 1)
    name = kernel.outputs[-1]
    while {f"{name}_blocks", f"{name}_counts"} & {python_name(n) for n in types}:
        name += "_"
    return Visits(tuple(bounds), conditions, batch, f"{name}.blocks", f"{name}.counts")


def block_shapes(visits: Visits, kernel: ChainKernel, tiling: Tiling) -> dict[str, tuple[int, ...]]:
    """The shapes of the lists and of their lengths."""
    assert kernel.looped is not None
    rows = -(-kernel.extent[kernel.blocked[0]] // tiling.block)
    shape = (*(kernel.extent[v] for v in visits.batch), rows, 2)
    return {visits.blocks: (*shape, -(-kernel.extent[kernel.looped] // tiling.step)), visits.counts: shape}


def _is_telling(e: Expr, sides: tuple[str, str], types: Types) -> bool:
    """Whether bounds of what a condition compares may decide it."""
    match e:
        case Call("and" | "or" | "not", args):
            return any(_is_telling(a, sides, types) for a in args)
        case Call(function, (x, y)) if function in COMPARISONS:
            return _has_bounds(x, sides, types) and _has_bounds(y, sides, types)
    return isinstance(e, Access) and _has_bounds(e, sides, types)


def _has_bounds(e: Expr, sides: tuple[str, str], types: Types) -> bool:
    match e:
        case Int() | Index():
            return True
        case Access(tensor, index):
            names = [linear(i).bare for i in index]
            plain = all(n is not None or not linear(i).terms for n, i in zip(names, index, strict=True))
            return (
                kind(types[tensor].dtype) < 2 and types[tensor].dtype != "uint8" and plain and not {*sides} <= {*names}
            )
        case Call("div", (x, Int(n))):
            return n > 0 and _has_bounds(x, sides, types)
        case Call(function, args) if function in _ARITHMETIC and function != "div":
            return all(_has_bounds(a, sides, types) for a in args) and is_integer(expression_type(e, types).dtype)
    return False


def build_lists(name: str, visits: Visits, kernel: ChainKernel, types: Types, tiling: Tiling) -> BlockProgram:
    return verify_kernel(_Lists(visits, kernel, types, tiling).program(name))


@dataclass(frozen=True)
class _Truth:
    """Whether a condition may hold somewhere in a block, and whether it does everywhere."""

    possible: Value
    certain: Value


class _Lists:
    def __init__(self, visits: Visits, kernel: ChainKernel, types: Types, tiling: Tiling):
        assert kernel.looped is not None
        self.visits, self.kernel, self.types, self.tiling = visits, kernel, types, tiling
        self.row, self.column = kernel.blocked[0], kernel.looped
        self.count = block_shapes(visits, kernel, tiling)[visits.blocks][-1]
        chunk = fixed_value(min(CHUNK, 1 << (self.count - 1).bit_length()))
        self.b = Builder({"rows": tiling.block, "blocks": chunk, "columns": tiling.step})
        self.ends: dict[str, tuple[Value, Value]] = {}
        self.positions: dict[str, Value] = {}
        self.spans = EndsOf(lambda v: (0, kernel.extent[v] - 1), types)

    def program(self, name: str) -> BlockProgram:
        b, tiling, extent = self.b, self.tiling, self.kernel.extent
        rest = b.program()
        n = self._size(self.row)
        tiles = (n + (tiling.block - 1)) // tiling.block
        tile, rest = b.apply("rest", rest, tiles, hint="tile"), b.apply("floordiv", rest, tiles, hint="rest")
        start = tile * tiling.block
        last = n - 1
        self._set(self.row, start, b.apply("smaller", start + (tiling.block - 1), last))
        self.positions[self.row] = b.apply("smaller", start + b.positions("rows"), last)
        for v in reversed(self.visits.batch):
            here = b.apply("rest", rest, self._size(v), hint=v)
            rest = b.apply("floordiv", rest, self._size(v), hint="rest")
            self._set(v, here, here)
            self.positions[v] = here
        for v, k in extent.items():
            if k == 1 and v not in self.ends:
                self._set(v, b.number(0), b.number(0))
                self.positions[v] = b.number(0)
        place = [*(self.positions[v] for v in self.visits.batch), tile]
        chunk = b.axes["blocks"]
        counts = b.loop(
            b.number(0), self._count(), chunk, [b.number(0)] * 2, lambda first, c: self._chunk(first, c, place)
        )
        for which, count in enumerate(counts):
            b.store(self.visits.counts, [*place, b.number(which)], count)
        tensors = [Tensor(a.tensor, self.types[a.tensor].dtype, len(a.index)) for a in self._read()]
        shapes = block_shapes(self.visits, self.kernel, tiling)
        tensors += [Tensor(t, INDEX_TYPE, len(s), True) for t, s in shapes.items()]
        return BlockProgram(
            name,
            b.axes,
            tuple(dict.fromkeys(tensors)),
            dict(b.sizes),
            math.prod(shapes[self.visits.counts][:-1]),
            b.body,
        )

    def _read(self) -> list[Access]:
        """What conditions are bounded by."""
        found = []
        sides = (self.row, self.column)
        for a in accesses_in(*self.visits.conditions):
            if _has_bounds(a, sides, self.types):
                found.append(a)
        return found

    def _size(self, v: str) -> Value:
        return self.b.size(size_name(v), self.kernel.extent[v])

    def _count(self) -> Value:
        """Blocks of columns."""
        return self.b.size("column_blocks", self.count)

    def _as_int64(self, v: Value) -> Value:
        return self.b.cast(v, INT64)

    def _set(self, v: str, low: Value, high: Value) -> None:
        self.ends[v] = self._as_int64(low), self._as_int64(high)

    def _chunk(self, first: Value, counts: tuple[Value, ...], place: list[Value]) -> list[Value]:
        """The lists' part of some blocks of columns."""
        b, step = self.b, self.tiling.step
        number = first + b.positions("blocks")
        there = number < self._count()
        start = number * step
        n = self._size(self.column)
        last = n - 1
        end = start + (step - 1)
        self._set(self.column, b.apply("smaller", start, last), b.apply("smaller", end, last))
        self.positions[self.column] = b.apply("smaller", start + b.positions("columns"), last)
        truths = [self._bound(f) for f in self.visits.bounds] + [self._truth(c) for c in self.visits.conditions]
        possible, certain = there, end < n
        for t in truths:
            possible, certain = possible & t.possible, certain & t.certain
        full = possible & certain
        part = possible & b.apply("not", certain)
        after = []
        for which, (chosen, count) in enumerate(zip((full, part), counts, strict=True)):
            one = b.cast(chosen, INDEX_TYPE)
            up_to = count + b.running_sum("blocks", one)
            front = up_to - 1
            back = self._count() - 1 - (number - up_to)
            index = [*place, b.number(which), b.apply("select", chosen, front, back)]
            b.store(self.visits.blocks, index, number, there)
            after.append(count + b.reduce("sum", "blocks", one))
        return after

    # bounds of conditions

    def _bound(self, form: Affine) -> _Truth:
        """Where the form is not negative."""
        b = self.b
        low = high = b.number(as_int(form.constant), INT64)
        for atom, c in form.terms:
            assert isinstance(atom, Index)
            ends = self.ends[atom.name]
            low = low + ends[c < 0] * as_int(c)
            high = high + ends[c > 0] * as_int(c)
        return _Truth(high >= 0, low >= 0)

    def _truth(self, e: Expr) -> _Truth:
        b = self.b
        sides = (self.row, self.column)
        if not _is_telling(e, sides, self.types):
            return _Truth(b.number(True, "bool"), b.number(False, "bool"))
        match e:
            case Call("and" | "or" as both, (x, y)):
                p, q = self._truth(x), self._truth(y)
                return _Truth(b.apply(both, p.possible, q.possible), b.apply(both, p.certain, q.certain))
            case Call("not", (x,)):
                return self._not(self._truth(x))
            case Call("ne", (x, y)):
                return self._not(self._truth(Call("eq", (x, y))))
            case Call("gt" | "ge" as order, (x, y)):
                return self._truth(Call({"gt": "lt", "ge": "le"}[order], (y, x)))
            case Call("lt" | "le" as order, (x, y)):
                (a, b_), (c, d) = self._range(x), self._range(y)
                return _Truth(b.apply(order, a, d), b.apply(order, b_, c))
            case Call("eq", (x, y)):
                (a, b_), (c, d) = self._range(x), self._range(y)
                met = (a <= d) & (c <= b_)
                return _Truth(met, (a >= d) & (c >= b_))
        return self._not(self._truth(Call("eq", (e, Int(0)))))

    def _not(self, t: _Truth) -> _Truth:
        return _Truth(self.b.apply("not", t.certain), self.b.apply("not", t.possible))

    def _range(self, e: Expr) -> tuple[Value, Value]:
        """The least and the greatest value, or wider bounds."""
        b = self.b
        match e:
            case Int(n):
                return b.number(n, INT64), b.number(n, INT64)
            case Index(v):
                return self.ends[v]
            case Access():
                return self._elements(e)
            case Call("div", (x, y)):
                ends, divisor = self._range(x), self._range(y)[0]
                return b.apply("div", ends[0], divisor), b.apply("div", ends[1], divisor)
        assert isinstance(e, Call)
        parts = [self._range(a) for a in e.args]
        low, high = self._combined(e.function, parts)
        fits = not [*accesses_in(e)] and self.spans.of(e) is not None
        return (low, high) if fits else self._checked(e, parts, low, high)

    def _combined(self, function: str, parts: list[tuple[Value, Value]]) -> tuple[Value, Value]:
        b = self.b
        match function:
            case "neg":
                return b.apply("neg", parts[0][1]), b.apply("neg", parts[0][0])
            case "sub":
                return parts[0][0] - parts[1][1], parts[0][1] - parts[1][0]
            case "mul":
                corners = [x * y for x in parts[0] for y in parts[1]]
                low, high = corners[0], corners[0]
                for c in corners[1:]:
                    low, high = b.apply("smaller", low, c), b.apply("larger", high, c)
                return low, high
        name = {"max": "larger", "min": "smaller"}.get(function, function)
        return b.apply(name, parts[0][0], parts[1][0]), b.apply(name, parts[0][1], parts[1][1])

    def _checked(self, e: Call, parts: list[tuple[Value, Value]], low: Value, high: Value) -> tuple[Value, Value]:
        """Bounds that say nothing where the arithmetic of the type could overflow."""
        b = self.b
        most = LIMIT[expression_type(e, self.types).dtype]
        fits: Value = b.number(True, "bool")
        limits = [(low, high, most)]
        if most == LIMIT[INT64] or e.function == "mul":
            limits += [(*p, MOST_FACTOR if e.function == "mul" else most // 2) for p in parts]
        for x, y, limit in limits:
            fits = fits & ((x >= -limit) & (y < limit))
        ends = b.number(-(2**63), INT64), b.number(2**63 - 1, INT64)
        return b.apply("select", fits, low, ends[0]), b.apply("select", fits, high, ends[1])

    def _elements(self, a: Access) -> tuple[Value, Value]:
        """The least and the greatest element that a block reads."""
        b, t = self.b, self.types[a.tensor]
        forms = [linear(i) for i in a.index]
        index = [b.number(as_int(f.constant)) if f.bare is None else self.positions[f.bare] for f in forms]
        inside: Value | None = None
        for f, place, n in zip(forms, index, t.shape, strict=True):
            if f.bare is not None and n < self.kernel.extent[f.bare]:  # others do not count: zeros widen the bounds
                inside = place < n if inside is None else inside & (place < n)
        x = b.cast(b.load(a.tensor, t.dtype, index, inside), INT64)
        names = {f.bare for f in forms}
        for v, axis in ((self.row, "rows"), (self.column, "columns")):
            if v in names:
                return b.reduce("min", axis, x), b.reduce("max", axis, x)
        return x, x
