"""torch's own matrix products and convolutions as candidates, where a statement is exactly one.

What torch adds as zeros (padding) must not meet an infinity. Instead of asking beforehand, which would wait for the
device, a kernel looks at the result and computes again, exactly, the blocks that hold anything not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from tilec.backends.base import Options
from tilec.backends.common.code import FreshNames, have_own_names, python_name, tuple_text
from tilec.backends.common.pairs import LEAST, PRODUCTS, TERMS
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.convolution import (
    INPUT,
    KERNEL,
    OUTPUT,
    Convolution,
    Spatial,
    axis_size,
    recognise_convolution,
)
from tilec.backends.torch.matmul.convolution_call import ConvolutionCall, both_gradients, library_call
from tilec.backends.torch.matmul.product import product_lines
from tilec.backends.torch.program import RESERVED_IN_TORCH
from tilec.backends.triton.iteration.coalesce import coalesce
from tilec.backends.triton.matmul.dot import (
    LAUNCH_SECONDS,
    MEMORY_BYTES,
    POINTERS,
    MatrixProduct,
    product_over,
)
from tilec.backends.triton.matmul.hopper.aligned_copies import UNALIGNED, has_channels_last, reads_windows
from tilec.backends.triton.matmul.hopper.configs import HALF_ROWS
from tilec.backends.triton.matmul.hopper.steps import has_long_rows, hopper_steps
from tilec.backends.triton.matmul.pack import rows_aligned
from tilec.backends.triton.matmul.steps import repair_steps
from tilec.backends.triton.plan.plan import Setting, Step, TorchLines
from tilec.backends.triton.plan.sizes import SECTOR, Strides, contiguous, rounded_up
from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import named_sizes
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Call, Expr, Index, Statement, index_variables, reads, substitute
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, Types
from tilec.transforms.util.plain import is_plain_sum


def library_steps(
    defracted: Statement,
    flat: Statement,
    types: Mapping[str, TensorType],
    product: MatrixProduct,
) -> list[Step] | None:
    """Steps by torch's own operation; None where the statement is none, where ours is known to be faster, or where the
    result is to be wider than torch's, which is rounded."""
    if types[flat.output].dtype != statement_type(flat, types).dtype or not have_own_names(reads(flat)):
        return None
    task = _task(defracted, flat, types)
    c = recognise_convolution(task)
    if c is not None:
        if all(x.axes[2] is None and x.stride == 1 for x in c.spatial):
            return None  # a product of matrices that reads a part of an axis
        if _slow(c, task.type.dtype) or _has_few_terms(c, task.type.dtype):
            return None
        call, own_precision = library_call(task, c), task.type.dtype == "float32"
        *operands, made = call.lines
        lines = [*operands, *_in_own_precision(made, own_precision), *_stored(task.out)]
        first = replace(_step(task, lines, own_precision), gradient=call)
        return (
            [first, *repair_steps(product, flat, call.checked, _adds_in_order(c, product))] if call.checked else [first]
        )
    sides = product.dot.left, product.dot.right
    if not product.is_plain or not all(len(side) == 1 and isinstance(side[0], Access) for side in sides):
        return None
    found = product_lines(task)
    if found is None or any(line.startswith(("for ", "if ", " ")) for line in found):
        return None
    return [_step(task, [*found, *_stored(task.out)])]


def _adds_in_order(c: Convolution, product: MatrixProduct) -> bool:
    """Whether a library adds up the products of an element alone, and zeros outside of an image: in 16 bits where
    channels lie last, windows side by side. Other methods (Winograd's) bring an infinity to its neighbours."""
    apart = c.written == OUTPUT or (c.written == INPUT and all(s.stride == 1 for s in c.spatial))
    return apart and product.dot.dtype in NARROW and has_channels_last(product)


def joint_gradients(a: TorchLines, b: TorchLines) -> TorchLines | None:
    """One step for two by torch: the gradients of one convolution, which torch makes with one call."""
    if not isinstance(a.gradient, ConvolutionCall) or not isinstance(b.gradient, ConvolutionCall):
        return None
    by_kernel = b.gradient.written == KERNEL
    one, other = (a.gradient, b.gradient) if by_kernel else (b.gradient, a.gradient)
    reads, writes = tuple(dict.fromkeys((*a.reads, *b.reads))), (*a.writes, *b.writes)
    names = FreshNames((*RESERVED_IN_TORCH, *one.names, *map(python_name, (*reads, *writes))))
    made = names.fresh("gradient"), names.fresh("by_kernel")
    found = both_gradients(one, other, made)
    if found is None:
        return None
    operands, call = found
    lines = [*operands, *_in_own_precision(call, a.own_precision)]
    for of, name in zip((one, other), made, strict=True):
        lines += [f"{of.out} = {of.back(name)}", *_stored(of.out)]
    statements, dtypes = (*a.statements, *b.statements), (*a.dtypes, *b.dtypes)
    numbers = tuple(dict((*a.numbers, *b.numbers)).items())
    return TorchLines(tuple(lines), reads, writes, statements, dtypes, numbers, a.own_precision)


