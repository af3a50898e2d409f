"""The text of a Hopper kernel for a product of two tensors, summed.

A tile's boxes are copied by TMA into a ring of shared-memory buffers and read from there by wgmma, seen as matrices of rows (columns) by summed points.
What TMA reads outside a tensor is zero, so a point at which an operand is outside adds nothing, unless the other operand is infinite or NaN there: tiles for which that
may be look at their sums, and where one is not finite take them again from the valid points alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilec.backends.triton.hopper_form import Problem, Variable, coefficients
from tilec.backends.triton.hopper_views import BIAS, Dim, View
from tilec.ir.index import Affine

HEADER = '''"""Sums of products of two tensors: boxes copied by TMA, multiplied by wgmma."""
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
'''


@dataclass(frozen=True)
class Design:
    """What a kernel's text depends on. `loose`: axes of each operand that can be left by points whose variables are in range; `tails`: summed variables
    past whose last value one operand alone is zero; `guards`: axes of the output that end some classes' rows or columns; `ones`: stride parameters that are 1."""

    name: str
    problem: Problem
    left: View
    right: View
    out: View | None
    loose: Mapping[str, tuple[int, ...]]
    tails: tuple[str, ...]
    guards: tuple[int, ...]
    ones: frozenset[str]
    split: bool
    scaled: bool
    specialise: bool
    boxed: frozenset[str]

    @property
    def exact(self) -> bool:
        """Must sums that are not finite be taken again?"""
        return bool(self.tails or any(self.loose.values()))

    @property
    def forms(self) -> Mapping[str, tuple[Affine, ...]]:
        return {"left": self.problem.left, "right": self.problem.right, "out": self.problem.out}

    @property
    def summed(self) -> tuple[Variable, ...]:
        """Summed variables, outermost first: those that are contiguous in an operand innermost."""
        inner = (self.left.inner, self.right.inner)
        return tuple(sorted(self.problem.summed, key=lambda v: v.name in inner))

    def symbols(self, operand: str) -> tuple[str, ...]:
        """What an operand's element depends on."""
        return tuple(dict.fromkeys(name for form in self.forms[operand] for name, _ in coefficients(form)))


class Lines:
    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def __call__(self, *lines: str) -> None:
        self.lines.extend("    " * self.depth + line if line else "" for line in lines)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.depth += 1
        yield
        self.depth -= 1


def spell(form: Affine, names: Mapping[str, str] | None = None) -> str:
    """A form as an expression."""
    text = ""
    for name, c in coefficients(form):
        shown = (names or {}).get(name, name)
        term = shown if abs(c) == 1 else f"{abs(c)} * {shown}"
        text += (f" {'-' if c < 0 else '+'} " if text else "-" if c < 0 else "") + term
    constant = int(form.constant)
    if not text:
        return str(constant)
    return text + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")


def joined(terms: Sequence[str], operator: str, empty: str) -> str:
    return f" {operator} ".join(terms) or empty


# ---- parameters


def parameters(d: Design) -> tuple[list[str], list[str], list[str], list[str]]:
    """Tensor maps, pointers, integers, and integers that may be specialised, in the order of the signature."""
    maps = [f"{side}_map_{k}" for side, v in (("left", d.left), ("right", d.right)) for k in range(len(v.choices))]
    if d.out is not None:
        maps.append("out_map")
    pointers = ["left", "right"] if d.exact else []
    if d.out is None:
        pointers.append("out")
    sizes = [f"{v.name}_n" for v in d.problem.variables if not (v.varies and v in d.problem.summed)]
    strides: list[str] = []
    for side in ("left", "right") if d.exact else ():
        sizes += [f"{side}_size_{a}" for a in d.loose[side]]
        strides += [f"{side}_{s}" for s in (*d.symbols(side), "base")]
    if d.out is None and not d.split:
        sizes += [f"out_size_{a}" for a in d.guards]
        strides += [f"out_{s}" for s in (*d.symbols("out"), "base")]
    return maps, pointers, sizes, [s for s in strides if s not in d.ones]


