"""The text of a Hopper kernel for a product of two tensors, summed.

A tile's boxes are copied by TMA into a ring of shared-memory buffers and read from there by wgmma, seen as matrices of rows (columns) by summed points.
What TMA reads outside a tensor is zero, so a point at which an operand is outside adds nothing, unless the other operand is infinite or NaN there: tiles for which that
may be look at their sums, and where one is not finite take them again from the valid points alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.triton.hopper_design import Design, Lines, joined, spell
from tilec.backends.triton.hopper_finish import finish, staging
from tilec.backends.triton.hopper_tiles import advance, box_text, counts, extents, place, start
from tilec.backends.triton.hopper_views import BIAS, Dim

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


def parameters(d: Design) -> tuple[list[str], list[str], list[str], list[str]]:
    """Tensor maps, pointers, integers, and integers that may be specialised, in the order of the signature."""
    maps = [f"{side}_map_{k}" for side, v in (("left", d.left), ("right", d.right)) for k in range(len(v.choices))]
    if d.out is not None:
        maps.append("out_map")
    pointers = ["left", "right"] if d.exact else []
    if d.out is None:
        pointers.append("out")
    sizes = [f"{v.name}_n" for v in d.problem.variables if not (v.varies and v in d.problem.summed)]
    # stores are wide where masks are known to change at multiples of a vector
    strides = [s for s in sizes if s[0] == "c"] if d.out is None else []
    sizes = [s for s in sizes if s not in strides]
    for side in ("left", "right") if d.exact else ():
        sizes += [f"{side}_size_{a}" for a in d.loose[side]]
        strides += [f"{side}_{s}" for s in (*d.symbols(side), "base")]
    if d.out is None and not d.split:
        sizes += [f"out_size_{a}" for a in d.guards]
        strides += [f"out_{s}" for s in (*d.symbols("out"), "base")]
    return maps, pointers, sizes, [s for s in strides if s not in d.ones]


def constants(d: Design) -> list[str]:
    return [f"B_{v.name}" for v in d.problem.variables if v not in d.problem.batch] + ["GROUP", "SPLIT", "STAGES"]


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
            counts(w, d)
            _buffers(w, d)
            w("bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
            with w.block("for k in gl.static_range(STAGES):"):
                w("mbarrier.init(bars.index(k), count=1)")
            w("tile = gl.program_id(0)")
            place(w, d)
            start(w, d)
            with w.block("for k in gl.static_range(STAGES - 1):"):
                _fill(w, d, "k", "k < steps")
                advance(w, d)
            w("acc = warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, mma))")
            with w.block("for t in range(steps):"):
                w("slot = t % STAGES", "mbarrier.wait(bars.index(slot), (t // STAGES) & 1)")
                _multiply(w, d)
                w(
                    "acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))",
                    "ahead = t + STAGES - 1",
                )
                _fill(w, d, "ahead % STAGES", "ahead < steps")
                advance(w, d)
            w("sums = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))")
            with w.block("for k in gl.static_range(STAGES):"):
                w("mbarrier.invalidate(bars.index(k))")
            finish(w, d)
    return HEADER + "\n".join(w.lines) + "\n"


def _specialised(w: Lines, d: Design, given: Sequence[str], fixed: Sequence[str], sizes: Sequence[str]) -> None:
    shared = ["left_ring", "right_ring", "full", "free"]
    everything = ", ".join([*shared, *given, *fixed])
    header = ", ".join([*shared, *given, *(f"{c}: gl.constexpr" for c in fixed)])
    w("", "", "@gluon.jit")
    with w.block(f"def produce({header}):"):
        counts(w, d)
        w("turn = 0")
        with w.block("for number in range(gl.program_id(0), tiles, gl.num_programs(0)):"):
            w("tile = number")
            place(w, d)
            start(w, d)
            with w.block("for t in range(steps):"):
                w("slot = turn % STAGES", "mbarrier.wait(free.index(slot), ((turn // STAGES) & 1) ^ 1)")
                _fill(w, d, "slot", None)
                advance(w, d)
                w("turn += 1")
    w("", "", "@gluon.jit")
    with w.block(f"def consume({header}):"):
        counts(w, d)
        staging(w, d)
        w("turn = 0")
        with w.block("for number in range(gl.program_id(0), tiles, gl.num_programs(0)):"):
            w("tile = number")
            place(w, d)
            start(w, d)
            w("acc = warpgroup_mma_init(gl.zeros((BM, BN), gl.float32, mma))")
            with w.block("for t in range(steps):"):
                w("slot = turn % STAGES", "mbarrier.wait(full.index(slot), (turn // STAGES) & 1)")
                _multiply(w, d)
                w("acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))")
                w("mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1, pred=t > 0)", "turn += 1")
            w("sums = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))")
            w("mbarrier.arrive(free.index((turn + STAGES - 1) % STAGES), count=1, pred=steps > 0)")
            finish(w, d)
        if d.out is not None:
            w("tma.store_wait(pendings=0)")
    w("", "", f"@gluon.jit(do_not_specialize={list(sizes)!r})")
    with w.block(f"def {d.name}({', '.join(given)}, {', '.join(f'{c}: gl.constexpr' for c in fixed)}):"):
        extents(w, d)
        _buffers(w, d)
        w("full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        w("free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        with w.block("for k in gl.static_range(STAGES):"):
            w("mbarrier.init(full.index(k), count=1)", "mbarrier.init(free.index(k), count=1)")
        w(f"gl.warp_specialize([(consume, ({everything})), (produce, ({everything}))], [1], [32])")


def _buffers(w: Lines, d: Design) -> None:
    for side in ("left", "right"):
        box = ", ".join(box_text(d.left if side == "left" else d.right))
        w(f"{side}_ring = gl.allocate_shared_memory({side}_map_0.dtype, [STAGES, {box}], {side}_map_0.layout)")


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