def _in_own_precision(line: str, asked: bool) -> list[str]:
    return ["with rt.own_precision():", f"    {line}"] if asked else [line]


def _stored(out: str) -> list[str]:
    """Lines that make a result of torch's lie as kernels take it."""
    return [f"{out} = {out}.contiguous()"]


def biased_steps(s: Statement, epilogue: Sequence[Statement], types: Types, strides: Strides) -> list[Step] | None:
    """Steps by torch's product that adds a bias for each column, `+(X[n, k] * W[j, k])` and then `+ B[j]`; None of any
    other epilogue, and where an operand would be copied or is not read as a whole."""
    if len(epilogue) != 1 or len({types[name].dtype for name in (s.output, epilogue[0].output)}) > 1:
        return None
    out = _over_variables_of(s, epilogue[0])
    if not is_plain_sum(s) or out.guard is not None or out.constraints or out.default is not None:
        return None
    match s.body, out.body:
        case Call("mul", (Access() as a, Access() as b)), Call("add", (Access() as x, Access() as y)):
            bias = y if x.tensor == s.output else x
        case _:
            return None
    written = distinct_variables(out.index)
    if written is None or written != distinct_variables(s.index) or distinct_variables(bias.index) != written[-1:]:
        return None
    places = {(e, n) for x in (a, b, bias) for e, n in zip(x.index, types[x.tensor].shape, strict=True)}
    places |= {(e, n) for x in (s, out) for e, n in zip(x.index or (), types[x.output].shape, strict=True)}
    if len(places) > len({e for e, _ in places}):
        return None
    read = {name: distinct_variables(e.index) for name, e in (("a", a), ("b", b))}
    for left, right, order in ((a, b, read["b"]), (b, a, read["a"])):
        (k, *more) = (v for v in index_variables(*left.index) if v not in written)
        whole = distinct_variables(left.index) == (*written[:-1], k) and not more
        if whole and order in ((k, written[-1]), (written[-1], k)):
            tensors = (left.tensor, right.tensor, bias.tensor)
            if len({types[name].dtype for name in (*tensors, s.output)}) > 1 or not have_own_names(tensors):
                return None
            if len(written) > 2 and tuple(strides[left.tensor]) != contiguous(types[left.tensor].shape):
                return None
            return [_biased(s, out, tensors, order[0] != k, types)]
    return None


def _over_variables_of(s: Statement, out: Statement) -> Statement:
    """A statement of all elements of a tensor over the variables of one that writes another of its shape."""
    own, wanted = distinct_variables(out.index), distinct_variables(s.index)
    if own is None or wanted is None or len(own) != len(wanted) or {*index_variables(*out.roots)} - {*own}:
        return out
    names: dict[str, Expr] = dict(zip(own, map(Index, wanted), strict=True))
    index = tuple(map(Index, wanted))
    return replace(out, index=index, body=substitute(out.body, names))


def _biased(s: Statement, out: Statement, tensors: tuple[str, str, str], swapped: bool, types: Types) -> TorchLines:
    names = FreshNames((*RESERVED_IN_TORCH, *map(python_name, types)))
    left, right, bias = (names.fresh(name) for name in ("x", "w", "b"))
    shape = types[out.output].shape
    rows = f"{left}.flatten(0, {len(shape) - 2})" if len(shape) > 2 else left
    result = python_name(out.output)
    made = f"rt.multiply({rows}, {right}{'.mT' if swapped else ''}, bias={bias})"
    lines = [f"{name} = {python_name(tensor)}" for name, tensor in zip((left, right, bias), tensors, strict=True)]
    lines.append(f"{result} = {made}{f'.reshape({tuple_text(shape)})' if len(shape) > 2 else ''}")
    numbers = named_sizes(n for name in (*tensors, out.output) for n in types[name].shape)
    given, carried = tuple(dict.fromkeys(tensors)), (s.output, out.output)
    return TorchLines(tuple(lines), given, (out.output,), carried, (types[out.output].dtype,), numbers)


