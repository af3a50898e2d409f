"""Which products go to Hopper's own kernels, and what those need around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.common.domain import Condition, access_conditions, free
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.dot import MatrixProduct
from tilec.backends.triton.matmul.hopper.configs import configs, default_plan
from tilec.backends.triton.matmul.hopper.epilogue import Epilogue
from tilec.backends.triton.matmul.hopper.form import Digit, HopperConfig, HopperDot, HopperOperand, Same
from tilec.backends.triton.matmul.hopper.kernels import plan_hopper
from tilec.backends.triton.matmul.hopper.views import TensorView
from tilec.backends.triton.plan.device_info import HOPPER
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Setting, Step
from tilec.ir.at_sizes import least
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr
from tilec.ir.types import NARROW


def hopper_steps(
    given: MatrixProduct,
    setting: Setting,
    config: HopperConfig | None = None,
    same: Same | None = None,
    epilogue: Epilogue | None = None,
) -> list[Step] | None:
    """Steps by TMA and wgmma, in the given or the likeliest tiles; None where chip or statement do not fit. `same`: as
    a HopperDot's. With an epilogue, the last output of that is computed."""
    if config is None:
        found = timed_steps(given, setting, same, epilogue)
        return None if found is None else found[1]
    ways = _ways(given, setting, same, epilogue)
    product = next((p for p in ways if bool(p.digits) == config.merged), None)
    if product is None:
        return None
    launches = plan_hopper(product, hopper_tensors(product, given.view, epilogue), config, epilogue)
    return None if launches is None else _around(launches, product.output, config)


def timed_steps(
    given: MatrixProduct,
    setting: Setting,
    same: Same | None = None,
    epilogue: Epilogue | None = None,
    in_lines: bool = False,
) -> tuple[float, list[Step]] | None:
    """The microseconds that the likeliest tiles take by the model, and their steps; None where there are none.
    `in_lines`: as if all rows began with lines of the caches."""
    ways = _ways(given, setting, same, epilogue)
    tensors = [hopper_tensors(p, given.view, epilogue) for p in ways]
    if in_lines:
        tensors = [{name: replace(t, in_lines=True) for name, t in found.items()} for found in tensors]
    plans = (default_plan(p, found, epilogue) for p, found in zip(ways, tensors, strict=True))
    found = [plan for plan in plans if plan is not None and not _mostly_outside(plan[1], given)]
    if not found:
        return None
    time, config, launches = least(found, lambda plan: plan[0])
    return time, _around(launches, given.space.statement.output if epilogue is None else epilogue.output, config)


def _ways(
    given: MatrixProduct, setting: Setting, same: Same | None = None, epilogue: Epilogue | None = None
) -> list[HopperDot]:
    """The product as it is, and over operands with rows or columns as one variable, if there is no epilogue."""
    product = hopper_product(given, setting)
    if product is None:
        return []
    merged = _merged(product, given.view) if same is None and epilogue is None else None
    product = replace(product, same=same, output=product.output if epilogue is None else epilogue.output)
    return [product] if merged is None else [product, merged]


def has_long_rows(given: MatrixProduct, setting: Setting) -> bool:
    """Whether a result's columns are several variables that kernels take as one."""
    return any(d.of in way.columns for way in _ways(given, setting) for d in way.digits)


def _merged(dot: HopperDot, view: StridedView) -> HopperDot | None:
    """The product with variables of rows, and of columns, as one where the operand walks them so. The output, which
    does not, is indexed by the digits of that: heads of 80 columns fill no tile, 12 of them do. None where there are no
    such variables."""
    if len(dot.classes) != 1 or dot.left.tensor == dot.right.tensor:
        return None
    for side, group in (("left", dot.rows), ("right", dot.columns)):
        operand = dot.left if side == "left" else dot.right
        shape, strides = view.types[operand.tensor].shape, view.strides[operand.tensor]
        own = [a for a, form in enumerate(operand.index) if not {*group}.isdisjoint(form.variables())]
        ordered = sorted(own, key=lambda a: strides[a])
        names = [operand.index[a].bare for a in ordered]
        if len(group) < 2 or len(names) != len(group) or {*names} != {*group}:
            continue
        whole, digits, count = ".".join(group), list[Digit](), 1
        for a, v in zip(ordered, names, strict=True):
            if v is not None and strides[a] == strides[ordered[0]] * count:
                if (dot.low[0][v], dot.extent[0][v]) == (0, shape[a]):
                    digits.append(Digit(v, whole, count, shape[a]))
            count *= shape[a]
        if len(digits) < len(group):
            continue
        kept = [a for a in range(len(shape)) if a not in own or a == ordered[0]]
        merged = replace(
            operand,
            index=tuple(Affine.variable(whole) if a in own else operand.index[a] for a in kept),
            shape=tuple(count if a in own else shape[a] for a in kept),
            strides=tuple(strides[a] for a in kept),
        )
        low, extent = {**dot.low[0], whole: 0}, {**dot.extent[0], whole: count}
        dot = replace(dot, low=(low,), extent=(extent,), digits=(*dot.digits, *digits))
        left, right = (merged, dot.right) if side == "left" else (dot.left, merged)
        rows, columns = ((whole,), dot.columns) if side == "left" else (dot.rows, (whole,))
        dot = replace(dot, left=left, right=right, rows=rows, columns=columns)
    return dot if dot.digits else None


