"""The epilogue of a Hopper kernel: sums that may be wrong are computed again, and all are stored or added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from tilec.backends.triton.matmul.hopper.design import ALIGNED, IMPORTED_NAMES, Design, Lines, joined, spell
from tilec.backends.triton.matmul.hopper.epilogue import PIECE_BITS, SWIZZLED
from tilec.backends.triton.matmul.hopper.form import Variable, coefficients
from tilec.backends.triton.matmul.hopper.tiles import advance, box_text, coordinate, place, select_copy, start
from tilec.backends.triton.plan.check_lines import free_names
from tilec.backends.triton.plan.lines import CONSTEXPR, assign
from tilec.backends.triton.plan.source import PROGRAM, KernelFile, KernelFunction, called, hole

_FEW = "16 if BN > 16 else BN"  # columns that are computed again at a time
_ONE = "gl.BlockedLayout([1], [32], [gl.num_warps()], [0])"  # the layout of a number in shared memory
FLAGS = 128  # tiles of a program that may be noted as wrong
EVERY_TILE = ("number", f"range({PROGRAM[0]}, tiles, gl.num_programs(0))")  # of a program that stays


def staging(w: Lines, d: Design) -> None:
    """Where a tile waits for its copy to the output."""
    if d.out is not None:
        w.assign(
            "staged", f"gl.allocate_shared_memory(out_map_0.dtype, [{', '.join(box_text(d.out))}], out_map_0.layout)"
        )


def finish_tile(w: Lines, d: Design) -> None:
    """Store a tile's sums. A program that stays notes which of its tiles are wrong, and leaves these out."""
    if not d.exact:
        _store_all(w, d)
        return
    w.assign("wrong", "0")
    with _where_suspect(w, d):
        _look(w, d)
        if d.specialise:
            w.effect(f"flags.index(count).store(gl.full([1], wrong, gl.int32, {_ONE}))")
    if d.specialise:
        w.assign("bad", "gl.maximum(bad, wrong)")
        with w.branch("wrong == 0"):
            _store_all(w, d)
        return
    with w.branch("wrong != 0"):
        _call_recompute(w, d)
    with w.otherwise():
        _store_all(w, d)


def allocate_flags(w: Lines, d: Design) -> None:
    """A number for each of a program's tiles, and then for each group of warps whether it has noted one."""
    w.assign("flags", f"gl.allocate_shared_memory(gl.int32, [{FLAGS + d.consumers}, 1], mbarrier.MBarrierLayout())")


def note_wrong(w: Lines) -> None:
    """Tell, at the end of a group of warps, whether some tile is wrong."""
    w.effect(f"flags.index({FLAGS} + WHICH).store(gl.full([1], bad, gl.int32, {_ONE}))")


def finish_program(w: Lines, d: Design) -> None:
    """Compute those tiles again that groups of warps have noted: after all, so that one copy of the text serves."""
    noted = [f"gl.max(flags.index({FLAGS + k}).load({_ONE}), 0)" for k in range(d.consumers)]
    w.assign("bad", joined(noted, "+", ""))
    with w.branch("bad != 0"):
        w.assign("count", "0")
        with w.loop(*EVERY_TILE):
            w.assign("tile", "number")
            place(w, d)
            with _where_suspect(w, d), w.branch(f"gl.max(flags.index(count).load({_ONE}), 0) != 0"):
                _call_recompute(w, d)
            w.assign("count", "1", "+=")


def _where_suspect(w: Lines, d: Design) -> AbstractContextManager[None]:
    """Where a tile's sums may be wrong."""
    if d.same is not None:
        return nullcontext()
    w.assign("suspect", joined(_suspicions(d), "|", ""))
    return w.branch("suspect")


def _call_recompute(w: Lines, d: Design) -> None:
    f = recomputing(d)[-1]
    call = f"{hole(f.name)}({', '.join((*f.parameters, *f.constants))})"
    if d.unrolled is None:
        w.effect(call)
        return
    with w.loop("value", f"range({len(d.results)})"):
        w.effect(call)
        w.assign(d.unrolled[0], f"B_{d.unrolled[0]}", "+=")


