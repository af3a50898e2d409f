"""Long walks of few programs, shared among more of them.

A few queries beside many keys (decoding) leave most of a device idle. Then each program walks a part of the columns and
stores in float32 what these give, and a second kernel puts the parts of each row together: sums relative to a part's
own statistic by the exponential of how far that lies below the whole's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count

from tilec.backends.common.blocks.builder import Builder
from tilec.backends.common.blocks.ir import BlockProgram, Tensor, Value
from tilec.backends.common.blocks.verify import verify_kernel
from tilec.backends.common.chains.chain import ChainKernel, Reduced, feature_block
from tilec.backends.common.chains.codegen.emit import LN2, LOG2E, Emitter
from tilec.backends.common.chains.codegen.places import size_name, tensors_of
from tilec.backends.common.chains.values import DOT_DTYPES, plain_index, rebuilt
from tilec.backends.common.pairs import PRODUCTS
from tilec.cost import H200
from tilec.ir.functions import call
from tilec.ir.index import Affine
from tilec.ir.program import Access, Expr, Index, Int, Program, Statement, walk
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, Types
from tilec.transforms.util.naming import Names, fresh_variable

# programs, at most; of kernels without products, which have fewer registers; of kernels that walk no side of matrices
MOST_PROGRAMS, MOST_PROGRAMS_OF_POINTS, MOST_PROGRAMS_OF_MATRICES = 264, 1056, 528
ENOUGH_PROGRAMS, FEWEST_BLOCKS = 100, 4  # programs that are left alone; blocks of a matrix that a part walks
# of few rows, which mostly read; shorter ones leave less idle at the end (400 x 6680 x 72: 292 us, in four parts 261)
ENOUGH_OF_FEW_ROWS, MOST_OF_FEW_ROWS, LONG_WALKS = 462, 1600, 2**20  # columns of all programs
ROWS_OF_A_SMALL_PROGRAM, ROWS_OF_A_PROGRAM = 16, 64  # of a program, those of few rows, or without products, and others
# where one 16-bit product and at most one mixture have operands of more columns than that, a program has twice the rows
COLUMNS_OF_A_SMALL_PROGRAM, ROWS_OF_A_LARGE_PROGRAM = 128, 128
PROGRAMS_AT_ONCE, BUSY = 132, 0.9  # such programs, one a multiprocessor; what share of these should be busy
FEWEST_COLUMNS, FEWEST_PLACES = 512, 16  # columns of a part; a row's parts in a kernel that serves all fewer of them
_SUFFIX = ".parts"


@dataclass(frozen=True)
class Split:
    """`kernel`: the one that walks parts, `count` of which there are; `types`: those of what it stores; `stored`: the
    same with an axis for each variable that is shared out; `variable`: the part's."""

    kernel: ChainKernel
    count: int
    variable: str
    types: Types
    stored: Types


def with_walks_apart(program: Program, kernels: Sequence[ChainKernel], types: Types) -> tuple[Program, Types]:
    """The program with sums over what other kernels have for each batch (positions or keys that heads share) as sums of
    each batch, in float32, and then of these, where that takes less time than the matrices that both need take twice.
    """
    names, known = Names.of(program), dict(types)
    made: dict[str, list[Statement]] = {}
    for k in kernels:
        beside = [o for o in kernels if o.looped == k.looped and o.blocked == k.blocked and not o.walked]
        whole = any({*o.batch} == {*k.batch, *k.walked} for o in beside)
        mixtures = all(r.target.feature is not None and r.target.aggregation == "sum" for r in k.targets)
        if not k.walked or k.looped is None or not whole or not mixtures or any(r.unrolled for r in k.targets):
            continue
        if not _pays_apart(k):
            continue
        for r in k.targets:
            s = r.target.statement
            kept = [*(plain_index(s) or ())]
            kept[(place := kept.index(k.blocked[0])) : place] = k.walked
            index, shape = tuple(map(Index, kept)), tuple(k.extent[v] for v in kept)
            name = names.fresh(f"{s.output}_each")
            known[name] = TensorType(shape, "float32")
            first = replace(s, output=name, index=index, sizes=tuple(map(Int, shape)))
            body = Access(name, index)
            made[s.output] = [first, Statement(s.output, s.index, s.sizes, body, "sum", span=s.span)]
    if not made:
        return program, types
    return replace(program, statements=tuple(m for s in program.statements for m in made.get(s.output, [s]))), known