LIBRARY_TILE, LIBRARY_STEP, LIBRARY_RATE = 32, 8, 20e12  # rows and columns, terms, terms a second of its least tiles


def mostly_padding(product: MatrixProduct) -> bool:
    """Whether a library's tiles of many small matrices are so empty that terms one by one, or memory, take less time:
    up to 8 rows and columns (sums over points of a rotation's gradient), or up to 8 columns and terms."""
    rows, columns, summed = product.counts
    few, many = min(rows, columns), max(rows, columns)
    if few < 2 or few > LIBRARY_STEP or min(many, summed) > LIBRARY_STEP:
        return False

    tiles = rounded_up(rows, LIBRARY_TILE) * rounded_up(columns, LIBRARY_TILE) * rounded_up(summed, LIBRARY_STEP)
    named = {product.space.statement.output, *(a.tensor for a in product.accesses())}
    moved = sum(size_in_bytes(product.view.types[name]) for name in named) / MEMORY_BYTES
    repeated = product.repeated
    return repeated * tiles / LIBRARY_RATE > max(repeated * rows * columns * summed / TERMS, moved)


SMALL_RESULT = 64  # of the elements that a result is made of, one in so many
FEW_COLUMNS = 64  # of a kernel gradient, up to which torch's is faster than ours split over programs
CHANNELS = 64  # of a box
LIBRARY_CHANNELS, LIBRARY_COLUMNS = 32, 128  # channels that are summed, and of a result, of a library's tiles
EMPTIER = 1.15  # what ours may compute beside what its do, at most
SHORT_ROWS = 64  # elements of a result's last axis, below which Hopper's kernels store next to nothing at a time


def is_plain(product: MatrixProduct, long_rows: bool = False) -> bool:
    """Whether a product of bare elements is one of matrices as they lie in memory, which no library has to copy: one
    variable each of rows, columns, sums and batch where all tensors walk them as one, the batch outermost in the
    result. A result whose last axis is short is the library's too, unless what it is made of is much larger, or
    `long_rows`: kernels of ours take its columns as one."""
    dot, space, view = product.dot, product.space, product.view
    last = next((v for e in reversed(space.statement.index or ()) if (v := linear(e).bare) is not None), None)
    made_of = sum(math.prod(view.types[name].shape) for name in reads(space.statement))
    made = math.prod(view.types[space.statement.output].shape)
    short = last is not None and space.largest(last) < SHORT_ROWS and not long_rows
    if last is None or (short and made * SMALL_RESULT >= made_of):
        return True
    many = [len([v for v in g if not space.single(v)]) for g in (dot.rows, dot.columns, dot.summed, dot.batch)]
    if max(many) > 1:
        merged = coalesce(view)
        again = None if merged.statement == view.statement else product_over(merged)
        return again is not None and is_plain(again, long_rows)
    written = [linear(e).bare for e in space.statement.index or ()]
    order = [v for v in written if v is not None and not space.single(v)]
    return set(order[: many[3]]) <= set(dot.batch)


def copies_take_longest(product: MatrixProduct) -> bool:
    """Whether a library would copy operands whose axes it cannot merge, or a result whose axes lie in another order
    than batch, rows and columns, for longer than kernels that read and write all in its place lose otherwise: few
    terms, many elements."""
    dot, space, view = product.dot, product.space, product.view
    sides = [*dot.left, *dot.right]
    if dot.dtype not in PRODUCTS or not product.is_plain or len(sides) != 2:
        return False
    operands = [e for e in sides if isinstance(e, Access)]
    copied = [a.tensor for a in operands if _is_copied(a, product)]
    copied += [space.statement.output] if _is_reordered(product) else []
    tensors = (space.statement.output, *(a.tensor for a in operands))
    moved = sum(size_in_bytes(view.types[name]) for name in tensors) / MEMORY_BYTES
    copying = 2 * sum(size_in_bytes(view.types[name]) for name in copied) / MEMORY_BYTES
    counts, repeated, rate = product.counts, product.repeated, PRODUCTS[dot.dtype]
    library = max(math.prod(counts) * repeated / rate, moved) + copying
    own = max(math.prod(max(n, LEAST) for n in counts) * repeated / (POINTERS * rate), moved)
    return copying > LAUNCH_SECONDS and own < library