def _look(w: Lines, d: Design) -> None:
    """Whether some sum is not finite, by their sum: it is not then, and hardly ever otherwise."""
    for sums in d.results:
        wrong = f'gl.where(gl.abs(gl.sum(gl.sum({sums}, 1), 0)) < float("inf"), 0, 1)'
        w.assign("wrong", wrong if d.unrolled is None else f"gl.maximum(wrong, {wrong})")


def _store_all(w: Lines, d: Design) -> None:
    if d.unrolled is None:
        _store(w, d, "sums")
        return
    for sums in d.results:
        with w.branch(f"{d.unrolled[0]} < {d.unrolled[0]}_n"):
            _store(w, d, sums)
        w.assign(d.unrolled[0], f"B_{d.unrolled[0]}", "+=")


def _store(w: Lines, d: Design, sums: str) -> None:
    """Through shared memory: by tensor maps, or by wide stores of rows."""
    scaled = f"{sums} * scale" if d.scaled and not d.split else sums
    if d.by_pieces:
        _store_by_pieces(w, d, scaled)
        return
    if d.sums_stored:
        _store_box(w, d, "sum", scaled)
    if d.on_tile is not None:
        _spread(w, d, "mma", "e", "BN", "0")
        w.assign("stored", _finished(d, scaled, "e"))
        scaled = "stored"
    if d.out is not None:
        _store_box(w, d, "out", scaled)
        if not d.specialise:
            w.effect("tma.store_wait(pendings=0)")
        return
    w.assign("BITS", "out.dtype.element_ty.primitive_bitwidth", CONSTEXPR)
    vector = "128 // BITS if BN * BITS >= 128 else 1"
    if d.factor < ALIGNED:  # no more than are stored at once: a warp writes sectors of memory as a whole
        vector = f"{d.factor} if {d.factor} * BITS < 128 else 128 // BITS"
    w.assign("WIDE", vector, CONSTEXPR)
    w.assign("ACROSS", "BN // WIDE if BN // WIDE < 32 else 32", CONSTEXPR)
    w.assign("flat", "gl.BlockedLayout([1, WIDE], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])", CONSTEXPR)
    w.assign("values", f"gl.convert_layout(({scaled}).to(out.dtype.element_ty), flat)")
    _spread(w, d, "flat", "i", "BN", "0")
    _put(w, d, "i", "values")


def _store_by_pieces(w: Lines, d: Design, sums: str) -> None:
    """Through shared memory, where a loop takes swizzled rows of the sums, a few at a time, and puts the epilogue of
    them into their places: its text is that of one piece."""
    assert d.out is not None
    if d.sums_stored:
        _store_box(w, d, "sum", sums)
        w.effect("tma.store_wait(pendings=0)")
    else:
        _stage(w, d, "out", sums)
    w.assign("BITS", "out_map_0.dtype.primitive_bitwidth", CONSTEXPR)
    w.assign("WIDTH", f"{8 * SWIZZLED} // BITS", CONSTEXPR)
    w.assign("HEIGHT", f"BITS // {PIECE_BITS} * gl.num_warps()", CONSTEXPR)
    w.assign("flat", "gl.BlockedLayout([1, WIDTH // 8], [4, 8], [gl.num_warps(), 1], [1, 0])", CONSTEXPR)
    w.assign("boxed", "gl.NVMMASharedLayout.get_default_for([HEIGHT, WIDTH], out_map_0.dtype)", CONSTEXPR)
    w.assign("DOWN", "BM // HEIGHT", CONSTEXPR)
    w.assign("pieces", "seen_as(staged, out_map_0.dtype, [DOWN * (BN // WIDTH), HEIGHT, WIDTH], boxed)")
    with w.loop("piece", "range(DOWN * (BN // WIDTH))"):
        _spread(w, d, "flat", "e", "WIDTH", "piece // DOWN * WIDTH", "HEIGHT", "piece % DOWN * HEIGHT")
        w.assign("stored", _finished(d, "pieces.index(piece).load(flat)", "e"))
        w.effect("pieces.index(piece).store((stored).to(out_map_0.dtype))")
    w.effect("fence_async_shared()")
    _copy_out(w, d, "out")
    if not d.specialise:
        w.effect("tma.store_wait(pendings=0)")


