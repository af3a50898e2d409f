"""Which products go to Hopper's own kernels, and what those need around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.common.domain import Condition, access_conditions, free
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.dot import MatrixProduct
from tilec.backends.triton.matmul.hopper.configs import configs, default_plan
from tilec.backends.triton.matmul.hopper.epilogue import Epilogue
from tilec.backends.triton.matmul.hopper.form import HopperConfig, HopperDot, HopperOperand, Same
from tilec.backends.triton.matmul.hopper.kernels import plan_hopper
from tilec.backends.triton.matmul.hopper.views import TensorView
from tilec.backends.triton.plan.device_info import HOPPER
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Setting, Step
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
    product = _with_epilogue(given, setting, same, epilogue)
    if product is None:
        return None
    launches = plan_hopper(product, hopper_tensors(product, given.view, epilogue), config, epilogue)
    return None if launches is None else _around(launches, product.output, config)


def timed_steps(
    given: MatrixProduct, setting: Setting, same: Same | None = None, epilogue: Epilogue | None = None
) -> tuple[float, list[Step]] | None:
    """The microseconds that the likeliest tiles take by the model, and their steps; None where there are none."""
    product = _with_epilogue(given, setting, same, epilogue)
    if product is None:
        return None
    found = default_plan(product, hopper_tensors(product, given.view, epilogue), epilogue)
    if found is None or _mostly_outside(found[1], given):
        return None
    time, config, launches = found
    return time, _around(launches, product.output, config)


def _with_epilogue(
    given: MatrixProduct, setting: Setting, same: Same | None, epilogue: Epilogue | None
) -> HopperDot | None:
    product = hopper_product(given, setting)
    if product is None:
        return None
    return replace(product, same=same, output=product.output if epilogue is None else epilogue.output)


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
    product = hopper_product(given, setting)
    return [] if product is None else configs(product, hopper_tensors(product, given.view))


def hopper_tensors(product: HopperDot, view: StridedView, epilogue: Epilogue | None = None) -> dict[str, TensorView]:
    """The tensors of a product, by name, with the product's own output where that is stored too."""
    stored = () if epilogue is None or not epilogue.stored else (epilogue.sums,)
    names = (product.output, product.left.tensor, product.right.tensor, *stored)
    return {n: TensorView(n, view.types[n].shape, tuple(view.strides[n]), view.types[n].dtype) for n in names}


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
