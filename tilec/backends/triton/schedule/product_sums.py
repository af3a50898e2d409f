"""Products that a sum takes, one batch after the other, in the kernel of the products.

Of `P[m, n, g] = +(A[m, g, k] * W[n, g, k])` and `Y[m, n] = +(P[m, n, g] * S[m, g] * T[n, g])`, products of blocks that
have scales of their own, a program computes a block of P for one g after the other, in registers, and adds up what Y
makes of it. P is not stored. Where blocks are few (weights of 8 bits with scales, times a few rows), programs share the
values of g, and another kernel adds up their sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import PRODUCTS
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.epilogue import finish, reads_own_element
from tilec.backends.triton.emit.kernel import Axis, Scope, triton_type
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, Config, choose_config, fitted, output_tiles
from tilec.backends.triton.matmul.dot import (
    LAUNCH_SECONDS,
    MEMORY_BYTES,
    POINTERS,
    MatrixProduct,
    worthwhile,
    worthwhile_padded,
)
from tilec.backends.triton.matmul.kernel import PRECISION, WITHIN, DotTask, DotWriter
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Allocate, Release, Setting, Step
from tilec.backends.triton.plan.sizes import Strides, power_of_two
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.pointwise.pointwise import combine_parts
from tilec.backends.triton.schedule.problem import problem_of
from tilec.cost import size_in_bytes
from tilec.ir.index import distinct_variables
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Expr,
    Index,
    Inside,
    Pad,
    Program,
    Statement,
    children,
    reads,
    reads_itself,
    value_accesses,
    variables_of,
    walk,
)
from tilec.ir.types import FLOATS, ITEM_BYTES, TensorType, Types

RATES = {**PRODUCTS, "int8": 2 * PRODUCTS["bfloat16"]}  # multiplications a second
FEW_ROWS_PROGRAMS, LEAST_STEPS = 8, 8  # programs of small blocks that a multiprocessor runs side by side; steps of one
LONGEST_BLOCK = 128  # bytes of terms of a batch that are one block


@dataclass(frozen=True)
class ProductSum:
    """`product`: a statement that `added`, a sum over variables of its batches, alone reads, at `read`."""

    product: Statement
    added: Statement
    read: Access


def product_sums(program: Program, types: Types, barred: Collection[str]) -> dict[str, ProductSum]:
    """Such pairs by the output of the sum. `barred`: outputs of statements that are carried out otherwise."""
    made = {s.output: s for s in program.statements}
    found: dict[str, ProductSum] = {}
    for s in program.statements:
        if s.output in barred or s.aggregation != "sum" or types[s.output].dtype not in FLOATS or reads_itself(s):
            continue
        if s.guard is not None or s.default is not None or s.constraints or distinct_variables(s.index) is None:
            continue
        for name in reads(s):
            own = made.get(name)
            if own is None or name in program.outputs or name in barred or own.aggregation != "sum":
                continue
            readers = {r.output for r in program.readers(name)}
            places = list(dict.fromkeys(a for a in value_accesses(s) if a.tensor == name))
            if readers == {s.output} and len(places) == 1 and _is_whole(s, places[0], types):
                found[s.output] = ProductSum(own, s, places[0])
                break
    return found


def _is_whole(s: Statement, read: Access, types: Types) -> bool:
    """Whether a sum has a point for each element of what it reads there, and no others."""
    names = distinct_variables(read.index)
    if names is None or set(variables_of(s)) != set(names) or not set(distinct_variables(s.index) or ()) < set(names):
        return False
    asked = (e.access for e in walk(*s.roots) if isinstance(e, Inside | Pad))
    if any(a.tensor == read.tensor for e in asked for a in walk(e) if isinstance(a, Access)):
        return False
    space = build_space(s, types)
    plain = space is not None and len(space.classes) == 1 and space.covers and not space.valid
    if space is None or not plain or not reads_own_element(s.body, read.tensor, read.index):
        return False
    sizes = zip(names, types[read.tensor].shape, strict=True)
    return all(space.low[0][v] == 0 and space.extent[0][v] == n for v, n in sizes)


def product_sum_steps(
    found: ProductSum, defracted: Statement, types: Types, strides: Strides, setting: Setting
) -> list[Step] | None:
    """Steps that compute the sum in one kernel; None where it has no such form or that does not pay."""
    p = problem_of(defracted, found.product, types, strides, setting, (found.added,))
    product = None if p is None or len(p.space.classes) != 1 else p.product
    if p is None or product is None or not product.is_plain or not p.space.covers:
        return None
    names = distinct_variables(p.space.statement.index)
    if names is None or product.dot.dtype not in RATES:
        return None
    if not worthwhile(product.dot, p.space) and not worthwhile_padded(product):
        return None
    of_product = dict(zip(distinct_variables(found.read.index) or (), names, strict=True))
    index = tuple(Index(of_product[v]) for v in distinct_variables(found.added.index) or ())
    taken = tuple(v for v in names if Index(v) not in index)
    if not {v for v in taken if not p.space.single(v)} <= set(product.dot.batch) or not _pays(product, found, types):
        return None
    outer = replace(product.dot, batch=tuple(v for v in product.dot.batch if v not in taken))
    config = _config(replace(product, dot=outer), setting)
    terms, made, output = f"{found.added.output}.terms", found.product.output, found.added.output
    if expression_type(found.added.body, types).dtype not in FLOATS:
        return None
    view = p.view.with_tensor(terms, TensorType(types[made].shape, Accumulator.of("sum", types[output].dtype).dtype))
    if _meets_floats(found.added.body, found.read, types):
        view = view.with_tensor(made, replace(types[made], dtype="int32"), tuple(strides[made]))
    own = MatrixProduct(outer, p.space, view)
    shares = _shares(own, config, p.space.count(taken))
    if config.parts > 1 or output_tiles(own, config) * shares < MULTIPROCESSORS // 2:
        return None
    term = replace(found.added, output=terms, index=found.read.index, sizes=None, aggregation="assign")
    task = DotTask(own, PRECISION[setting.precision], config, (term,))
    writer = ProductSumWriter(task, taken, replace(found.added, index=index), shares)
    writer.write()
    grid = (writer.tiles(), 1, shares)
    steps = list[Step](writer.kernel.launches(grid, config.warps, config.stages, found.product, found.added))
    space, parts, total = build_space(found.added, types), f"{output}.parts", Accumulator.of("sum", types[output].dtype)
    if shares == 1 or space is None:
        return steps if shares == 1 else None
    added = StridedView(found.added, types, strides, p.view.int64_index)
    memory = Allocate(parts, (shares, types[output].numel), total.dtype)
    return [memory, *steps, *combine_parts(space, added, shares, total), Release((parts,))]


def _shares(product: MatrixProduct, config: Config, batches: int) -> int:
    """Among how many programs batches are shared: as many as a multiprocessor runs of few rows or columns at once, if
    each has some steps."""
    (rows, columns, terms), tiles = product.counts, output_tiles(product, config)
    most = batches * -(-terms // config.bk) // LEAST_STEPS
    return (
        max(1, min(FEW_ROWS_PROGRAMS * MULTIPROCESSORS // tiles, batches, most))
        if min(rows, columns) < LEAST_REUSE
        else 1
    )


def _meets_floats(e: Expr, read: Access, types: Types) -> bool:
    """Whether a sum of integers, which 32 bits hold, becomes floating wherever it is read: no matter from how many."""
    inner = [c for c in children(e) if not isinstance(e, Access)]
    own = types[read.tensor].dtype == "int64" and (read not in inner or expression_type(e, types).dtype in FLOATS)
    return e != read and own and all(_meets_floats(c, read, types) for c in inner if c != read)


def _config(product: MatrixProduct, setting: Setting) -> Config:
    """Blocks that hold all terms of a batch where these are few, so that one loop goes through all batches."""
    config, size = choose_config(product, setting.device.shared), ITEM_BYTES[product.dot.dtype]
    config = replace(config, bn=min(config.bn, LONGEST_BLOCK))
    whole = power_of_two(product.counts[2])
    bk = whole if config.bk < whole <= max(LONGEST_BLOCK // size, config.bk) else config.bk
    return fitted(replace(config, bk=bk), size, setting.device.shared)


def _pays(product: MatrixProduct, found: ProductSum, types: Types) -> bool:
    """Whether pointer kernels lose less than it takes to store the products and to read them again."""
    multiplied = product.multiplications / RATES[product.dot.dtype]
    moved = sum(size_in_bytes(types[n]) for n in (*reads(found.product), *reads(found.added), found.added.output))
    stored = size_in_bytes(types[found.product.output])
    together = max(multiplied / POINTERS, (moved - stored) / MEMORY_BYTES)
    return together < multiplied + 2 * stored / MEMORY_BYTES + LAUNCH_SECONDS


class ProductSumWriter(DotWriter):
    """The products' kernel with a loop over the batches that are `taken`, and the sum, over the products' variables."""

    suffix = "_added"

    def __init__(self, task: DotTask, taken: tuple[str, ...], added: Statement, shares: int = 1):
        self.taken, self.added, self.shares = taken, added, shares
        self.around = (frozenset((*taken, "over")),)
        super().__init__(task)

    def _read(self) -> list[Access]:
        return [*self.product.accesses(), Access(self.added.output, self.added.index or ())]

    def _loop(self) -> None:
        k, output = self.kernel, self.view.types[self.added.output].dtype
        whole = Accumulator.of("sum", output)
        k.assign("total", f"tl.full((BM, BN), 0, {triton_type(whole.dtype)})")
        k.scopes.append(Scope())
        k.decode(Axis("over", self.taken, None))
        inner, windows = self._reduction
        if not windows and all(math.prod(e[v] for v in inner) <= self.config.bk for e in self.space.extent):
            k.assign("step", "0")
            k.assign("acc", self._zeros)
            k.add(*self._blocks(self._multiplied).body)
        else:
            super()._loop()
        frame = self._block(*self.around)
        self._finish(frame)
        value, dtype = finish(frame, self.space, "acc", self.accumulator.dtype, self.epilogue)
        cast = "" if dtype == whole.dtype else f".to({triton_type(whole.dtype)})"
        k.assign("total", f"({value}){cast}", "+=")
        count = k.count(self.taken)
        if self.shares == 1:
            k.close("over", f"range(0, {count})")
            return
        share = f"tl.cdiv({count}, {k.number('shares', 'n_shares', self.shares, specialized=False)})"
        k.close("over", f"range({PROGRAM[2]} * {share}, tl.minimum(({PROGRAM[2]} + 1) * {share}, {count}))")

    def _store(self) -> None:
        k, frame = self.kernel, self._block()
        dtype = self.view.types[self.added.output].dtype
        cast = "" if dtype == Accumulator.of("sum", dtype).dtype else f".to({triton_type(dtype)})"
        if self.shares == 1:
            k.store(frame.element_address(self.added), f"total{cast}", WITHIN)
            return
        output, forms = self.added.output, [frame.form(e) for e in self.added.index or ()]
        k.store(frame.part_address(output, f"{output}.parts", forms, frozenset(frame.axes)), "total", WITHIN)
