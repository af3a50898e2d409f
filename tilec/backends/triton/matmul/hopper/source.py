"""The text of a Hopper kernel for a product of two tensors, summed.

A tile's boxes are copied by TMA into a ring of shared-memory buffers and read from there by wgmma, seen as matrices of
rows (columns) by summed points.
What TMA reads outside a tensor is zero, so a point at which an operand is outside adds nothing, unless the other
operand is infinite or NaN there: tiles for which that
may be look at their sums, and where one is not finite take them again from the valid points alone.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.backends.triton.matmul.hopper.design import IMPORTED_NAMES, Design, Lines
from tilec.backends.triton.matmul.hopper.finish import (
    EVERY_TILE,
    allocate_flags,
    finish_program,
    finish_tile,
    finishing,
    note_wrong,
    recomputing,
    staging,
)
from tilec.backends.triton.matmul.hopper.tiles import (
    advance,
    box_text,
    coordinate,
    counts,
    place,
    select_copy,
    start,
    tile_extents,
)
from tilec.backends.triton.matmul.hopper.views import View
from tilec.backends.triton.plan.check_lines import check_defined
from tilec.backends.triton.plan.lines import Effect, assign
from tilec.backends.triton.plan.source import IMPORTS, PROGRAM, KernelFile, KernelFunction, called, hole

WHAT = "sums of products of two tensors: boxes copied by TMA, multiplied by wgmma"
IMPORTED = (
    *IMPORTS,
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    """from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)""",
    'copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared',
    'copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global',
)
SEEN_AS = """descriptor = gl.shared_memory_descriptor
seen_as = descriptor.reinterpret if hasattr(descriptor, "reinterpret") else descriptor._reinterpret"""


def parameters(d: Design) -> tuple[list[str], list[str], list[str], list[str]]:
    """Tensor maps, pointers, integers, and integers that may be specialised, in the order of the signature."""
    maps = [f"{side}_map_{k}" for side, v in (("left", d.left), ("right", d.right)) for k in range(len(v.choices))]
    stored = ("out", "sum") if d.sums_stored else ("out",)
    maps += [f"{side}_map_{k}" for side in stored for k in range(0 if d.out is None else len(d.out.choices))]
    pointers = ["left", "right"] if d.exact else []
    written = d.out is None or d.exact
    if written:
        pointers += ["out", "sum_out"] if d.sums_stored else ["out"]
    sizes = [f"{v.name}_n" for v in d.problem.variables if not (v.varies and v in d.problem.summed)]
    # stores and loads are wide where masks are known to change at multiples of a vector
    strides = [s for s in sizes if s[0] == "c"] if d.out is None or d.on_tile is not None else []
    sizes = [s for s in sizes if s not in strides]
    for side in ("left", "right") if d.exact else ():
        sizes += [f"{side}_size_{a}" for a in d.loose[side]]
        strides += [f"{side}_{s}" for s in (*d.symbols(side), "base")]
    if written:
        sizes += [f"out_size_{a}" for a in d.guards]
        strides += [] if d.split else [f"{x.name}_n" for x in d.counted_digits]
        strides += [] if d.split else [f"out_{s}" for s in (*d.symbols("out"), "base")]
    return maps, pointers, sizes, [s for s in strides if s not in d.ones]


def constants(d: Design) -> list[str]:
    return [f"B_{v.name}" for v in d.problem.variables if v not in d.problem.batch] + ["GROUP", "SPLIT", "STAGES"]


def hopper_file(d: Design) -> KernelFile:
    maps, pointers, sizes, strides = parameters(d)
    scale = ["scale"] if d.scaled and not d.split else []
    after = d.on_tile
    fixed, further = tuple(constants(d)), tuple(after.arguments) if after is not None else ()
    given = (*maps, *pointers, *sizes, *strides, *scale, *further)
    exact = recomputing(d) if d.exact else ()
    ended = finishing(d)
    w, roles = _specialised(d, given, fixed, called(ended)) if d.specialise else (_alone(d), ())
    kernel = KernelFunction(
        d.name,
        given,
        fixed,
        tuple(w.lines),
        (*sizes, *(after.unspecialized if after is not None else ())),
        ((WHAT, ""), *(after.heading if after is not None else ())),
        contracts=after is None or after.contracts,
        dialect="gluon",
        calls=called((*roles, *exact) if roles else (*ended, *exact)),
    )
    return gluon_file(kernel, (*ended, *exact, *roles), None if after is None else after.file)


def gluon_file(
    kernel: KernelFunction, own: tuple[KernelFunction, ...], written: KernelFile | None = None
) -> KernelFile:
    """The file of a kernel and its own functions, one of which is that of `written`."""
    file = KernelFile(kernel, own, imports=IMPORTED)
    known = IMPORTED_NAMES
    if "seen_as" in file.free:
        file = replace(file, imports=(*IMPORTED, SEEN_AS))
    if written is not None:
        further = tuple(line for line in written.imports if line not in file.imports)
        file = replace(file, shared=written.shared, imports=(*file.imports, *further))
        known |= written.free
    check_defined(kernel.name, file.free, known)
    return file


def _alone(d: Design) -> Lines:
    """A program for each tile, all of whose warps copy and multiply."""
    w = Lines()
    counts(w, d)
    _buffers(w, d)
    w.assign("bars", "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
    with w.loop("k", "gl.static_range(STAGES)"):
        w.effect("mbarrier.init(bars.index(k), count=1)")
    w.assign("tile", PROGRAM[0])
    place(w, d)
    start(w, d)
    with w.loop("k", "gl.static_range(STAGES - 1)"):
        _fill(w, d, "k", "k < steps")
        advance(w, d)
    _zeros(w, d)
    with w.loop("t", "range(steps)"):
        w.add(assign("slot", "t % STAGES"), Effect("mbarrier.wait(bars.index(slot), (t // STAGES) & 1)"))
        _multiply(w, d)
        _wait(w, d)
        w.assign("ahead", "t + STAGES - 1")
        _fill(w, d, "ahead % STAGES", "ahead < steps")
        advance(w, d)
    _wait_all(w, d)
    with w.loop("k", "gl.static_range(STAGES)"):
        w.effect("mbarrier.invalidate(bars.index(k))")
    finish_tile(w, d)
    return w


def _specialised(
    d: Design, given: tuple[str, ...], fixed: tuple[str, ...], calls: tuple[tuple[str, str], ...]
) -> tuple[Lines, tuple[KernelFunction, ...]]:
    """Programs that stay: a warp copies ahead through all of a program's tiles, and one or two groups of warps
    multiply. Two take turns, so that one stores while the other multiplies. The kernel's lines, and the functions of
    either; `calls`: of those that multiply."""
    shared = ("left_ring", "right_ring", "full", "free") + ("done",) * (d.consumers == 2) + ("flags",) * d.exact
    w = Lines()
    counts(w, d)
    w.assign("turn", "0")
    with w.loop(*EVERY_TILE):
        w.assign("tile", "number")
        place(w, d)
        start(w, d)
        with w.loop("t", "range(steps)"):
            w.add(
                assign("slot", "turn % STAGES"), Effect("mbarrier.wait(free.index(slot), ((turn // STAGES) & 1) ^ 1)")
            )
            _fill(w, d, "slot", None)
            advance(w, d)
            w.assign("turn", "1", "+=")
    produce = KernelFunction("produce", (*shared, *given), fixed, tuple(w.lines), dialect="gluon")
    w = Lines()
    counts(w, d)
    staging(w, d)
    w.add(assign("turn", "0"), assign("count", "0"))
    if d.exact:
        w.assign("bad", "0")
    with w.loop(*EVERY_TILE):
        w.assign("tile", "number")
        place(w, d)
        if d.consumers == 1:
            _consume(w, d)
        else:
            with w.branch("count % 2 == WHICH"):
                _consume(w, d)
        if d.consumers == 2 or d.exact:
            w.assign("count", "1", "+=")
        w.assign("turn", "steps", "+=")
    if d.out is not None:
        w.effect("tma.store_wait(pendings=0)")
    if d.exact:
        note_wrong(w)
    own = (*fixed, "WHICH")
    consume = KernelFunction("consume", (*shared, *given), own, tuple(w.lines), dialect="gluon", calls=calls)
    w = Lines()
    (counts if d.exact else tile_extents)(w, d)
    _buffers(w, d)
    if d.exact:
        allocate_flags(w, d)
    w.assign("full", "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
    w.assign("free", "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
    with w.loop("k", "gl.static_range(STAGES)"):
        w.add(Effect("mbarrier.init(full.index(k), count=1)"), Effect("mbarrier.init(free.index(k), count=1)"))
    if d.consumers == 2:
        w.assign("done", "gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())")
        w.add(Effect("mbarrier.init(done.index(0), count=1)"), Effect("mbarrier.init(done.index(1), count=1)"))
    passed = ", ".join([*shared, *given, *fixed])
    parts = [f"({hole('consume')}, ({passed}, {k}))" for k in range(d.consumers)]
    parts += [f"({hole('produce')}, ({passed}))"]
    warps, registers = ("[1]", "[32]") if d.consumers == 1 else ("[4, 1]", "[232, 32]")
    w.effect(f"gl.warp_specialize(\n    [{', '.join(parts)}],\n    {warps},\n    {registers},\n)")
    if d.exact:
        finish_program(w, d)
    return w, (produce, consume)


def _consume(w: Lines, d: Design) -> None:
    """One tile of a program that stays."""
    start(w, d)
    _zeros(w, d)
    if d.consumers == 2:
        # a barrier tells two phases apart: who waits for a buffer must not be further ahead of it than that
        w.effect("mbarrier.wait(done.index(1 - WHICH), ((count - 1) // 2) & 1, pred=count > 0)")
    with w.loop("t", "range(steps)"):
        w.add(
            assign("at", "turn + t"),
            assign("slot", "at % STAGES"),
            Effect("mbarrier.wait(full.index(slot), (at // STAGES) & 1)"),
        )
        _multiply(w, d)
        _wait(w, d)
        w.effect("mbarrier.arrive(free.index((at + STAGES - 1) % STAGES), count=1, pred=t > 0)")
    if d.consumers == 2:
        w.effect("mbarrier.arrive(done.index(WHICH), count=1)")
    _wait_all(w, d)
    w.effect("mbarrier.arrive(free.index((turn + steps + STAGES - 1) % STAGES), count=1, pred=steps > 0)")
    finish_tile(w, d)


def _zeros(w: Lines, d: Design) -> None:
    for acc in d.sums:
        w.assign(acc, "warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, mma))")


def _wait(w: Lines, d: Design) -> None:
    """Until the step before has been multiplied."""
    waited = f"warpgroup_mma_wait(num_outstanding={len(d.sums)}, deps=({', '.join(d.sums)},))"
    if d.unrolled is None:
        w.assign("acc", f"warpgroup_mma_init({waited})")
        return
    w.assign("held", waited)
    for k, acc in enumerate(d.sums):
        w.assign(acc, f"warpgroup_mma_init(held[{k}])")


def _wait_all(w: Lines, d: Design) -> None:
    w.assign("sums", f"warpgroup_mma_wait(num_outstanding=0, deps=({', '.join(d.sums)},))")


def _buffers(w: Lines, d: Design) -> None:
    for side in ("left", "right"):
        box = ", ".join(box_text(d.left if side == "left" else d.right))
        count = f"{len(d.sums)} * STAGES" if side == "right" and d.unrolled is not None else "STAGES"
        w.assign(
            f"{side}_ring", f"gl.allocate_shared_memory({side}_map_0.dtype, [{count}, {box}], {side}_map_0.layout)"
        )


def _fill(w: Lines, d: Design, slot: str, when: str | None) -> None:
    """Have one step's boxes copied."""
    w.assign("bar", f"{'full' if d.specialise else 'bars'}.index({slot})")
    if when is not None:
        w.assign("some", when)
    condition = "" if when is None else ", pred=some"
    right = "right_map_0.block_type.nbytes" if d.unrolled is None else f"{len(d.sums)} * right_map_0.block_type.nbytes"
    w.effect(f"mbarrier.expect(bar, left_map_0.block_type.nbytes + {right}{condition})")
    _copy(w, d, "left", slot, condition)
    for k in range(len(d.sums)):
        if d.unrolled is not None and k:
            w.assign(d.unrolled[0], f"B_{d.unrolled[0]}", "+=")
        _copy(w, d, "right", _right_slot(d, slot, k), condition)
    if d.unrolled is not None:
        w.assign(d.unrolled[0], f"{len(d.sums) - 1} * B_{d.unrolled[0]}", "-=")