def _store_box(w: Lines, d: Design, side: str, values: str) -> None:
    """Store a tile through shared memory, by the maps of the output or of the sums as they are."""
    _stage(w, d, side, values)
    w.effect("fence_async_shared()")
    _copy_out(w, d, side)


def _stage(w: Lines, d: Design, side: str, values: str) -> None:
    """Bring a tile to shared memory, once that is free."""
    if d.specialise or d.sums_stored and side == "out":
        w.effect("tma.store_wait(pendings=0)")
    else:
        staging(w, d)
    w.effect(f"staged.reshape([BM, BN]).store(({values}).to(out_map_0.dtype))")


def _copy_out(w: Lines, d: Design, side: str) -> None:
    assert d.out is not None
    at = ", ".join([coordinate(w, "out", dim) for dim in d.out.dims])
    select_copy(w, "out", d.out, [f"copy_out({side}_map_{k}, [{at}], staged)" for k in range(len(d.out.choices))])


def _put(w: Lines, d: Design, mark: str, values: str, to: str = "out") -> None:
    """Store a block of elements whose variables are `<name>_<mark>`, to the output or to the share's part of it; the
    sums as they are lie in memory as that does."""
    p = d.problem
    names = {v.name: f"{v.name}_{mark}" for v in p.rows + p.columns + p.digits}
    inside = f"rows_{mark}[:, None] & columns_{mark}[None, :]"
    if not d.split:
        scalar, row, column = _offsets(d, "out", names)
        parts = [scalar, f"({row})[:, None]" if row else "", f"({column})[None, :]" if column else ""]
        w.store(f"{to} + ({joined([t for t in parts if t], '+', '')})", values, inside)
        return
    row, column = (_flat_index(group, names) for group in (p.rows, p.columns))
    rows, columns, batches = (joined([f"{v.name}_n" for v in g], "*", "1") for g in (p.rows, p.columns, p.batch))
    w.assign(f"first_{mark}", f"(outer * ({batches}) + {_flat_index(p.batch, {})}).to(gl.int64) * ({rows})")
    w.assign(f"place_{mark}", f"((first_{mark} + ({row})) * ({columns}))[:, None] + ({column})[None, :]")
    w.store(f"out + place_{mark}", values, inside)


def _flat_index(group: Sequence[Variable], names: Mapping[str, str]) -> str:
    text = ""
    for v in group:
        shown = names.get(v.name, v.name)
        text = f"({text}) * {v.name}_n + {shown}" if text else shown
    return text or "0"


def _spread(
    w: Lines, d: Design, layout: str, mark: str, width: str, first: str, height: str = "BM", first_row: str = "0"
) -> None:
    """The variables of `height` rows from `first_row` on and of `width` columns from `first` on as vectors,
    `<name>_<mark>`; `rows_<mark>` and `columns_<mark>` say which are in range."""
    terms: dict[str, list[str]] = {"rows": [], "columns": []}
    groups = (("rows", d.problem.rows, height, first_row, 1), ("columns", d.problem.columns, width, first, 0))
    for side, group, size, start_at, axis in groups:
        number = f"{side}_at_{mark}"
        shift = "" if start_at == "0" else f"{start_at} + "
        w.assign(number, f"{shift}gl.arange(0, {size}, layout=gl.SliceLayout({axis}, {layout}))")
        below = ""
        for v in reversed(group):
            w.assign(f"{v.name}_{mark}", f"{v.name} + {number}{below} % B_{v.name}")
            below += f" // B_{v.name}"
            count = d.hinted(f"{v.name}_n") if v is group[-1] and side == "columns" else f"{v.name}_n"
            terms[side].append(f"({v.name}_{mark} < {count})")
            if not d.split:
                _digits(w, d, v, f"_{mark}")
    for axis in d.guards:
        form = d.problem.out[axis]
        side = "rows" if any(form.coefficient(v.name) for v in d.problem.rows) else "columns"
        shown = {v.name: f"{v.name}_{mark}" for v in d.problem.rows + d.problem.columns}
        terms[side].append(f"({spell(form, shown)} < out_size_{axis})")
    for side, tests in terms.items():
        w.assign(f"{side}_{mark}", joined(tests, "&", ""))