def _around(launches: Sequence[Launch], output: str, config: HopperConfig) -> list[Step]:
    """The launches, with the memory of parts of sums where the first makes such."""
    if len(launches) == 1:
        return list(launches)
    total = dict(launches[1].arguments)["total"]
    assert isinstance(total, int)
    parts = f"{output}.parts"
    return [Allocate(parts, (config.split * total,), "float32"), *launches, Release((parts,))]


def _mostly_outside(config: HopperConfig, given: MatrixProduct) -> bool:
    """Whether half or more of what boxes bring along the reduction is zeros: 64 channels of 16. Pointer kernels take
    what there is."""
    return any(n >= 2 * given.space.largest(v) and n > 16 for v, n in config.boxes if v in given.dot.summed)


def candidates(given: MatrixProduct, setting: Setting) -> list[HopperConfig]:
    """Tiles worth measuring, the likeliest first."""
    return configs(*((p, hopper_tensors(p, given.view)) for p in _ways(given, setting)))


def hopper_tensors(product: HopperDot, view: StridedView, epilogue: Epilogue | None = None) -> dict[str, TensorView]:
    """The tensors of a product, by name, with the product's own output where that is stored too."""
    stored = () if epilogue is None or not epilogue.stored else (epilogue.sums,)
    names = (product.output, product.left.tensor, product.right.tensor, *stored)
    found = {n: TensorView(n, view.types[n].shape, tuple(view.strides[n]), view.types[n].dtype) for n in names}
    merged = (o for o in (product.left, product.right) if o.strides)
    return found | {o.tensor: replace(found[o.tensor], shape=o.shape, strides=o.strides) for o in merged}


def hopper_product(given: MatrixProduct, setting: Setting) -> HopperDot | None:
    """The product in the form of Hopper's kernels: both operands are elements of tensors, and no condition is left
    beside those of reading them. None where it has no such form, or on another chip."""
    dot, space, view = given.dot, given.space, given.view
    if setting.device.capability != HOPPER or dot.zero_result or not space.covers:
        return None
    if dot.dtype not in NARROW and (dot.dtype != "float32" or setting.precision == "highest"):
        return None
    left, right = lone_access(dot.left, dot.dtype, view), lone_access(dot.right, dot.dtype, view)
    if left is None or right is None or {left.tensor, right.tensor} & set(setting.misaligned):
        return None
    own: set[Condition | Expr] = {c for a in (left, right) for c in access_conditions(a, view.types)}
    if not {*dot.zero_left, *dot.zero_right} <= own:
        return None
    index = space.rows
    forms = [tuple(map(linear, a.index)) for a in (left, right)]
    if not all(f.is_affine and f.is_integral for row in (index, *forms) for f in row):
        return None
    known = {v for f in (*index, *forms[0], *forms[1]) for v in free(f)}
    constants: dict[str, Affine] = {}
    moving: list[str] = []  # summed variables of one value a class, and not the same one
    for v in (*space.outputs, *space.reductions):
        values = {a[v] for a in space.low}
        if v in known and space.single(v) and len(values) == 1:
            constants[v] = Affine.of((), values.pop())
        elif v in known and space.single(v):
            moving.append(v)
    if any(v in space.outputs for v in moving):
        return None
    rows, *operands = (tuple(f.substitute(constants) for f in row) for row in (index, *forms))
    return HopperDot(
        space.statement.output,
        rows,
        HopperOperand(left.tensor, operands[0]),
        HopperOperand(right.tensor, operands[1]),
        dot.batch,
        dot.rows,
        dot.columns,
        (*moving, *dot.summed),
        space.classes,
        space.low,
        space.extent,
        float(dot.scale),
    )


def lone_access(side: tuple[Expr, ...], dtype: str, view: StridedView) -> Access | None:
    """The access that an operand is, under a cast or not."""
    if len(side) != 1:
        return None
    e = side[0]
    if isinstance(e, Call) and e.function == "float32" and dtype in NARROW:
        e = e.args[0]
    return e if isinstance(e, Access) and view.types[e.tensor].dtype == dtype else None