def _copy(w: Lines, d: Design, side: str, slot: str, condition: str) -> None:
    view = d.left if side == "left" else d.right
    at = ", ".join(coordinate(w, side, dim) for dim in view.dims)
    choices = range(len(view.choices))
    copies = [f"copy_in({side}_map_{k}, [{at}], bar, {side}_ring.index({slot}){condition})" for k in choices]
    select_copy(w, side, view, copies)


def _right_slot(d: Design, slot: str, k: int) -> str:
    return slot if d.unrolled is None else f"({slot}) * {len(d.sums)} + {k}"


def _multiply(w: Lines, d: Design) -> None:
    left = _seen(d, d.left, "left_ring", "slot")
    for k, acc in enumerate(d.sums):
        right = _seen(d, d.right, "right_ring", _right_slot(d, "slot", k))
        w.assign(acc, f"warpgroup_mma({left}, {right}, {acc}, is_async=True)")


def _seen(d: Design, view: View, ring: str, slot: str) -> str:
    """A buffer as a matrix: rows by summed points, or these by columns."""
    summed = {v.name for v in d.problem.summed}
    width, turned = ("BM", False) if ring == "left_ring" else ("BN", True)
    turn, buffer = ".permute((1, 0))", f"{ring}.index({slot})"
    if view.inner in summed:
        return f"{buffer}.reshape([{width}, BK])" + turn * turned
    own = [dim for dim in view.dims if dim.boxed is not None and dim.boxed not in summed]
    if len(own) > 1:
        matrix = f"[BK, {width}]"
        layout = f"gl.NVMMASharedLayout.get_default_for({matrix}, {ring}.dtype)"
        return f"seen_as({buffer}, {ring}.dtype, {matrix}, {layout})" + turn * (not turned)
    return f"{buffer}.reshape([BK, {width}])" + turn * (not turned)
