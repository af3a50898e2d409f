"""Kernels for Hopper: products of two tensors, summed, through TMA and wgmma.

`plan_hopper` says how one is carried out, or None where the chip's rules do not fit; the pointer kernels serve those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.backends.triton.matmul.hopper.design import ALIGNED, Design
from tilec.backends.triton.matmul.hopper.epilogue import SWIZZLED, Epilogue, by_pieces, epilogue_text, is_epilogue
from tilec.backends.triton.matmul.hopper.finish import FLAGS, partial_sums_kernel
from tilec.backends.triton.matmul.hopper.form import (
    HopperConfig,
    HopperDot,
    HopperProblem,
    Variable,
    coefficients,
    form_bounds,
)
from tilec.backends.triton.matmul.hopper.source import constants, hopper_file, parameters
from tilec.backends.triton.matmul.hopper.views import TensorView, View, descriptors, ends, may_leave, view
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS, PLANNED_FOR
from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer
from tilec.ir.index import Affine
from tilec.ir.symbolic import gcd

MAPPED = {"float16", "bfloat16", "float32"}  # types that tensor maps are made for
PARTS = ".parts"  # the workspace of a shared sum: float32 [split, batch, rows, columns]
TOTAL_BLOCK, SMALL_TOTAL_BLOCK = 1024, 256  # elements of a program that adds shares; where those are few
MAX_COUNT = 2**31 - 1
SHARED_MEMORY = PLANNED_FOR.shared
MOST_UNROLLED = 320  # columns of all of a program's sums, of 64 rows: 160 registers of a thread


def plan_hopper(
    dot: HopperDot, tensors: Mapping[str, TensorView], config: HopperConfig, epilogue: Epilogue | None = None
) -> list[Launch] | None:
    """The launches that write dot's output, or None where TMA, wgmma or the config's boxes do not allow it.

    Tensors are given by name, of "float16", "bfloat16" or, with config.tf32, "float32" for both operands; the output
    any of these. Their first elements lie at multiples of 16 bytes. With config.split above 1 there are two launches,
    and `Pointer(output + ".parts")` names a float32 workspace of `split` times the output's elements: the second
    launch's `total` times the first's constant SPLIT. With an epilogue, dot's output is the last one's.
    """
    if epilogue is not None and (dot.digits or not is_epilogue(epilogue)):
        return None
    dtype, other, out = (tensors[name].dtype for name in (dot.left.tensor, dot.right.tensor, dot.output))
    if dtype != other or not {dtype, out} <= MAPPED or dtype == "float32" and not config.tf32:
        return None
    dot = oriented(dot, tensors[dot.output])
    problem = dot.normalised
    if (
        problem is None
        or all(r is None for r in problem.ranges)
        or not (problem.rows and problem.columns and problem.summed)
    ):
        return None
    named = dict(config.boxes)
    boxes = {v.name: named.get(v.source, 1) for v in problem.variables}
    if config.unrolled is not None and len(problem.table) > 1:
        return None
    if not _fits(problem, boxes, config, tensors[dot.left.tensor].size, tensors[dot.output].size):
        return None
    return _launches(dot, problem, boxes, config, tensors, epilogue)


def oriented(dot: HopperDot, out: TensorView) -> HopperDot:
    """With the output's contiguous axis among the columns."""
    form = None if out.inner is None else dot.index[out.inner]
    walked = () if form is None else form.variables()
    if form is not None and dot.digits:
        walked = tuple(v for v in walked if form.coefficient(v) == 1)
    return dot.turned() if any(dot.owner(v) in dot.rows for v in walked) else dot


def _fits(problem: HopperProblem, boxes: Mapping[str, int], config: HopperConfig, size: int, out_size: int) -> bool:
    """Do a tile's extents suit wgmma, its registers and shared memory?"""
    m, n, k = (math.prod(boxes[v.name] for v in group) for group in (problem.rows, problem.columns, problem.summed))
    powers = all(b > 0 and b & (b - 1) == 0 for b in boxes.values()) and all(boxes[v.name] == 1 for v in problem.batch)
    staged = m * n * (4 if config.split > 1 else out_size) * config.consumers
    several = 1 if config.unrolled is None else config.unrolled[1]
    shared = config.stages * (m + several * n) * k * size + staged
    varying = any(v.varies and boxes[v.name] > 1 for v in problem.summed)
    rows = 16 * config.warps
    return (
        powers
        and not varying
        and config.warps in (4, 8)
        and config.consumers * config.warps <= 8
        and m % rows == 0
        and 16 <= n <= 256
        and several * m * n <= rows * (256 if several == 1 else MOST_UNROLLED)
        and k * size >= 32
        and config.stages >= 2
        and shared <= SHARED_MEMORY - 1024
        and (config.split == 1 or len(problem.table) == 1)
    )