def _digits(w: Lines, d: Design, v: Variable, mark: str = "") -> None:
    """The digits of a row or column, `<name><mark>`."""
    rest = f"{v.name}{mark}"
    for digit in d.problem.digits_of(v.name):
        size = f"{digit.name}_n"  # which what divides the rows of the output need not divide
        counted = digit in d.counted_digits
        w.assign(f"{digit.name}{mark}", f"{rest} % ({size})" if counted else rest)
        rest = f"({rest}) // ({size})"


def _offsets(d: Design, side: str, names: Mapping[str, str]) -> tuple[str, str, str]:
    """Element offsets of an operand: the scalar part, that of the rows, that of the columns."""
    scalar: list[str] = [d.hinted(f"{side}_base") if side == "out" else f"{side}_base"]
    row: list[str] = []
    column: list[str] = []
    for name in d.symbols(side):
        shown = names.get(name, name)
        stride = f"{side}_{name}"
        step = f"({d.hinted(stride)})" if side == "out" and d.hinted(stride) != stride else stride
        term = shown if stride in d.ones else f"{shown}.to(gl.int64) * {step}"
        {"r": row, "c": column}.get(name[0] if shown != name else "", scalar).append(term)
    return " + ".join(scalar), " + ".join(row), " + ".join(column)


def recomputing(d: Design) -> tuple[KernelFunction, ...]:
    """The tile once more from its valid points alone, as a function of what it reads, after the one of a few columns
    that it calls: Triton goes through a function's lines once, through those of a loop twice for each loop around."""
    few, every = Lines(), Lines()
    few.assign("FEW", _FEW, CONSTEXPR)
    _recompute(few, d)
    columns = _function("recompute_columns", few, called(finishing(d)))
    every.assign("FEW", _FEW, CONSTEXPR)
    with every.loop("few_at", "range(0, BN, FEW)"):
        every.effect(f"{hole(columns.name)}({', '.join((*columns.parameters, *columns.constants))})")
    return columns, _function("recompute", every, called((columns,)))


def _function(name: str, w: Lines, calls: tuple[tuple[str, str], ...]) -> KernelFunction:
    read = sorted(free_names(name, (), w.lines) - IMPORTED_NAMES - {n for pair in calls for n in pair})
    constants = tuple(n for n in read if n[0].isupper())
    parameters = tuple(n for n in read if n not in constants)
    return KernelFunction(name, parameters, constants, tuple(w.lines), dialect="gluon", calls=calls)


def finishing(d: Design) -> tuple[KernelFunction, ...]:
    """The function of the epilogue, if tiles have one."""
    return () if d.on_tile is None else (d.on_tile.function,)


def _recompute(w: Lines, d: Design) -> None:
    """Points one by one, of a few columns: this shall not take registers from the usual way."""
    side_of = {"left": "r", "right": "c"}
    w.assign("few", "gl.BlockedLayout([1, FEW // 2], [16, 2], [gl.num_warps(), 1], [1, 0])", CONSTEXPR)
    w.assign("again", "gl.zeros((BM, FEW), gl.float32, few)")
    _spread(w, d, "few", "k", "FEW", "few_at")
    start(w, d)
    w.assign("e", "steps * 0")
    with w.loop("point", "range(steps * BK)"):  # of all summed tiles
        below, valid = "", []
        for v in reversed(d.problem.summed):
            w.assign(f"{v.name}_k", f"{v.name} + e{below} % B_{v.name}")
            below += f" // B_{v.name}"
            if v.name in d.boxed:
                valid.append(f"({v.name}_k < {v.name}_n)")
        names = {v.name: f"{v.name}_k" for v in d.problem.rows + d.problem.columns + d.problem.summed}
        for side, own in (("left", "rows_k"), ("right", "columns_k")):
            tests = [own, *valid]
            if d.same is not None and d.same[0][0].startswith(side_of[side]):
                (a, m), (b, n) = d.same
                tests.append(f"({a}_k // {m} == {b}_k // {n})")
            for axis in d.loose[side]:
                w.assign(f"{side}_{axis}_at", spell(d.forms[side][axis], names))
                tests.append(f"({side}_{axis}_at >= 0) & ({side}_{axis}_at < {side}_size_{axis})")
            w.assign(f"{side}_ok", joined(tests, "&", ""))
            offset = joined([t for t in _offsets(d, side, names) if t], "+", "")
            w.assign(f"{side}_value", f"gl.load({side} + ({offset}), mask={side}_ok, other=0.0).to(gl.float32)")
        w.assign("both", "left_ok[:, None] & right_ok[None, :]")
        w.assign("again", "gl.where(both, left_value[:, None] * right_value[None, :], 0.0)", "+=")
        w.add(assign("e", "1", "+="), assign("ended", "e == BK"), assign("e", "gl.where(ended, 0, e)"))
        advance(w, d, "gl.where(ended, {}, 0)")
    if d.scaled and not d.split:
        w.assign("again", "again * scale")
    if d.sums_stored:
        _put(w, d, "k", "again.to(out.dtype.element_ty)", "sum_out")
    if d.on_tile is not None:
        w.assign("again", _finished(d, "again", "k"))
    _put(w, d, "k", "again.to(out.dtype.element_ty)")


