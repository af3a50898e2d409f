"""Rule: convolutions that torch has, forward and both gradients, by torch's own.

A convolution is a sum over two accesses in which, for each spatial dimension, one tensor's index is `s*o + d*k + c`
where o and k index the other two: the input, output and kernel roles. Which role the statement's own output has says
whether it is the convolution or one of its gradients. Every other variable stands bare in two of the tensors (batch,
channels) or in all three (groups). Any layout is served, through permuted views.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from tilec.backends.common.domain import build_domain, conditions_of
from tilec.backends.common.terms import split_factors
from tilec.backends.torch.expr.task import Task
from tilec.errors import TileError
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Statement, expressions, index_variables
from tilec.ir.rational import Fraction, as_int
from tilec.ir.types import is_floating

INPUT, OUTPUT, KERNEL = range(3)
GROUPS = {
    (True, True, True): "group",
    (True, True, False): "batch",
    (False, True, True): "out",
    (True, False, True): "in",
}


@dataclass(frozen=True)
class ConvolutionOperand:
    """A tensor of the statement, its index forms and its shape."""

    tensor: str
    rows: tuple[Affine, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Spatial:
    """Axis of each role (None: the kernel has none), and input = stride*output + step*kernel + offset."""

    axes: tuple[int, int, int | None]
    stride: int
    step: int
    offset: int


@dataclass(frozen=True)
class Convolution:
    """Operands by role, the spatial dimensions, and the bare variables' axes: name -> axis in each role or None."""

    operands: tuple[ConvolutionOperand, ConvolutionOperand, ConvolutionOperand]
    spatial: tuple[Spatial, ...]
    bare: dict[str, tuple[int | None, ...]]
    written: int
    scale: float | int


def recognise_convolution(task: Task) -> Convolution | None:
    s = task.flat
    if s.aggregation != "sum" or s.guard is not None or s.index is None or not is_floating(task.type.dtype):
        return None
    split = split_factors(s.body, task.types)
    if split is None or len(split[0]) != 2:
        return None
    a, b = split[0]
    if not isinstance(a, Access) or not isinstance(b, Access):
        return None
    if {task.types[a.tensor].dtype, task.types[b.tensor].dtype} != {task.type.dtype}:
        return None
    if not _says_nothing_more(s, replace(s, body=a * b, constraints=()), task):
        return None
    operands = [ConvolutionOperand(s.output, tuple(map(linear, s.index)), task.type.shape)]
    operands += [ConvolutionOperand(x.tensor, tuple(map(linear, x.index)), task.types[x.tensor].shape) for x in (a, b)]
    if any(not row.is_affine for o in operands for row in o.rows):
        return None
    found = []
    for order in itertools.permutations(range(3)):
        roles = tuple(operands[k] for k in order)
        c = _with_roles(roles, order.index(0), split[1])
        if c is not None:
            found.append(c)
    return min(found, key=_likeliness, default=None)


def _says_nothing_more(s: Statement, bare: Statement, task: Task) -> bool:
    """Whether the points of a statement are those of its two accesses, `bare`: what constraints, `in` and values that
    are dropped ask is implied."""
    own = set(conditions_of(bare, task.types))
    further = [c for c in conditions_of(s, task.types) if c not in own]
    if not further:
        return True
    try:
        domain = build_domain(bare, task.types)
    except TileError:
        return False
    if domain is None or not domain.low.keys() >= set(index_variables(*expressions(s))):
        return False
    return all(map(domain.holds, further))


def stands_in(axes: tuple[int | None, ...]) -> tuple[bool, bool, bool]:
    """In which roles a variable stands."""
    a, b, c = (axis is not None for axis in axes)
    return a, b, c


def _likeliness(c: Convolution) -> tuple[int, bool, int, bool]:
    """Where several roles fit: the smallest kernel, then no kernel's gradient of one output channel by several input
    channels, then a kernel that need not be flipped, then the convolution itself."""
    o = c.operands[KERNEL]
    size = math.prod(axis_size(o, s.axes[KERNEL]) for s in c.spatial)
    return size, _has_lone_output(c), sum(s.step < 0 for s in c.spatial), c.written != OUTPUT


def _has_lone_output(c: Convolution) -> bool:
    """Whether the kernel's gradient is asked for with one output channel a group and several input channels. cuDNN has
    direct kernels alone for it: 20 ms where input and output exchanged, with the result flipped, are 1.4 ms (H200, 256
    taps, 40 channels, float32)."""
    return c.written == KERNEL and _channels(c, "out") == 1 < _channels(c, "in")


def _channels(c: Convolution, kind: str) -> int:
    o = c.operands[KERNEL]
    return math.prod(axis_size(o, axes[KERNEL]) for axes in c.bare.values() if GROUPS[stands_in(axes)] == kind)