def is_read_in_place(steps: Sequence[Step], product: MatrixProduct, setting: Setting) -> bool:
    """Whether a library's convolution takes channels-first rows of 16 bits that begin anywhere: it copies none of a
    1 x 1, and reads them five times as fast as kernels that take single elements."""
    call = next((x.gradient for x in steps if isinstance(x, TorchLines)), None)
    return call is not None and not _all_rows_aligned(product, setting)


def _all_rows_aligned(product: MatrixProduct, setting: Setting) -> bool:
    """Whether rows of 16 bits begin where vectors do, in all that a product reads and writes."""
    names = (product.space.statement.output, *(a.tensor for a in product.accesses()))
    return all(rows_aligned(n, product.view, setting) for n in names if product.view.types[n].dtype in NARROW)


def _is_copied(a: Access, product: MatrixProduct) -> bool:
    """Whether an operand is no batch of matrices whose rows or columns are contiguous."""
    dot, space = product.dot, product.space
    steps: dict[str, int] = {}
    for e, stride in zip(a.index, product.view.strides[a.tensor], strict=True):
        for v in linear(e).variables():
            steps[v] = steps.get(v, 0) + int(linear(e).coefficient(v)) * stride
    for group in (dot.batch, (*dot.rows, *dot.columns), dot.summed):
        ordered = sorted((v for v in group if v in steps), key=lambda v: -steps[v])
        if any(steps[v] != steps[w] * space.largest(w) for v, w in pairwise(ordered)):
            return True
    return 1 not in steps.values()


def _is_reordered(product: MatrixProduct) -> bool:
    """Whether the result's axes are no batch and then rows and columns one after the other, in any order of these."""
    dot, space = product.dot, product.space
    written = [v for e in space.statement.index or () if (v := linear(e).bare) is not None and not space.single(v)]
    groups = (dot.batch, dot.rows, dot.columns)
    order = [key for key, _ in groupby(next((k for k, g in enumerate(groups) if v in g), None) for v in written)]
    return len(order) != len(set(order)) or 0 in order[1:]


LONGEST_WINDOW = 256  # of a library's window whose input's gradient is asked for
SIGNAL_WINDOW = 64  # of one longer than half of the input
FEW_PRODUCTS = 16  # of an element of a library's convolution, up to which ours are faster
LONGEST_DILATED = 32  # of a library's window whose elements are some apart
LONGEST_APART = 9  # of a library's windows that do not meet
FEW_CHANNELS = 4  # of a float32 image, up to which ours add its gradient up term by term


def _slow(c: Convolution, dtype: str) -> bool:
    """cuDNN's gradient of the input of a strided convolution takes 1.3 to 3 times as long as residue classes do where
    channels lie last. Where an image's rows do, classes write every so many elements of one, and 16-bit ones take a
    fifth to half as long as that (a stem of 7 x 7 at 299 x 299 was 1089 us). It has no kernels for windows as long as
    signals: a Toeplitz matrix of 2048 rows takes 36 times as long as eager's, a ramp filter of 256 places 1464 us; nor
    for patches, whose windows do not meet; and none worth their time for groups that sum over a window alone
    (templates, one an image), nor for long windows of elements some apart, which strided windows of a signal are with
    kernel and output exchanged. Images of a few float32 channels are its own: a stem of 7 x 7 takes it 178 us, classes
    some 1500 (8 x 224 x 224, H200)."""
    if any(abs(s.step) > 1 and _extent(c, s) > LONGEST_DILATED for s in c.spatial):
        return True
    if c.written != INPUT:
        return False
    grouped = any(None not in axes for axes in c.bare.values())
    if grouped and not any(axes[INPUT] is None for axes in c.bare.values()):
        return True
    extents = [(s.stride, _extent(c, s)) for s in c.spatial]
    places = math.prod(n for _, n in extents)
    long = [2 * n > axis_size(c.operands[INPUT], s.axes[INPUT]) for s, (_, n) in zip(c.spatial, extents, strict=True)]
    too_long = places > (SIGNAL_WINDOW if all(long) else LONGEST_WINDOW)
    if too_long or all(stride == 1 for stride, _ in extents):
        return too_long
    apart = places > LONGEST_APART and all(stride >= n for stride, n in extents)
    if dtype == "float32" and not apart and not grouped and _image_channels(c) <= FEW_CHANNELS:
        return False
    rows_last = len(c.operands[INPUT].shape) - 1 in [s.axes[INPUT] for s in c.spatial]
    return apart or grouped or not rows_last or dtype not in NARROW