def _launches(
    dot: HopperDot,
    problem: HopperProblem,
    boxes: Mapping[str, int],
    config: HopperConfig,
    tensors: Mapping[str, TensorView],
    epilogue: Epilogue | None,
) -> list[Launch] | None:
    tail = [v for v in problem.summed if v.size % boxes[v.name]]
    names = {
        role: [v.name for v in group]
        for role, group in zip("brcs", (problem.batch, problem.rows, problem.columns, problem.summed), strict=True)
    }
    sides = {
        "left": (dot.left.tensor, problem.left, names["r"]),
        "right": (dot.right.tensor, problem.right, names["c"]),
    }
    views: dict[str, View] = {}
    loose: dict[str, tuple[int, ...]] = {}
    ended: dict[str, set[str]] = {}
    for side, (name, forms, own) in sides.items():
        tensor = tensors[name]
        clip = {
            a: size
            for a, form in enumerate(forms)
            for v in tail
            if (size := _clipped(form, v)) is not None and size < tensor.shape[a]
        }
        ended[side] = {
            v.name for v in tail if any(ends(v, f, clip.get(a, tensor.shape[a]), problem) for a, f in enumerate(forms))
        }
        key = side, tuple(boxes[n] for n in (*own, *names["s"])), tuple(clip.items())
        if key not in problem.views:
            problem.views[key] = _operand_view(tensor, forms, problem, boxes, own, names["s"], clip)
        found = problem.views[key]
        if found is None or (tensor.dtype == "float32" and found.inner not in names["s"]):
            return None
        views[side] = found
        loose[side] = tuple(a for a, form in enumerate(forms) if may_leave(form, tensor.shape[a], problem))
    if any(v.name not in ended["left"] | ended["right"] for v in tail):
        return None
    guards = _guards(problem, tensors[dot.output].shape)
    if guards is None:
        return None
    out = None
    single = len(problem.table) == 1 or config.mapped
    if config.split == 1 and single and None not in problem.ranges and not problem.digits:
        out = _output_view(tensors[dot.output], problem, boxes, names["r"] + names["c"])
    sums_stored = epilogue is not None and epilogue.stored
    if epilogue is not None and sums_stored:
        both = [replace(tensors[name], name="") for name in (dot.output, epilogue.sums)]
        if out is None or both[0] != both[1]:
            return None
    written = {**sides, "out": (dot.output, problem.out, ())}
    steps = {side: _strides(forms, tensors[name]) for side, (name, forms, _) in written.items()}
    unrolled = config.unrolled
    after = None if epilogue is None else epilogue_text(epilogue, problem, config.split > 1)
    if epilogue is not None and after is None:
        return None
    (a, m), (b, n) = dot.same or (("", 1), ("", 1))
    design = Design(
        name="product",
        problem=problem,
        left=views["left"],
        right=views["right"],
        out=out,
        loose=loose,
        tails=tuple(v.name for v in tail if not (v.name in ended["left"] and v.name in ended["right"])),
        guards=guards,
        ones=frozenset(
            f"{side}_{name}" for side, found in steps.items() for name, s in found.items() if s == 1 and name != "base"
        ),
        split=config.split > 1,
        scaled=dot.scale != 1.0,
        consumers=config.consumers,
        boxed=frozenset(name for name, box in boxes.items() if box > 1),
        unrolled=None if unrolled is None else (problem.named(unrolled[0]), unrolled[1]),
        same=None if dot.same is None else ((problem.named(a), m), (problem.named(b), n)),
        epilogue=after,
        sums_stored=sums_stored,
        by_pieces=out is not None and epilogue is not None and _by_pieces(problem, boxes, config, epilogue),
        factor=ALIGNED if out is not None else _factor(problem, steps["out"], config.split > 1),
    )
    outputs = (dot.output,) if epilogue is None else epilogue.outputs
    return _assemble(dot, design, boxes, config, tensors, steps, outputs)