def constants(d: Design) -> list[str]:
    return [f"B_{v.name}" for v in d.problem.variables if v not in d.problem.batch] + ["GROUP", "SPLIT", "STAGES"]


# ---- the kernel


def kernel(d: Design) -> str:
    """The whole file of a kernel."""
    maps, pointers, sizes, strides = parameters(d)
    scale = ["scale"] if d.scaled and not d.split else []
    given = [*maps, *pointers, *sizes, *strides, *scale]
    fixed = constants(d)
    w = Lines()
    if d.specialise:
        _specialised(w, d, given, fixed, sizes)
    else:
        w("", "", f"@gluon.jit(do_not_specialize={sizes!r})")
        with w.block(f"def {d.name}({', '.join(given)}, {', '.join(f'{c}: gl.constexpr' for c in fixed)}):"):
            _shapes(w, d)
            _buffers(w, d)
            w("bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
            with w.block("for k in gl.static_range(STAGES):"):
                w("mbarrier.init(bars.index(k), count=1)")
            w("tile = gl.program_id(0)")
            _tile(w, d)
            _start(w, d)
            with w.block("for k in gl.static_range(STAGES - 1):"):
                _fill(w, d, "k", "k < steps")
                _advance(w, d)
            w("acc = warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, mma))")
            with w.block("for t in range(steps):"):
                w("slot = t % STAGES", "mbarrier.wait(bars.index(slot), (t // STAGES) & 1)")
                _multiply(w, d)
                w(
                    "acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))",
                    "ahead = t + STAGES - 1",
                )
                _fill(w, d, "ahead % STAGES", "ahead < steps")
                _advance(w, d)
            w("sums = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))")
            with w.block("for k in gl.static_range(STAGES):"):
                w("mbarrier.invalidate(bars.index(k))")
            _finish(w, d)
    return HEADER + "\n".join(w.lines) + "\n"


def _specialised(w: Lines, d: Design, given: Sequence[str], fixed: Sequence[str], sizes: Sequence[str]) -> None:
    shared = ["left_ring", "right_ring", "full", "free"]
    everything = ", ".join([*shared, *given, *fixed])
    header = ", ".join([*shared, *given, *(f"{c}: gl.constexpr" for c in fixed)])
    w("", "", "@gluon.jit")
    with w.block(f"def produce({header}):"):
        _shapes(w, d)
        w("turn = 0")
        with w.block("for number in range(gl.program_id(0), tiles, gl.num_programs(0)):"):
            w("tile = number")
            _tile(w, d)
            _start(w, d)
            with w.block("for t in range(steps):"):
                w("slot = turn % STAGES", "mbarrier.wait(free.index(slot), ((turn // STAGES) & 1) ^ 1)")
                _fill(w, d, "slot", None)
                _advance(w, d)
                w("turn += 1")
    w("", "", "@gluon.jit")
    with w.block(f"def consume({header}):"):
        _shapes(w, d)
        w("turn = 0")
        with w.block("for number in range(gl.program_id(0), tiles, gl.num_programs(0)):"):
            w("tile = number")
            _tile(w, d)
            _start(w, d)
            w("acc = warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, mma))")
            with w.block("for t in range(steps):"):
                w("slot = turn % STAGES", "mbarrier.wait(full.index(slot), (turn // STAGES) & 1)")
                _multiply(w, d)
                w("acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))")
                w("mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1, pred=t > 0)", "turn += 1")
            w("sums = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))")
            w("mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1, pred=steps > 0)")
            _finish(w, d)
    w("", "", f"@gluon.jit(do_not_specialize={list(sizes)!r})")
    with w.block(f"def {d.name}({', '.join(given)}, {', '.join(f'{c}: gl.constexpr' for c in fixed)}):"):
        _extents(w, d)
        _buffers(w, d)
        w("full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        w("free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        with w.block("for k in gl.static_range(STAGES):"):
            w("mbarrier.init(full.index(k), count=1)", "mbarrier.init(free.index(k), count=1)")
        w(f"gl.warp_specialize([(consume, ({everything})), (produce, ({everything}))], [1], [32])")


def _extents(w: Lines, d: Design) -> None:
    for size, group in (("BM", d.problem.rows), ("BN", d.problem.columns), ("BK", d.problem.summed)):
        w(f"{size}: gl.constexpr = {joined([f'B_{v.name}' for v in group], '*', '1')}")


def _shapes(w: Lines, d: Design) -> None:
    """Tile extents, the accumulator's layout, how many tiles there are."""
    p = d.problem
    _extents(w, d)
    w("mma: gl.constexpr = gl.NVMMADistributedLayout(")
    w(
        "    version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 256 // left_map_0.dtype.primitive_bitwidth]",
        ")",
    )
    for v in p.rows + p.columns:
        w(f"{v.name}_tiles = gl.cdiv({v.name}_n, B_{v.name})")
    w(f"row_tiles = {joined([f'{v.name}_tiles' for v in p.rows], '*', '1')}")
    w(f"column_tiles = {joined([f'{v.name}_tiles' for v in p.columns], '*', '1')}")
    if d.specialise:
        outer = [f"{v.name}_n" for v in p.batch] + ["SPLIT"] * d.split + [str(len(p.table))] * (len(p.table) > 1)
        w(f"tiles = {joined(['row_tiles', 'column_tiles', *outer], '*', '1')}")


def _buffers(w: Lines, d: Design) -> None:
    for side in ("left", "right"):
        box = ", ".join(_box(d.left if side == "left" else d.right))
        w(f"{side}_ring = gl.allocate_shared_memory({side}_map_0.dtype, [STAGES, {box}], {side}_map_0.layout)")


def _box(view: View) -> list[str]:
    return ["1" if dim.boxed is None else f"B_{dim.boxed}" for dim in view.dims]


def _tile(w: Lines, d: Design) -> None:
    """From the number `tile` to the class, the batch, the share of the sum, and the first row and column."""
    p = d.problem
    if len(p.table) > 1:
        w(f"kind = tile % {len(p.table)}", f"tile = tile // {len(p.table)}")
    for name in p.table[0]:
        values = [row[name] for row in p.table]
        w(f"{name} = {values[0]}" if len(values) == 1 else f"{name} = kind * 0 + ({values[0]})")
        for k, value in enumerate(values[1:], 1):
            if value != values[0]:
                w(f"{name} = gl.where(kind == {k}, {value}, {name})")
    w("area = row_tiles * column_tiles", "outer = tile // area", "tile = tile % area")
    w(
        "span = GROUP * column_tiles",
        "first_row = tile // span * GROUP",
        "height = gl.minimum(row_tiles - first_row, GROUP)",
    )
    w("row = first_row + tile % span % height", "column = tile % span // height")
    for group, counter in ((p.rows, "row"), (p.columns, "column")):
        for v in reversed(group[1:]):
            w(f"{v.name} = {counter} % {v.name}_tiles * B_{v.name}", f"{counter} = {counter} // {v.name}_tiles")
        if group:
            w(f"{group[0].name} = {counter} * B_{group[0].name}")
    for v in reversed(p.batch):
        w(f"{v.name} = outer % {v.name}_n", f"outer = outer // {v.name}_n")
    for v in d.summed:
        w(f"{v.name}_tiles = gl.cdiv({v.name}_n, B_{v.name})")
    total = joined([f"{v.name}_tiles" for v in d.summed], "*", "1")
    if d.split:
        w(f"total = {total}", "share = gl.cdiv(total, SPLIT)", "first = gl.minimum(outer * share, total)")
        w("steps = gl.minimum(share, total - first)")
    else:
        w(f"steps = {total}")


def _start(w: Lines, d: Design) -> None:
    """The first summed tile."""
    if not d.split:
        for v in d.summed:
            w(f"{v.name} = steps * 0")
        return
    w("position = first")
    for v in reversed(d.summed[1:]):
        w(f"{v.name} = position % {v.name}_tiles * B_{v.name}", f"position = position // {v.name}_tiles")
    w(f"{d.summed[0].name} = position * B_{d.summed[0].name}")


def _advance(w: Lines, d: Design) -> None:
    """The next summed tile, the last variable first."""
    order = list(reversed(d.summed))
    w(f"{order[0].name} += B_{order[0].name}")
    for inner, outer in zip(order, order[1:], strict=False):
        w(f"over = {inner.name} >= {inner.name}_n", f"{inner.name} = gl.where(over, 0, {inner.name})")
        w(f"{outer.name} = gl.where(over, {outer.name} + B_{outer.name}, {outer.name})")


def _fill(w: Lines, d: Design, slot: str, when: str | None) -> None:
    """Have one step's boxes copied."""
    w(f"bar = {'full' if d.specialise else 'bars'}.index({slot})")
    if when is not None:
        w(f"some = {when}")
    condition = "" if when is None else ", pred=some"
    w(f"mbarrier.expect(bar, left_map_0.block_type.nbytes + right_map_0.block_type.nbytes{condition})")
    for side, view in (("left", d.left), ("right", d.right)):
        at = ", ".join(_coordinate(w, side, dim) for dim in view.dims)
        copies = [
            f"copy_in({side}_map_{k}, [{at}], bar, {side}_ring.index({slot}){condition})"
            for k in range(len(view.choices))
        ]
        for k, (choice, copy) in enumerate(zip(view.choices, copies, strict=True)):
            tests = [f"({side}_part_{dim.axis} == {r})" for dim, r in zip(view.split, choice, strict=True)]
            if len(copies) == 1:
                w(copy)
                continue
            with w.block("else:" if k == len(copies) - 1 else f"{'elif' if k else 'if'} {joined(tests, '&', '')}:"):
                w(copy)


def _coordinate(w: Lines, side: str, dim: Dim) -> str:
    if dim.step == 1:
        return spell(dim.form)
    if len(dim.residues) == 1:
        whole = dim.rest - dim.residues[0]
        return (
            f"{dim.boxed} + ({spell(whole)}) // {dim.step}"
            if whole.terms
            else f"{dim.boxed} + {int(whole.constant) // dim.step}"
        )
    w(f"whole = {spell(dim.rest)} + {BIAS * dim.step}", f"{side}_part_{dim.axis} = whole % {dim.step}")
    w(f"{side}_at_{dim.axis} = {dim.boxed} + whole // {dim.step} - {BIAS}")
    return f"{side}_at_{dim.axis}"


def _multiply(w: Lines, d: Design) -> None:
    summed = {v.name for v in d.problem.summed}
    left = "left_ring.index(slot)" + (
        ".reshape([BM, BK])" if d.left.inner in summed else ".reshape([BK, BM]).permute((1, 0))"
    )
    right = "right_ring.index(slot)" + (
        ".reshape([BN, BK]).permute((1, 0))" if d.right.inner in summed else ".reshape([BK, BN])"
    )
    w(f"acc = warpgroup_mma({left}, {right}, acc, is_async=True)")


# ---- after the sum


def _finish(w: Lines, d: Design) -> None:
    if d.exact:
        _again(w, d)
    if d.scaled and not d.split:
        w("sums = sums * scale")
    if d.out is not None:
        box = ", ".join(_box(d.out))
        w(
            f"staged = gl.allocate_shared_memory(out_map.dtype, [{box}], out_map.layout)",
            "staged.reshape([BM, BN]).store(sums.to(out_map.dtype))",
        )
        w(
            "fence_async_shared()",
            f"copy_out(out_map, [{', '.join(spell(dim.form) for dim in d.out.dims)}], staged)",
            "tma.store_wait(pendings=0)",
        )
        return
    w(
        "WIDE: gl.constexpr = 128 // out.dtype.element_ty.primitive_bitwidth if BN * out.dtype.element_ty.primitive_bitwidth >= 128 else 1"
    )
    w("ACROSS: gl.constexpr = BN // WIDE if BN // WIDE < 32 else 32")
    w("flat: gl.constexpr = gl.BlockedLayout([1, WIDE], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])")
    w("values = gl.convert_layout(sums.to(out.dtype.element_ty), flat)")
    inside = _spread(w, d, "flat")
    names = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns}
    if d.split:
        row, column = (_flat_index(group, names) for group in (d.problem.rows, d.problem.columns))
        rows, columns = (
            joined([f"{v.name}_n" for v in group], "*", "1") for group in (d.problem.rows, d.problem.columns)
        )
        batch = _flat_index(d.problem.batch, {}) if d.problem.batch else "0"
        batches = joined([f"{v.name}_n" for v in d.problem.batch], "*", "1")
        w(
            f"at = (outer * ({batches}) + ({batch})).to(gl.int64) * ({rows})",
            f"place = ((at + ({row})) * ({columns}))[:, None] + ({column})[None, :]",
        )
    else:
        place = _offsets(d, "out", names)
        w(f"place = {joined([t for t in place if t], '+', '0')}")
    w(f"gl.store(out + place, values, mask={inside})")


def _flat_index(group: Sequence[Variable], names: Mapping[str, str]) -> str:
    text = ""
    for v in group:
        shown = names.get(v.name, v.name)
        text = f"({text}) * {v.name}_n + {shown}" if text else shown
    return text or "0"


def _spread(w: Lines, d: Design, layout: str) -> str:
    """Each row's and column's variables as vectors, `<name>_i`; what says that they are in range, guards of the output included."""
    terms: dict[str, list[str]] = {"m": [], "n": []}
    for group, letter, size, axis in ((d.problem.rows, "m", "BM", 1), (d.problem.columns, "n", "BN", 0)):
        w(f"{letter} = gl.arange(0, {size}, layout=gl.SliceLayout({axis}, {layout}))")
        below = ""
        for v in reversed(group):
            w(f"{v.name}_i = {v.name} + {letter}{below} % B_{v.name}")
            below += f" // B_{v.name}"
            terms[letter].append(f"({v.name}_i < {v.name}_n)")
    for axis in d.guards if layout == "flat" else ():
        form = d.problem.out[axis]
        letter = "m" if any(form.coefficient(v.name) for v in d.problem.rows) else "n"
        shown = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns}
        terms[letter].append(f"({spell(form, shown)} < out_size_{axis})")
    w(f"row_in = {joined(terms['m'], '&', 'm >= 0')}", f"column_in = {joined(terms['n'], '&', 'n >= 0')}")
    return "row_in[:, None] & column_in[None, :]"