def _has_few_terms(c: Convolution, dtype: str) -> bool:
    """Whether an element of the output is so few products that memory takes longer than these do, one by one: a filter
    of one channel, where cuDNN takes four times as long as the output does. So does a float32 kernel's gradient of as
    many elements a channel."""
    kernel, spatial = c.operands[KERNEL], [s.axes[KERNEL] for s in c.spatial]
    if c.written == INPUT or (c.written == KERNEL and dtype in NARROW):
        return False
    terms = [axes[KERNEL] for axes in c.bare.values() if axes[INPUT] is not None and axes[OUTPUT] is None]
    rows_last = len(c.operands[INPUT].shape) - 1 in [s.axes[INPUT] for s in c.spatial]
    return rows_last and math.prod(axis_size(kernel, axis) for axis in (*terms, *spatial)) <= FEW_PRODUCTS


def _image_channels(c: Convolution) -> int:
    axes = [axes[INPUT] for axes in c.bare.values() if axes[INPUT] is not None and axes[OUTPUT] is None]
    return math.prod(axis_size(c.operands[INPUT], axis) for axis in axes)


def _extent(c: Convolution, s: Spatial) -> int:
    axis = s.axes[KERNEL]
    return 1 if axis is None else c.operands[KERNEL].shape[axis]


def _task(defracted: Statement, flat: Statement, types: Mapping[str, TensorType]) -> Task:
    local = {name: python_name(name) for name in types}
    names = FreshNames((*RESERVED_IN_TORCH, *local.values()))
    return Task(flat, defracted, types, local, names, Options(memory_budget=2**40), True)


def _step(task: Task, lines: list[str], own_precision: bool = False) -> TorchLines:
    s = task.flat
    numbers = named_sizes(n for name in (*reads(s), s.output) for n in task.types[name].shape)
    return TorchLines(tuple(lines), reads(s), (s.output,), (s.output,), (task.type.dtype,), numbers, own_precision)


def ours_is_faster(product: MatrixProduct, setting: Setting) -> bool:
    """Hopper's kernels against cuDNN on 16-bit and tf32 convolutions: even at worst, whatever the kernel's layout, and
    no look at the result for infinities at its borders afterwards. Matrix products stay the library's where they are
    plain: it would copy others before or after. Convolutions that must be split over programs for few columns stay the
    library's as well: kernel gradients of 64 channels take ours a third longer. So do those, gradients aside, of which
    its tiles hold more: 3 x 3 from 96 to 96 channels takes ours 61 us, cuDNN 39, and backward 131 and 216 (H100)."""
    bare = all(linear(e).bare is not None for a in product.accesses() for e in a.index)
    plain = bare and is_plain(product, has_long_rows(product, setting)) and _stores_vectors(product, setting)
    steps = None if plain else hopper_steps(product, setting)
    split = steps is not None and len(steps) > 1
    padded = not bare and _all_rows_aligned(product, setting) and reads_windows(product) and _emptier(product)
    return steps is not None and not padded and (bare or not split or product.counts[1] > FEW_COLUMNS)


def _emptier(product: MatrixProduct) -> bool:
    """Whether tiles compute much more than a library's, which take half as many channels at a time of those that are
    summed, and twice as many of a result."""
    s, size = product.space.statement, ITEM_BYTES[product.dot.dtype]
    tensors = {Access(s.output, s.index or ()), *product.accesses()}
    inner = {
        linear(e).bare for a in tensors for e, n in zip(a.index, product.view.strides[a.tensor], strict=True) if n == 1
    }
    more = 1.0
    for v in sorted(filter(None, inner)):
        n, summed = product.space.largest(v), v in product.dot.summed
        if n < 2:
            continue
        halves = summed and CHANNELS < n and 0 < n % CHANNELS <= CHANNELS // 2 and n * size % SECTOR == 0
        own = rounded_up(n, CHANNELS // 2) * HALF_ROWS if halves else rounded_up(n, CHANNELS)
        more *= own / rounded_up(n, LIBRARY_CHANNELS if summed else LIBRARY_COLUMNS)
    return more > EMPTIER


def _stores_vectors(product: MatrixProduct, setting: Setting) -> bool:
    """Whether a large result is of 16 bits and its rows begin at whole vectors, or of other types."""
    view, output = product.view, product.space.statement.output
    lost = (UNALIGNED - 1) * product.multiplications / PRODUCTS[product.dot.dtype]
    return view.types[output].dtype not in NARROW or lost < LAUNCH_SECONDS or rows_aligned(output, view, setting)