def _finished(d: Design, sums: str, mark: str) -> str:
    """A block of sums after the epilogue, whose variables are `<name>_<mark>`."""
    assert d.on_tile is not None
    p = d.problem
    places = [*(f"{v.name}_{mark}" for v in p.rows + p.columns), *(v.name for v in p.batch)]
    given = [sums, f"rows_{mark}", f"columns_{mark}", *places, *d.on_tile.arguments]
    return f"{hole(d.on_tile.function.name)}({', '.join(given)})"


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
                    last = f"gl.minimum({name} + {d.reach(name)}, {name}_n) - 1"
                elif name in summed:
                    first, last = "0", f"{name}_n - 1"
                if c < 0:
                    first, last = last, first
                low += f" + {c} * ({first})"
                high += f" + {c} * ({last})"
            found.append(f"({low} < 0) | ({high} >= {side}_size_{axis})")
    return found


def partial_sums_kernel(d: Design) -> tuple[KernelFile, list[str], list[str]]:
    """The kernel that adds the shares, in order; its sizes and strides in order."""
    order = (*d.problem.batch, *d.problem.rows, *d.problem.columns)
    sizes = [f"{name}_n" for name in (*(v.name for v in order), *(x.name for x in d.counted_digits))]
    strides = [f"out_{s}" for s in (*d.symbols("out"), "base") if f"out_{s}" not in d.ones]
    w = Lines()
    w.add(assign("i", f"{PROGRAM[0]} * BLOCK + tl.arange(0, BLOCK)"), assign("inside", "i < total"))
    w.assign("sums", "tl.load(parts + i, mask=inside, other=0.0)")
    with w.loop("k", "tl.range(1, SPLIT, loop_unroll_factor=8)"):
        w.assign("sums", "tl.load(parts + (k * total.to(tl.int64) + i), mask=inside, other=0.0)", "+=")
    for v in reversed(order):
        w.add(assign(v.name, f"i % {v.name}_n"), assign("i", f"i // {v.name}_n"))
        _digits(w, d, v)
    terms = [s if f"out_{s}" in d.ones else f"{s}.to(tl.int64) * out_{s}" for s in d.symbols("out")]
    w.assign("place", joined(["out_base", *terms], "+", ""))
    value, after = f"sums{' * scale' if d.scaled else ''}", d.epilogue
    if after is not None:
        given = [value, "inside", *(v.name for v in (*d.problem.rows, *d.problem.columns, *d.problem.batch))]
        value = f"{hole(after.function.name)}({', '.join([*given, *after.arguments])})"
    w.store("out + place", f"({value}).to(out.dtype.element_ty)", "inside")
    parameters = ("parts", "out", "total", *sizes, *strides, *(("scale",) if d.scaled else ()))
    what = (("the shares of a sum, added in order", ""),)
    kernel = KernelFunction(f"{d.name}_total", parameters, ("SPLIT", "BLOCK"), tuple(w.lines), ("total",), what)
    if after is None:
        return KernelFile(kernel), sizes, strides
    kernel = replace(
        kernel,
        parameters=(*parameters, *after.arguments),
        unspecialized=("total", *after.unspecialized),
        heading=(*what, *after.heading),
        contracts=after.contracts,
        calls=called((after.function,)),
    )
    return replace(after.file, kernel=kernel, own=(after.function,)), sizes, strides
