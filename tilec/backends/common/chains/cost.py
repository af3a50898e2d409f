"""Whether chains take less time than kernels of their own for the matrix values, which store and read these."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from tilec.backends.common.chains.chain import ChainKernel, Inner
from tilec.backends.common.chains.splits import split_of
from tilec.backends.common.chains.targets import Matrices
from tilec.backends.common.chains.values import SHORT
from tilec.ir.program import Call, accesses_in, index_variables, walk
from tilec.ir.types import ITEM_BYTES, NARROW, Types

# matrix elements for each of what is read and made, at least, where there is no exponential; of 16-bit products of up
# to so many terms and features, which a chain computes about as fast as a library
LARGE, LARGE_NARROW, NARROW_TERMS = 8, 2, 128
_BLOCK, _LEAST_OPERANDS = 64, 0.5  # of a side; elements that a matrix element's operands have of their own
_FEWEST = 32  # programs of a kernel that walks far
FAR = 2**12
# products of operands wider than that, for which blocks of a chain are small, those in 16 bits beside what it reads of
# stored matrices: operations a second of a chain and of a library's product; bytes a second of what is stored, which
# takes no more than so many bytes
WIDEST_BLOCK = 128
CHAINED_FLOPS, CHAINED_NARROW_FLOPS = 15e12, 200e12
STORED_FLOPS, STORED_NARROW_FLOPS, STORED_BYTES = 35e12, 600e12, 3.5e12
MOST_STORED_BYTES = 2**28
ANGULAR = ("sin", "cos", "tan")
CHAINED_ANGLES = 1.5e11  # of these a second in a chain; kernels of their own take no longer than memory does
_LEAST_GAIN = 20e-6  # seconds, for which another launch is worth it


def chains_pay(kernels: Sequence[ChainKernel], matrices: Matrices, types: Types) -> bool:
    """A reduction of rows or columns somewhere, enough programs, and an exponential or matrices much larger than what
    is read and made: each inner sum is one that would be stored."""
    if not any(k.looped is not None for k in kernels):
        return False
    if _sooner_stored(kernels, matrices) or _angles_take_long(kernels, matrices) or _used_once(kernels, matrices):
        return False
    times = Counter(n for k in kernels for n in k.inners)
    if any(times[n] > 1 and min(k.extent[v] for v in k.blocked) == 1 for k in kernels for n in k.inners):
        return False  # a single row of scores is sooner stored than made of all columns again
    names: set[str] = set()
    most = 0
    for k in kernels:
        programs = math.prod(k.extent[v] for v in k.batch) * math.prod(-(-k.extent[v] // 64) for v in k.blocked)
        far = math.prod(k.extent[v] for v in (*k.walked, *(() if k.looped is None else (k.looped,))))
        if programs < _FEWEST and far > FAR and split_of(k, matrices.types) is None:
            return False
        most = max(
            most,
            math.prod(k.extent[v] for v in (*k.blocked, *k.batch, *k.walked)) * (k.extent[k.looped] if k.looped else 1),
        )
        names |= {*k.outputs, *(a.tensor for i in k.inners.values() for a in accesses_in(i.body))}
    if any(
        isinstance(e, Call) and e.function == "exp" for k in kernels for r in k.targets for e in walk(r.target.body)
    ):
        return True
    stored = sum(_sizes(_inners(kernels), matrices).values())
    return max(most, stored) >= _least_ratio(kernels) * sum(math.prod(types[n].shape) for n in names if n in types)


def _least_ratio(kernels: Sequence[ChainKernel]) -> int:
    inners = _inners(kernels).values()
    features = [k.extent[f] for k in kernels for r in k.targets if (f := r.target.feature) is not None]
    widest = max([*features, *(i.extent for i in inners)])
    halves = all(i.left is not None and i.dtype in NARROW for i in inners)
    return LARGE_NARROW if halves and widest <= NARROW_TERMS else LARGE


def _inners(kernels: Sequence[ChainKernel]) -> dict[str, Inner]:
    return {n: i for k in kernels for n, i in k.inners.items()}


def _sizes(inners: Collection[str], matrices: Matrices) -> dict[str, int]:
    """How many elements each matrix has."""
    return {n: math.prod(matrices.types[n].shape) for n in inners}


def _sooner_stored(kernels: Sequence[ChainKernel], matrices: Matrices) -> bool:
    """Whether wide products take longer here than a library's, of which each reads and stores a matrix."""
    inners = _inners(kernels)
    mixtures = [(k.first, k.extent[f]) for k in kernels for r in k.targets if (f := r.target.feature) is not None]
    widest = max([0, *(i.extent for i in inners.values()), *(n for _, n in mixtures)])
    dtypes = {"" if i.left is None else i.dtype for i in inners.values()}
    if widest <= WIDEST_BLOCK or len(dtypes) != 1:
        return False
    (dtype,) = dtypes
    narrow = dtype in NARROW
    if dtype != "float32" and not (narrow and any(map(_reads_matrices, kernels))):
        return False
    rates = (CHAINED_NARROW_FLOPS, STORED_NARROW_FLOPS) if narrow else (CHAINED_FLOPS, STORED_FLOPS)
    size = _sizes(inners, matrices)
    points = {k.first: max([0, *(size[n] for n in k.inners)]) for k in kernels}
    flops = sum(2 * inners[n].extent * size[n] for k in kernels for n in k.inners)
    flops += sum(2 * width * points[k] for k, width in mixtures)
    moved = sum(size.values()) + sum(len(k.targets) * points[k.first] for k in kernels)
    moved += sum(2 * points[k] for k, _ in mixtures)  # what weighs them
    width = ITEM_BYTES[dtype]
    gain = flops / rates[0] - flops / rates[1] - width * moved / STORED_BYTES
    return gain > _LEAST_GAIN and width * sum(size.values()) <= MOST_STORED_BYTES