def _offsets(d: Design, side: str, names: Mapping[str, str]) -> tuple[str, str, str]:
    """Element offsets of an operand: the scalar part, that of the rows, that of the columns."""
    scalar, row, column = [f"{side}_base"], [], []
    for name in d.symbols(side):
        shown = names.get(name, name)
        stride = f"{side}_{name}"
        term = shown if stride in d.ones else f"{shown}.to(gl.int64) * {stride}"
        vector = shown != name and name[0] in "rc"
        (row if vector and name[0] == "r" else column if vector else scalar).append(term)
    return (
        " + ".join(scalar),
        f"({' + '.join(row)})[:, None]" if row else "",
        f"({' + '.join(column)})[None, :]" if column else "",
    )


def _again(w: Lines, d: Design) -> None:
    """Where the tile may meet points outside an operand and a sum is not finite: the sum over the valid points alone, one by one."""
    w(f"suspect = {joined(_suspicions(d), '|', '')}")
    with w.block("if suspect:"):
        w('wrong = gl.max(gl.max(gl.where(gl.abs(sums) < float("inf"), 0, 1), 1), 0)')
        with w.block("if wrong != 0:"):
            w("sums = gl.zeros((BM, BN), gl.float32, mma)")
            _spread(w, d, "mma")
            _start(w, d)
            with w.block("for t in range(steps):"):
                with w.block("for e in range(BK):"):
                    below, valid = "", []
                    for v in reversed(d.problem.summed):
                        w(f"{v.name}_i = {v.name} + e{below} % B_{v.name}")
                        below += f" // B_{v.name}"
                        if v.name in d.boxed:
                            valid.append(f"({v.name}_i < {v.name}_n)")
                    names = {v.name: f"{v.name}_i" for v in d.problem.rows + d.problem.columns + d.problem.summed}
                    for side, vector in (("left", "row_in"), ("right", "column_in")):
                        tests = [vector, *valid]
                        for axis in d.loose[side]:
                            w(f"{side}_{axis}_at = {spell(d.forms[side][axis], names)}")
                            tests.append(f"({side}_{axis}_at >= 0) & ({side}_{axis}_at < {side}_size_{axis})")
                        w(f"{side}_ok = {joined(tests, '&', '')}")
                        place = " + ".join(t.split("[", 1)[0] for t in _offsets(d, side, names) if t)
                        w(f"{side}_value = gl.load({side} + ({place}), mask={side}_ok, other=0.0).to(gl.float32)")
                    w("both = left_ok[:, None] & right_ok[None, :]")
                    w("sums += gl.where(both, left_value[:, None] * right_value[None, :], 0.0)")
                _advance(w, d)