def _with_roles(operands, written: int, scale: float | int) -> Convolution | None:
    """The statement as a convolution with these roles, None where it is none."""
    where: dict[str, list[list[int]]] = {}
    for role, o in enumerate(operands):
        for axis, row in enumerate(o.rows):
            if not row.terms and (row.constant != 0 or o.shape[axis] != 1):
                return None
            for v in row.variables():
                where.setdefault(v, [[], [], []])[role].append(axis)
    if any(len(axes) > 1 for roles in where.values() for axes in roles):
        return None
    axis_of = {v: tuple(axes[0] if axes else None for axes in roles) for v, roles in where.items()}
    bare: dict[str, tuple[int | None, ...]] = {}
    mixed: list[str] = []
    for v, axes in axis_of.items():
        present = [(o, a) for o, a in zip(operands, axes, strict=True) if a is not None]
        sizes = {o.shape[a] for o, a in present}
        if all(o.rows[a].bare == v for o, a in present) and len(sizes) == 1:
            if stands_in(axes) not in GROUPS:
                return None
            bare[v] = axes
        else:
            mixed.append(v)
    spatial = []
    while mixed:
        v = mixed[0]
        found = next((axis_of[w][INPUT] for w in _companions(operands, axis_of, v)), None)
        if found is None:
            return None
        s = _spatial(operands, found, axis_of)
        if s is None:
            return None
        spatial.append(s)
        done = {v for o, a in zip(operands, s.axes, strict=True) if a is not None for v in o.rows[a].variables()}
        mixed = [v for v in mixed if v not in done]
    if not 1 <= len(spatial) <= 3:
        return None
    return Convolution(operands, tuple(sorted(spatial, key=lambda s: s.axes[0])), bare, written, scale)


def _companions(operands, axis_of, v: str) -> list[str]:
    """Variables that share an axis with v, itself included, of which the input has one."""
    rows = [o.rows[a] for o, a in zip(operands, axis_of[v], strict=True) if a is not None]
    return [w for w in dict.fromkeys(w for row in rows for w in row.variables()) if axis_of[w][INPUT] is not None]


def _spatial(operands, axis: int, axis_of) -> Spatial | None:
    """The spatial dimension of an input axis: both its variables stand in one output axis and one kernel axis."""
    variables = operands[INPUT].rows[axis].variables()
    reached: tuple[str, ...] = ()
    while variables != reached:
        reached = variables
        touched = {role: {axis_of[v][role] for v in reached} - {None} for role in (INPUT, OUTPUT, KERNEL)}
        rows = [operands[role].rows[a] for role, axes in touched.items() for a in sorted(axes)]
        variables = tuple(dict.fromkeys((*reached, *(v for row in rows for v in row.variables()))))
    if touched[INPUT] != {axis} or len(touched[OUTPUT]) != 1 or len(touched[KERNEL]) > 1:
        return None
    (out,) = touched[OUTPUT]
    kernel = next(iter(touched[KERNEL]), None)
    rows = [operands[INPUT].rows[axis], operands[OUTPUT].rows[out]]
    rows += [] if kernel is None else [operands[KERNEL].rows[kernel]]
    if len(variables) != len(rows) - 1:
        return None
    solved = _solve(rows, variables)
    return None if solved is None else Spatial((axis, out, kernel), *solved)


def _solve(rows: list[Affine], variables: tuple[str, ...]) -> tuple[int, int, int] | None:
    """(stride, step, offset) such that input = stride*output + step*kernel + offset, where the integer points of output
    and kernel are exactly those of the variables."""
    i, o = rows[0], rows[1]
    if len(rows) == 2:
        (u,) = variables
        if abs(o.coefficient(u)) != 1 or o.constant.denominator != 1:
            return None
        stride = i.coefficient(u) / o.coefficient(u)
        numbers = (stride, Fraction(1), i.constant - stride * o.constant)
    else:
        k = rows[2]
        u, w = variables
        o1, o2, k1, k2 = o.coefficient(u), o.coefficient(w), k.coefficient(u), k.coefficient(w)
        i1, i2 = i.coefficient(u), i.coefficient(w)
        det = o1 * k2 - o2 * k1
        if det == 0:
            return None
        inverse = (k2 / det, o2 / det, o1 / det, k1 / det)
        shifts = ((o2 * k.constant - k2 * o.constant) / det, (k1 * o.constant - o1 * k.constant) / det)
        if any(x.denominator != 1 for x in (*inverse, *shifts)):
            return None
        stride, step = (i1 * k2 - i2 * k1) / det, (o1 * i2 - o2 * i1) / det
        numbers = (stride, step, i.constant - stride * o.constant - step * k.constant)
    if any(x.denominator != 1 for x in numbers) or numbers[0] <= 0 or numbers[1] == 0:
        return None
    return as_int(numbers[0]), as_int(numbers[1]), as_int(numbers[2])


def axis_size(o: ConvolutionOperand, axis: int | None) -> int:
    """Size of an axis; 1 of one that the operand lacks."""
    return 1 if axis is None else o.shape[axis]