def _programs(tiles: int, config: HopperConfig, design: Design) -> int:
    """How many there are: as many as run at once, where these stay and can note their tiles."""
    if not config.consumers:
        return tiles
    at_once = MULTIPROCESSORS * (8 // (config.warps * config.consumers))
    if design.exact and tiles > at_once * FLAGS:
        return -(-tiles // (at_once * FLAGS)) * at_once
    return min(tiles, at_once)


def _factor(problem: HopperProblem, steps: Mapping[str, int], split: bool) -> int:
    """What divides the places where rows of the output begin and end, up to ALIGNED."""
    last = problem.columns[-1]
    if split:
        return ALIGNED if gcd(ALIGNED, last.size) == ALIGNED else 1
    if digits := problem.digits_of(last.name):
        return gcd(ALIGNED, digits[0].size, *steps.values()) if steps.get(digits[0].name) == 1 else ALIGNED
    return gcd(ALIGNED, last.size, *(n for n in steps.values() if n != 1)) if steps.get(last.name) == 1 else ALIGNED


def _by_pieces(problem: HopperProblem, boxes: Mapping[str, int], config: HopperConfig, e: Epilogue) -> bool:
    """Whether a tile has its epilogue in a loop over pieces."""
    rows, columns = ([boxes[v.name] for v in group] for group in (problem.rows, problem.columns))
    return config.unrolled is None and by_pieces(e, rows, columns, config.warps)


def _clipped(form: Affine, v: Variable) -> int | None:
    """The size of an axis that ends with a variable, where the form holds that variable alone."""
    if form.variables() != (v.name,) or v.varies or form.coefficient(v.name) < 1:
        return None
    return int(form.coefficient(v.name)) * (v.size - 1) + int(form.constant) + 1


def _operand_view(
    tensor: TensorView,
    forms: Sequence[Affine],
    problem: HopperProblem,
    boxes: Mapping[str, int],
    own: Sequence[str],
    summed: Sequence[str],
    clip: Mapping[int, int],
) -> View | None:
    """The maps of an operand: its contiguous axis is walked by a summed variable and the others are its own, or the
    other way round. Others of its own then count slabs of swizzled rows, which is how a wide matrix lies in shared
    memory."""
    needed = sorted(n for n in (*own, *summed) if boxes[n] > 1)
    for order, other in ((own, summed), ((*own, *summed), own)):
        found = view(tensor, forms, problem, boxes, order, clip)
        if found is not None and found.inner in other:
            if other is own and not _in_slabs(found.inner, [n for n in own if boxes[n] > 1], boxes, tensor.size):
                return None
            return found if sorted(d.boxed for d in found.dims if d.boxed is not None) == needed else None
    return None


def _in_slabs(inner: str | None, own: Sequence[str], boxes: Mapping[str, int], size: int) -> bool:
    """Whether an operand's own variables are the contiguous one, after others where it fills a swizzled row."""
    return list(own) == [inner] or (own[-1] == inner and boxes[own[-1]] * size == SWIZZLED)


def _output_view(
    tensor: TensorView, problem: HopperProblem, boxes: Mapping[str, int], order: Sequence[str]
) -> View | None:
    """The maps through which a tile is stored, if there are some that do not reach past the last row or column."""
    clip: dict[int, int] = {}
    for v in problem.rows + problem.columns:
        for axis, form in enumerate(problem.out):
            if v.size % boxes[v.name] and form.coefficient(v.name):
                size = _clipped(form, v)
                if size is None and not ends(v, form, tensor.shape[axis], problem):
                    return None
                clip[axis] = tensor.shape[axis] if size is None else min(size, tensor.shape[axis])
    found = view(tensor, problem.out, problem, boxes, order, clip)
    if found is None:
        return None
    boxed = [d.boxed for d in found.dims if d.boxed is not None]
    return found if boxed == [n for n in order if boxes[n] > 1] else None


def _guards(problem: HopperProblem, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The output's axes at which rows or columns end that end earlier in some classes; None where none says so."""
    axes = []
    for v in problem.rows + problem.columns:
        if not v.varies:
            continue
        for axis, form in enumerate(problem.out):
            lone = form.coefficient(v.name) > 0 and all(n == v.name or n[0] == "z" for n in form.variables())
            past = ({**r, v.name: (r[v.name][1] + 1,) * 2} for r in problem.ranges if r is not None)
            if lone and all(form_bounds(form, r)[0] >= shape[axis] for r in past):
                axes.append(axis)
                break
        else:
            return None
    return tuple(dict.fromkeys(axes))


def _strides(forms: Sequence[Affine], tensor: TensorView) -> dict[str, int]:
    """Elements by which a tensor's element moves with each variable, and where it is when all are zero ("base")."""
    found = {"base": 0}
    for form, stride in zip(forms, tensor.strides, strict=True):
        found["base"] += int(form.constant) * stride
        for name, c in coefficients(form):
            found[name] = found.get(name, 0) + c * stride
    return found


def _assemble(
    dot: HopperDot,
    design: Design,
    boxes: Mapping[str, int],
    config: HopperConfig,
    tensors: Mapping[str, TensorView],
    steps: Mapping[str, Mapping[str, int]],
    outputs: tuple[str, ...],
) -> list[Launch] | None:
    p = design.problem
    out = dot.output + PARTS if design.split else dot.output
    values: dict[str, object] = {
        "left": Pointer(dot.left.tensor),
        "right": Pointer(dot.right.tensor),
        "out": Pointer(out),
        "sum_out": Pointer(outputs[0]),
        "scale": dot.scale,
    }
    for side, name, found in (
        ("left", dot.left.tensor, design.left),
        ("right", dot.right.tensor, design.right),
        ("out", dot.output, design.out),
        *([("sum", outputs[0], design.out)] if design.sums_stored else []),
    ):
        maps: tuple[Descriptor, ...] = () if found is None else descriptors(tensors[name], found, boxes)
        values |= {f"{side}_map_{k}": each for k, each in enumerate(maps)}
        values |= {f"{side}_{symbol}": step for symbol, step in steps.get(side, {}).items()}
        values |= {f"{side}_size_{axis}": size for axis, size in enumerate(tensors[name].shape)}
    values |= {f"{name}_n": size for name, size in p.sizes.items()}
    values |= {f"{d.name}_n": d.size for d in p.digits}
    maps_, pointers, sizes, strides = parameters(design)
    scale = ["scale"] if design.scaled and not design.split else []
    further = () if design.epilogue is None else tuple(design.epilogue.arguments.items())
    own = () if design.split else further
    several = dict([design.unrolled] if design.unrolled is not None else [])
    reach = {name: box * several.get(name, 1) for name, box in boxes.items()}
    counts = [math.prod(-(-v.size // reach[v.name]) for v in group) for group in (p.rows, p.columns)]
    tiles = math.prod(counts) * len(p.table) * math.prod(v.size for v in p.batch) * config.split
    if tiles > MAX_COUNT:
        return None
    choices = {"GROUP": config.group, "SPLIT": config.split, "STAGES": config.stages} | {
        f"B_{name}": box for name, box in boxes.items()
    }
    first = Launch(
        file=hopper_file(design),
        grid=(_programs(tiles, config, design), 1, 1),
        arguments=(*((n, values[n]) for n in (*maps_, *pointers, *sizes, *strides, *scale)), *own),
        constants=tuple((n, choices[n]) for n in constants(design)),
        warps=config.warps,
        stages=config.stages,
        statements=outputs,
    )
    if not design.split:
        return [first]
    elements = math.prod(v.size for v in (*p.batch, *p.rows, *p.columns))
    if elements > MAX_COUNT:
        return None
    file, order, moves = partial_sums_kernel(design)
    block = TOTAL_BLOCK if elements >= 4 * MULTIPROCESSORS * TOTAL_BLOCK else SMALL_TOTAL_BLOCK
    tail = (("scale", dot.scale),) if design.scaled else ()
    second = Launch(
        file=file,
        grid=(-(-elements // block), 1, 1),
        arguments=(
            ("parts", Pointer(out)),
            ("out", Pointer(dot.output)),
            ("total", elements),
            *((n, values[n]) for n in (*order, *moves)),
            *tail,
            *further,
        ),
        constants=(("SPLIT", config.split), ("BLOCK", block)),
        warps=4,
        stages=1,
        statements=outputs,
    )
    return [first, second]