def _suspicions(d: Design) -> list[str]:
    """Scalar tests, one of which holds where a tile meets a point outside an operand."""
    sizes = {v.name for v in d.problem.rows + d.problem.columns}
    summed = {v.name for v in d.problem.summed}
    found = [f"({name}_n % B_{name} != 0)" for name in d.tails]
    for side in ("left", "right"):
        for axis in d.loose[side]:
            form = d.forms[side][axis]
            low, high = str(int(form.constant)), str(int(form.constant))
            for name, c in coefficients(form):
                first, last = name, name
                if name in sizes:
                    last = f"gl.minimum({name} + B_{name}, {name}_n) - 1"
                elif name in summed:
                    first, last = "0", f"{name}_n - 1"
                if c < 0:
                    first, last = last, first
                low += f" + {c} * ({first})"
                high += f" + {c} * ({last})"
            found.append(f"({low} < 0) | ({high} >= {side}_size_{axis})")
    return found


# ---- the second stage of a shared sum

TOTAL = '''"""The shares of a sum, added in order."""
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total"])
def {name}(parts, out, total, {sizes}, {strides}{scale}, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    sums = tl.load(parts + i, mask=inside, other=0.0)
    for k in range(1, SPLIT):
        sums += tl.load(parts + (k * total.to(tl.int64) + i), mask=inside, other=0.0)
'''


def total(d: Design) -> tuple[str, str, list[str], list[str]]:
    """The text of the kernel that adds the shares; its name, and its sizes and strides in order."""
    order = (*d.problem.batch, *d.problem.rows, *d.problem.columns)
    sizes = [f"{v.name}_n" for v in order]
    strides = [f"out_{s}" for s in (*d.symbols("out"), "base") if f"out_{s}" not in d.ones]
    name = f"{d.name}_total"
    w = Lines(1)
    for v in reversed(order):
        w(f"{v.name} = i % {v.name}_n", f"i = i // {v.name}_n")
    terms = [s if f"out_{s}" in d.ones else f"{s}.to(tl.int64) * out_{s}" for s in d.symbols("out")]
    w(f"place = {joined(['out_base', *terms], '+', '')}")
    w(f"tl.store(out + place, (sums{' * scale' if d.scaled else ''}).to(out.dtype.element_ty), mask=inside)")
    text = TOTAL.format(
        name=name, sizes=", ".join(sizes), strides=", ".join(strides), scale=", scale" if d.scaled else ""
    )
    return text + "\n".join(w.lines) + "\n", name, sizes, strides