def _pays_apart(kernel: ChainKernel) -> bool:
    """Whether half of its products, as masks leave of them, take longer than memory does for what each batch gives."""
    rows = math.prod(kernel.extent[v] for v in (*kernel.blocked, *kernel.batch, *kernel.walked))
    terms = [i.extent / PRODUCTS[i.dtype] for i in kernel.inners.values() if i.left is not None]
    features = sum(kernel.extent[r.target.feature or ""] for r in kernel.targets)
    stored = 2 * ITEM_BYTES["float32"] * features / H200.memory + H200.launch / rows
    return kernel.extent[kernel.looped or ""] * sum(terms) / 2 > stored


def split_of(kernel: ChainKernel, types: Types) -> Split | None:
    """A kernel with few programs in parts; None where there are enough, or nothing to share."""
    if kernel.looped is None:
        return _matrix_in_parts(kernel, types)
    if len(kernel.blocked) != 1 or kernel.rows:
        return None
    if any(r.unrolled or types[r.target.output].dtype not in DOT_DTYPES for r in kernel.targets):
        return None
    own = dict.fromkeys(r.target.output for r in kernel.targets)  # in order, as the kernel is given them
    if any(not own.keys().isdisjoint(tensors_of(f.value)) for r in kernel.targets for f in r.outer):
        return None  # which what puts parts together would have to read as it is made
    masked = any(r.target.bounds or r.target.conditions for r in kernel.targets)
    if masked and any(tensors_of(f.value) for r in kernel.targets if r.anchor is None for f in r.outer):
        return None
    large = _is_large(kernel)
    few = kernel.elementwise or kernel.extent[kernel.blocked[0]] <= ROWS_OF_A_SMALL_PROGRAM
    rows = ROWS_OF_A_SMALL_PROGRAM if few else ROWS_OF_A_LARGE_PROGRAM if large else ROWS_OF_A_PROGRAM
    programs = math.prod(kernel.extent[v] for v in kernel.batch) * -(-kernel.extent[kernel.blocked[0]] // rows)
    if kernel.elementwise:
        long = not kernel.walked and kernel.extent[kernel.looped] >= 4 * FEWEST_COLUMNS
        shared = _cut(kernel, programs, MOST_PROGRAMS, MOST_PROGRAMS_OF_POINTS) if long else {}
        return _in_parts(kernel, shared, types) if shared else None
    enough = PROGRAMS_AT_ONCE if few else ENOUGH_PROGRAMS
    shared = _dealt(kernel, programs, large) if kernel.walked and programs < enough else {}
    if programs < enough and (not large or not kernel.walked):
        shared |= _cut(kernel, programs * math.prod(shared.values()), enough)
    elif few and not kernel.walked and programs * kernel.extent[kernel.looped] >= LONG_WALKS:
        shared = _cut(kernel, programs, ENOUGH_OF_FEW_ROWS, MOST_OF_FEW_ROWS)
    return _in_parts(kernel, shared, types) if shared else None


def _matrix_in_parts(kernel: ChainKernel, types: Types) -> Split | None:
    """The same of a kernel whose programs have a block of rows and columns, as the gradient of a bias that all windows
    share: what they walk is dealt out."""
    if any(types[r.target.output].dtype not in DOT_DTYPES or r.outer or r.anchor for r in kernel.targets):
        return None
    sides = (-(-kernel.extent[v] // ROWS_OF_A_PROGRAM) for v in kernel.blocked)
    programs = math.prod(sides) * math.prod(kernel.extent[v] for v in kernel.batch)
    shared: dict[str, int] = {}
    for v in sorted(kernel.walked, key=lambda v: -kernel.extent[v]):
        parts = 1
        while 2 * parts * FEWEST_BLOCKS <= kernel.extent[v] and 2 * parts * programs <= MOST_PROGRAMS_OF_MATRICES:
            parts *= 2
        if parts > 1:
            shared[v] = parts
        programs *= parts
    return _in_parts(kernel, shared, types) if shared else None


def _is_large(kernel: ChainKernel) -> bool:
    products = [i for i in kernel.inners.values() if i.left is not None]
    features = [kernel.extent[f] for r in kernel.targets if (f := r.target.feature) is not None]
    if len(products) != 1 or len(features) > 1 or any(i.dtype not in NARROW for i in products):
        return False
    return max(*features, *(i.extent for i in products), 0) > COLUMNS_OF_A_SMALL_PROGRAM


def _columns() -> Iterator[int]:
    """Columns of a part: fewer first, each a quarter of a power of two apart."""
    fewest = FEWEST_COLUMNS
    while True:
        yield from (fewest * quarters // 4 for quarters in range(4, 8))
        fewest *= 2


def _dealt(kernel: ChainKernel, programs: int, large: bool) -> dict[str, int]:
    """By variable around a kernel's columns, the longest first, the parts among which its values are dealt out: each
    has every n-th one."""
    columns = math.prod(kernel.extent[w] for w in (*kernel.walked, kernel.looped or ""))
    found: dict[str, int] = {}

    def fits(beside: int, n: int, extent: int) -> bool:
        few = _leaves_idle(programs * beside * n // 2) if large else programs * beside * n <= MOST_PROGRAMS
        return few and n <= extent and beside * n * FEWEST_COLUMNS <= columns

    for v in sorted(kernel.walked, key=lambda v: -kernel.extent[v]):
        beside, parts = math.prod(found.values()), 1  # found by comparisons alone, and the same for many extents
        while fits(beside, 2 * parts, kernel.extent[v]):
            parts *= 2
        if parts > 1:
            found[v] = parts
    return found


def _cut(kernel: ChainKernel, programs: int, enough: int, most: int = MOST_PROGRAMS) -> dict[str, int]:
    """The columns, and how many of them a part has; none where there are few, or programs enough."""
    looped = kernel.looped or ""
    extent = kernel.extent[looped]
    if programs >= enough or extent < 2 * FEWEST_COLUMNS:
        return {}
    # found by comparisons alone, and the same for many extents
    columns = next(c for c in _columns() if programs * -(-extent // c) <= most)
    return {looped: columns} if extent > columns else {}


def _leaves_idle(programs: int) -> bool:
    """Whether the last round of programs leaves too many multiprocessors without one."""
    rounds = -(-programs // PROGRAMS_AT_ONCE)
    return programs < BUSY * rounds * PROGRAMS_AT_ONCE


def _in_parts(kernel: ChainKernel, shared: Mapping[str, int], types: Types) -> Split:
    """The kernel by part. `shared`: of a variable around the columns how many parts deal with its values, of the
    columns how many each part has."""
    looped = kernel.looped or ""
    own = dict.fromkeys(r.target.output for r in kernel.targets)  # in order, as the kernel is given them
    names, inside = {*kernel.extent}, list[Expr]()
    dealt, counts, bounds = dict[str, str](), dict[str, int](), list[Affine]()
    for v, n in shared.items():
        part = fresh_variable("part", names)
        names.add(part)
        if v != looped:
            dealt[v], counts[part] = part, n
            inside.append(call("eq", call("mod", Index(v), Int(n)), Index(part)))
            continue
        counts[part], first = -(-kernel.extent[v] // n), Index(part) * Int(n)
        inside += [call("ge", Index(v), first), call("lt", Index(v), first + Int(n))]
        place = Affine.variable(v) - Affine.variable(part, n)
        bounds = [place, -place + (n - 1)]
    places = tuple(map(Index, counts))

    def change(a: Access) -> Expr:
        return Access(f"{a.tensor}{_SUFFIX}", (*places, *a.index)) if a.tensor in own else a

    def reduced(r: Reduced) -> Reduced:
        t, s = r.target, r.target.statement
        index = (*places, *(s.index or ()))
        guard = reduce(partial(call, "and"), inside if s.guard is None else [s.guard, *inside])
        made = replace(s, output=f"{s.output}{_SUFFIX}", index=index, guard=guard, body=rebuilt(s.body, change))
        inner = tuple(replace(f, value=rebuilt(f.value, change)) for f in r.inner)
        anchor = None if r.anchor is None else f"{r.anchor}{_SUFFIX}"
        target = replace(
            t, statement=made, body=rebuilt(t.body, change), bounds=tuple(sorted({*t.bounds, *bounds}, key=repr))
        )
        return replace(r, target=target, inner=inner, outer=(), anchor=anchor, closing=())

    targets, total = tuple(map(reduced, kernel.targets)), math.prod(counts.values())
    made = replace(kernel, targets=targets, batch=(*counts, *kernel.batch), extent={**kernel.extent, **counts})

    def stored(*first: int) -> dict[str, TensorType]:
        return {f"{o}{_SUFFIX}": TensorType((*first, *types[o].shape), "float32") for o in own}

    return Split(
        replace(made, dealt=dealt), total, fresh_variable("part", names), stored(total), stored(*counts.values())
    )


def sums_of_parts(kernel: ChainKernel, types: Types) -> list[Statement]:
    """The statements that put parts together, where these are sums, times numbers; none where a statistic or a factor
    of each row is to be met. `types`: with the parts'."""
    targets = [(r.target.output, r) for r in kernel.stored]
    if any(r.target.aggregation != "sum" or r.anchor is not None for _, r in targets):
        return []
    if any(isinstance(e, Access | Index) for _, r in targets for f in r.outer for e in walk(f.value)):
        return []
    found: list[Statement] = []
    for output, r in targets:
        parts = f"{output}{_SUFFIX}"
        names = tuple(Index(f"i{axis}") for axis, _ in enumerate(types[parts].shape))
        body: Expr = Access(parts, names)
        for f in r.outer:
            body = call("div" if f.divides else "mul", body, f.value)
        found.append(Statement(output, names[1:], tuple(map(Int, types[output].shape)), body, "sum"))
    return found


def build_together(name: str, split: Split, kernel: ChainKernel, types: Types) -> BlockProgram:
    """The kernel that puts the parts of each row together: a program has a row, and all parts of it at once."""
    return verify_kernel(_Together(split, kernel, types).program(name))


class _Together:
    def __init__(self, split: Split, kernel: ChainKernel, types: Types):
        self.split, self.kernel, self.types = split, kernel, {**types, **split.types}
        self.rows = (*kernel.batch, *kernel.blocked)
        features = {kernel.extent[f] for r in kernel.targets if (f := r.target.feature) is not None}
        places = next(FEWEST_PLACES << k for k in count() if split.count <= FEWEST_PLACES << k)
        self.axes = {"parts": places} | {f"d{n}": feature_block(n) for n in sorted(features)}
        self.b = Builder(self.axes)

    def program(self, name: str) -> BlockProgram:
        b, kernel = self.b, self.kernel
        rest = b.program()
        positions = {v: b.number(0) for v, n in kernel.extent.items() if n == 1}
        many = [v for v in self.rows if kernel.extent[v] > 1]
        for v in reversed(many):
            size = b.size(size_name(v), kernel.extent[v])
            positions[v] = rest if v == many[0] else b.apply("rest", rest, size, hint=v)
            rest = rest // size
        features = (f for r in kernel.targets if (f := r.target.feature) is not None)
        positions |= {f: b.positions(f"d{kernel.extent[f]}") for f in features}
        within = partial(self._within, positions=positions)
        shares: dict[str, tuple[Value, Value, Value, Value]] = {}
        at = Emitter(
            b, self.types, positions, kernel.extent, within, lambda a: shares.get(a.tensor, (None,))[0], kernel.in_place
        )
        for r in kernel.targets:
            if r.target.aggregation != "sum":
                shares[r.target.output] = self._statistic(r, at)
        for r in kernel.stored:
            self._store(r, at, shares)
        used = kernel.tensors(a for r in kernel.targets for f in r.outer for a in tensors_of(f.value))
        tensors = [Tensor(n, self.types[n].dtype, len(self.types[n].shape)) for n in used]
        tensors += [Tensor(n, t.dtype, len(t.shape)) for n, t in self.split.types.items()]
        tensors += [Tensor(n, self.types[n].dtype, len(self.types[n].shape), True) for n in kernel.outputs]
        grid = math.prod(kernel.extent[v] for v in self.rows)
        return BlockProgram(name, self.axes, tuple(tensors), dict(b.sizes), grid, b.body)

    def _within(self, names: Sequence[str], positions: Mapping[str, Value]) -> Value | None:
        condition: Value | None = None
        for v in names:
            axes = positions[v].type.axes
            if axes and self.axes[axes[0]] != self.kernel.extent[v]:
                inside = positions[v] < self.kernel.extent[v]
                condition = inside if condition is None else condition & inside
        return condition

    def _parts_of(self, r: Reduced, at: Emitter, other: float = 0.0) -> Value:
        """What each part has; `other` beside the last one."""
        b, t = self.b, r.target
        names = plain_index(t.statement) or ()
        part = b.positions("parts")
        inside = part < b.size(size_name(self.split.variable), self.split.count)
        condition = at.both(inside, at._within(tuple(names)))
        return b.load(f"{t.output}{_SUFFIX}", "float32", [part, *(at.positions[v] for v in names)], condition, other)

    def _statistic(self, r: Reduced, at: Emitter) -> tuple[Value, Value, Value, Value]:
        """The whole's, each part's share of it, their sum, and the parts' greatest value in the shares' unit."""
        b, t = self.b, r.target
        low, zero = b.number(-math.inf, "float32"), b.number(0.0, "float32")
        if t.aggregation == "min":
            least = b.reduce("min", "parts", self._parts_of(r, at, math.inf), careful=True)
            return least, zero, zero, zero
        parts = self._parts_of(r, at, -math.inf)
        top = b.reduce("max", "parts", parts, careful=t.aggregation == "max")
        finite = b.apply("select", top.equals(low), zero, top)
        p = b.apply("exp2", (parts - finite) * LOG2E, hint="p")
        total = b.reduce("sum", "parts", p)
        if t.aggregation == "max":
            return top, p, total, top
        value = finite + b.apply("log2", total) * LN2
        return b.apply("select", top.equals(math.inf), top, value), p, total, top

    def _store(self, r: Reduced, at: Emitter, shares: Mapping[str, tuple[Value, Value, Value, Value]]) -> None:
        b, t = self.b, r.target
        if t.aggregation != "sum":
            value = shares[t.output][0]
        else:
            parts, zero, low = self._parts_of(r, at), b.number(0.0, "float32"), b.number(-math.inf, "float32")
            value = b.reduce("sum", "parts", parts)
            if r.anchor is not None:
                _, p, total, top = shares[r.anchor]
                # a part without a finite statistic counts where no part has one: it is nothing, or no number
                some = b.apply("select", p.equals(zero), zero, p * parts)
                some = b.reduce("sum", "parts", some)
                anchors = {x.target.output: x.target for x in self.kernel.targets}
                if anchors[r.anchor].aggregation == "logsumexp":
                    some = some * b.apply("div", b.number(1.0, "float32"), total)
                value = b.apply("select", top.equals(low), value, some)
            if r.outer:
                whole = at.product(list(r.outer)) * value
                nothing = value.equals(zero)
                if r.anchor is not None and (t.bounds or t.conditions):
                    nothing = nothing & shares[r.anchor][3].equals(low)
                    whole = b.apply("select", nothing, zero, whole)
                value = whole
            for c in r.closing:
                value = b.apply("select", at.condition(c), value, b.number(0.0, "float32"))
        at.store(t.statement, value)