def _used_once(kernels: Sequence[ChainKernel], matrices: Matrices) -> bool:
    """Whether matrices of a few terms are added up over variables that all of their operands have: each step of such a
    walk makes a small matrix of operands that it alone reads, nearly as many elements as the matrix has."""
    walking = [k for k in kernels if k.walked and k.looped is None]
    inners = _inners(kernels)
    if not walking or any(i.extent > SHORT for i in inners.values()):
        return False
    for k in walking:
        sides = sum(1 / min(k.extent[v], _BLOCK) for v in k.blocked)
        operands = [a for i in k.inners.values() for a in accesses_in(i.body)]
        apart = all({*k.walked} <= {*index_variables(*a.index)} for a in operands)
        if not apart or max((i.extent for i in k.inners.values()), default=0) * sides < _LEAST_OPERANDS:
            return False
    width = max(ITEM_BYTES[i.dtype] for i in inners.values())
    return width * sum(_sizes(inners, matrices).values()) <= MOST_STORED_BYTES


def _reads_matrices(k: ChainKernel) -> bool:
    """Whether a kernel that adds up columns reads stored elements of each row and column, beside products: a
    cotangent, a bias."""
    if k.looped is None:
        return False
    stored = (a for r in k.targets for a in accesses_in(r.target.body) if a.tensor not in k.inners)
    return any({k.looped, *k.blocked} <= set(index_variables(*a.index)) for a in stored)


def _angles_take_long(kernels: Sequence[ChainKernel], matrices: Matrices) -> bool:
    """Whether sines of the matrices' values take longer here than in kernels of their own, of which each reads and
    stores a matrix: their arguments are reduced in many steps, one after the other, and a chain's programs have few
    threads to do something else meanwhile. Sums of few terms have no such blocks."""
    inners = _inners(kernels)
    if any(i.left is None or i.extent <= SHORT for i in inners.values()):
        return False
    size = _sizes(inners, matrices)
    angles = moved = 0
    for k in kernels:
        points = max([0, *(size[n] for n in k.inners)])
        bodies = [e for r in k.targets for e in walk(r.target.body) if isinstance(e, Call)]
        found = {e for e in bodies if e.function in ANGULAR and {a.tensor for a in accesses_in(e)} & k.inners.keys()}
        angles += len(found) * points
        moved += len(k.targets) * points
    width = max((ITEM_BYTES[i.dtype] for i in inners.values()), default=0)
    stored = width * sum(size.values())
    seconds = 2 * (stored + width * moved) / STORED_BYTES + len(inners) * _LEAST_GAIN
    return angles / CHAINED_ANGLES > seconds and stored <= MOST_STORED_BYTES
