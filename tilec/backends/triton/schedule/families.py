"""The families: forms in which one statement is carried out, in the order in which they are tried.

`match` recognises a form in a problem and `pays` says whether it is worth it there; the first family for which both
hold emits the steps, or says that its form takes no epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilec.backends.triton.grouped_matmul.kernels import GroupedTask, group_sum_steps, grouped_product
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import choose_config
from tilec.backends.triton.matmul.class_columns import class_columns
from tilec.backends.triton.matmul.columns import columns, columns_of_reached
from tilec.backends.triton.matmul.distances import Distances, distance_steps, recognise_distances
from tilec.backends.triton.matmul.dot import (
    MatrixProduct,
    OperandRewrite,
    StagedProduct,
    product_over,
    recognise_dot,
    worthwhile,
    worthwhile_padded,
)
from tilec.backends.triton.matmul.exp_weighted_matmul import recognise_weighted
from tilec.backends.triton.matmul.hopper.aligned_copies import over_copies, with_rows_aligned
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.matmul.library import (
    biased_steps,
    copies_take_longest,
    is_read_in_place,
    mostly_padding,
    ours_is_faster,
)
from tilec.backends.triton.matmul.logsumexp_matmul import recognise_log
from tilec.backends.triton.matmul.pack import columns_packed, packed, source_of_rows, wanted_along, with_batches_apart
from tilec.backends.triton.matmul.precompute_operands import has_stored_operands, hoisted, shared, with_stored_operands
from tilec.backends.triton.matmul.side_by_side import side_by_side
from tilec.backends.triton.matmul.split import split_steps
from tilec.backends.triton.matmul.steps import dot_steps, repair_steps
from tilec.backends.triton.plan.device_info import HOPPER
from tilec.backends.triton.plan.plan import Allocate, Release, Request, Setting, Step, TorchLines
from tilec.backends.triton.plan.sizes import Strides, contiguous, rows_of_vectors
from tilec.backends.triton.pointwise.pointwise import fill, pointwise
from tilec.backends.triton.scan.form import recognise_scan, terms_first
from tilec.backends.triton.scan.scan import scan_of_terms, scan_steps
from tilec.backends.triton.scatter.scatter import ScatterContext, scattered
from tilec.backends.triton.schedule.banded import recognise_banded
from tilec.backends.triton.schedule.candidates import by_library, steps_of
from tilec.backends.triton.schedule.exponential_products import exponential_steps
from tilec.backends.triton.schedule.on_sums import in_one_launch, on_sums
from tilec.backends.triton.schedule.problem import Problem, needs_int64_index, problem_of, stages_of
from tilec.backends.triton.schedule.sliding import recognise_sliding
from tilec.ir.infer import expression_type
from tilec.ir.program import Statement, kept_with, reads
from tilec.ir.types import TensorType, Types
from tilec.lattice.sets import sizes_of


def statement_steps(
    defracted: Statement, flat: Statement, types: Types, strides: Strides, setting: Setting
) -> list[Step]:
    """Steps that compute one statement into its allocated output."""
    p = problem_of(defracted, flat, types, strides, setting)
    if p is None:
        return _scattered(flat, (), types, strides, setting) or []
    first = fill(p.space, types)
    if not p.space.classes:
        return first
    family, steps = _emitted(p)
    return [*(first if family.fills else ()), *(steps or ())]


def fused_steps(
    defracted: Statement,
    flat: Statement,
    epilogue: Sequence[Statement],
    types: Types,
    strides: Strides,
    setting: Setting,
) -> list[Step] | None:
    """Steps that compute a statement and its epilogue in one launch; None where it has no such form."""
    p = problem_of(defracted, flat, types, strides, setting, epilogue)
    if p is None:
        return _scattered(flat, epilogue, types, strides, setting)
    return None if not p.space.classes else _emitted(p)[1]


def stored_steps(p: Problem, epilogue: Sequence[Statement]) -> list[Step] | None:
    """Steps that compute and store a statement and its epilogue's last value in one launch; None where it is no product
    or two launches take less time."""
    name = _chosen(p)[0].name if p.product is not None and p.space.classes else ""
    both = problem_of(p.defracted, p.flat, p.types, p.strides, p.setting, epilogue)
    return on_sums(both, name == "library", stored=True) if both and name in ("library", "product") else None


def _scattered(
    flat: Statement, epilogue: Sequence[Statement], types: Types, strides: Strides, setting: Setting
) -> list[Step] | None:
    int64_index = needs_int64_index((flat, *epilogue), types, strides, None)
    carry, margins = partial(statement_steps, setting=setting), setting.margins.get(flat.output, ())
    context = ScatterContext(types, strides, int64_index, carry, setting.fixed)
    products = None if margins else group_sum_steps(flat, context, setting, epilogue)
    return products or scattered(flat, context, epilogue, margins)


@dataclass(frozen=True)
class Family:
    """`match`: what the family finds in a problem, None where that is not of its form. `pays`: whether that is better
    than what comes after. `emit`: the steps; None where there is an epilogue that they cannot take. `fills`: elements
    that no point reaches are to be filled first."""

    name: str
    match: Callable[[Problem], Any]
    emit: Callable[[Problem, Any], list[Step] | None]
    pays: Callable[[Problem, Any], bool] = lambda p, found: True
    fills: bool = True


def _chosen(p: Problem) -> tuple[Family, Any]:
    """The family, and what it found."""
    for family in FAMILIES:
        if (found := family.match(p)) is not None and family.pays(p, found):
            return family, found
    raise AssertionError("the last family takes all")


def _emitted(p: Problem) -> tuple[Family, list[Step] | None]:
    family, found = _chosen(p)
    return family, family.emit(p, found)


def is_pointwise(p: Problem) -> bool:
    """Whether the statement is carried out point by point, and nothing is prepared for that."""
    plain = all(prepared(p.space, p.view) is None for prepared in (shared, columns_packed))
    return plain and _chosen(p)[0] is FAMILIES[-1]


def _plain(match: Callable[[Problem], Any]) -> Callable[[Problem], Any]:
    """A match that looks at problems without an epilogue alone."""
    return lambda p: None if p.epilogue else match(p)


def _alone(p: Problem, steps: list[Step]) -> list[Step] | None:
    return None if p.epilogue else steps


def _scan_of_terms(p: Problem, found: tuple[Statement, TensorType, Statement]) -> list[Step] | None:
    seen = any(p.view.types[name].shape != p.types[name].shape for name in reads(p.flat))
    # a library is given tensors with their own axes, not the views that kernels walk
    carry = partial(statement_steps, setting=replace(p.setting, library=p.setting.library and not seen))
    return None if p.epilogue else scan_of_terms(*found, p.view, p.flat, carry)


def _tuned(p: Problem) -> list[Step] | None:
    choice = p.setting.known(p) if p.setting.known is not None and p.product is not None else None
    return None if choice is None else steps_of(p, choice)


def _rewritten(p: Problem) -> Any:
    if edged := columns_of_reached(p.space, p.view, p.setting, p.types):
        return edged
    if p.product is not None:
        found = next(filter(None, (f(p.product, p.setting) for f in (side_by_side, columns, class_columns))), None)
        if found is not None or worthwhile(p.product.dot, p.space) or worthwhile_padded(p.product):
            return found
    dot = recognise_dot(p.space, p.view, one_channel=True) if p.product is None and len(p.space.classes) > 1 else None
    few = dot and class_columns(MatrixProduct(dot, p.space, p.view), p.setting)
    return few or recognise_sliding(StridedView(p.defracted, p.types, p.strides, p.view.int64_index))


def _of_rewritten(p: Problem, found: Any) -> list[Step] | None:
    return None if p.epilogue else found.carried_out(partial(_over_views, setting=replace(p.setting, library=False)))


def _of_biased(p: Problem) -> list[Step] | None:
    return biased_steps(p.flat, p.epilogue, p.types, p.strides) if p.product is not None and p.setting.library else None


def _left_to_library(p: Problem, _: object = None) -> bool:
    def is_left(p: Problem) -> bool:
        return p.product is not None and not mostly_padding(p.product) and not ours_is_faster(p.product, p.setting)

    return kept_with(p, "_left_to_library", is_left)


def _in_place(p: Problem) -> MatrixProduct | None:
    """A product that a library would copy, before or after, for longer than it gains."""
    library = by_library(p) if p.product is not None and copies_take_longest(p.product) else None
    if p.product is None or library is None or is_read_in_place(library, p.product, p.setting):
        return None
    return p.product if _left_to_library(p) else None


def _over_copies(p: Problem, product: MatrixProduct) -> OperandRewrite | None:
    library, left = (lambda: by_library(p) is not None), (lambda: _left_to_library(p))
    return over_copies(product, p.setting, library, left, alone=not p.epilogue)


def _of_over_copies(p: Problem, over: OperandRewrite) -> list[Step] | None:
    s, view, setting = over.view.statement, over.view, replace(p.setting, library=False)
    if not p.epilogue:
        return over.around(_over_views(view, setting))  # a result that is moved afterwards has no epilogue before
    steps = fused_steps(s, p.flat, p.epilogue, view.types, view.strides, setting) if s.output == p.flat.output else None
    return None if steps is None else over.around(steps)


def _dot_steps(p: Problem, product: MatrixProduct) -> list[Step] | None:
    return dot_steps(product, p.flat, p.setting, p.epilogue)


def _of_stored_operands(p: Problem) -> list[Step] | None:
    """Of the statement as it is written: a library reads tensors as they are, and parts are made of what is stored."""
    exact = p.setting.library and p.setting.precision == "highest" and len(p.space.classes) == 1
    if p.product is None or not exact or not has_stored_operands(p.product.dot):
        return None
    written = product_over(StridedView(p.flat, p.types, p.strides, p.view.int64_index))
    found = None if written is None else with_stored_operands(written)
    if written is None or found is None:
        return None
    own = problem_of(found.product, found.product, found.view.types, found.view.strides, p.setting)
    product = None if own is None else _of_parts(own) or by_library(own)
    before = [_requested(s, found.view, p.setting) for s in found.operands]
    repaired = repair_steps(written, p.flat) if found.checked else []
    return product and [*before, *product, Release(tuple(s.output for s in found.operands)), *repaired]


def _of_parts(p: Problem, epilogue: Sequence[Statement] = ()) -> list[Step] | None:
    return None if p.product is None else split_steps(p.product, p.flat, p.setting, epilogue)


def _product(p: Problem, product: MatrixProduct) -> list[Step] | None:
    hopper = p.setting.device.capability == HOPPER
    computed = hoisted(product, wanted_along(product), hopper=hopper)
    if p.epilogue and computed is not None:
        return None
    if p.epilogue:
        fused = on_sums(p, by_library=False)
        return _over_packed(p, product) if fused is None and hopper_steps(product, p.setting) is None else fused
    if computed is None:
        return _product_steps(p, product)
    product = computed.coalesced
    apart = with_batches_apart(product, p.setting)
    if apart is not None:
        return computed.around(apart.around(_over_views(apart.view, replace(p.setting, library=False))))
    over = with_rows_aligned(product, p.setting, lambda: False) or product.as_it_is
    return computed.around(over.around(_product_steps(p, over.product)))


def _product_steps(p: Problem, product: MatrixProduct) -> list[Step]:
    """Hopper's kernels where they fit, over copies where those help; pointer kernels elsewhere."""
    fast = hopper_steps(product, p.setting)
    if fast is not None:
        return fast
    over = packed(product)
    fast = None if over is None else hopper_steps(over.product, p.setting)
    return over.around(fast) if over is not None and fast is not None else _over_packed(p, product) or []


def _over_packed(p: Problem, product: MatrixProduct) -> list[Step] | None:
    """Pointer kernels, over copies where those help; of a product with an epilogue where its sums are split."""
    split = choose_config(product, p.setting.device.shared).parts > 1
    over = packed(product) if split or not p.epilogue else None
    steps = _dot_steps(p, product if over is None else over.product)
    return steps if over is None or steps is None else over.around(steps)


def _grouping(p: Problem) -> Any:
    return grouped_product(p.space, p.view, p.setting) if p.product is None else None


def _grouped(p: Problem, found: Any) -> list[Step] | None:
    product, config = found
    context = ScatterContext(p.types, p.strides, p.view.int64_index, partial(statement_steps, setting=p.setting))
    return GroupedTask(product, config, p.flat, p.setting, context, p.epilogue).rows()


def _of_distances(p: Problem, found: Distances) -> list[Step] | None:
    if p.epilogue and not p.space.covers:
        return None
    carry = partial(allocated_steps, setting=p.setting)
    own = distance_steps(found, p.flat, p.setting, carry, p.epilogue)
    return _pointwise(p, p.space) if own is None else own


def _banded(p: Problem) -> StagedProduct | None:
    found = None if p.product is not None else recognise_banded(p.defracted, p.types, p.strides)
    if found is None:
        return None
    s, view = found.product.statement, found.product
    own = problem_of(s, s, view.types, view.strides, p.setting)
    product = None if own is None else own.product
    return found if product is not None and worthwhile(product.dot, product.space) else None


def _pointwise(p: Problem, space: Space) -> list[Step] | None:
    view = p.view
    before, after = list[Step](), list[Step]()
    for prepared in (columns_packed,) if p.epilogue else (shared, columns_packed):
        once = prepared(space, view)
        if once is not None:
            view, space = once.view, once.space
            before, after = [*before, *once.before], [*once.after, *after]
    own = pointwise(space, view, p.flat, p.epilogue)
    if own is None or p.epilogue and any(isinstance(x, Release) for x in own) and shared(*_merged(p)):
        return None
    return [*before, *own, *after]


def _merged(p: Problem) -> tuple[Space, StridedView]:
    view = coalesce(p.view)
    space = build_space(view.statement, view.types)
    assert space is not None
    return space, view


def _in_turn(p: Problem, stages: list[Statement], padded: frozenset[str] = frozenset()) -> list[Step] | None:
    """Steps of a statement that was cut into several, the last of which takes the epilogue or has none. `padded`: what
    has rows as products would copy it."""
    types, strides, setting = dict(p.types), dict(p.strides), replace(p.setting, library=False)
    steps: list[Step] = []
    for s in stages[:-1]:
        t = types[s.output] = TensorType(sizes_of(s), expression_type(s.body, types).dtype)
        memory = rows_of_vectors(t) if s.output in padded else t.shape
        strides[s.output] = contiguous(memory)
        steps.append(Allocate(s.output, memory, t.dtype))
        steps += statement_steps(s, s, types, strides, p.setting if padded.isdisjoint(reads(s)) else setting)
    own = problem_of(stages[-1], stages[-1], types, strides, p.setting)
    if own is not None and _chosen(own)[0].name == "library":
        last = None if p.epilogue else _emitted(own)[1]
    elif p.epilogue:
        last = fused_steps(stages[-1], p.flat, p.epilogue, types, strides, setting)
    else:
        last = statement_steps(stages[-1], p.flat, types, strides, setting)
    if last is None:
        return None
    steps += [*last, Release(tuple(s.output for s in stages[:-1]))]
    by_torch = {name for x in steps if isinstance(x, TorchLines) for name in (*x.reads, *x.writes)}
    copied = {s.output for s in stages} & {source_of_rows(x) for x in steps} - by_torch
    return _in_turn(p, stages, frozenset(copied)) if copied and not padded else steps


FAMILIES = (
    Family(
        "scan",
        lambda p: recognise_scan(p.space, p.view),
        lambda p, scan: scan_steps(scan, p.view, p.flat, p.epilogue),
        fills=False,
    ),
    Family("scan of terms", lambda p: terms_first(p.space, p.view), _scan_of_terms, fills=False),
    Family("tuned product", _plain(_tuned), _alone),
    Family("rewritten product", _rewritten, _of_rewritten),
    Family("product over copies", lambda p: p.product and _over_copies(p, p.product), _of_over_copies),
    Family("product in place", _in_place, _dot_steps),
    Family("product of parts", _of_parts, lambda p, steps: _of_parts(p, p.epilogue) if p.epilogue else steps),
    Family("library with a bias", _of_biased, lambda p, steps: steps, _left_to_library, fills=False),
    Family(
        "product with an epilogue",
        lambda p: in_one_launch(p, by_library(p) is not None),
        lambda p, steps: steps,
        _left_to_library,
        fills=False,
    ),
    Family("library", by_library, _alone, _left_to_library, fills=False),
    Family("chain of products", stages_of, _in_turn, fills=False),
    Family("product of stored operands", _plain(_of_stored_operands), _alone, fills=False),
    Family("product", lambda p: p.product, _product, lambda p, product: worthwhile(product.dot, p.space)),
    Family("padded product", lambda p: p.product, _dot_steps, lambda p, product: worthwhile_padded(product)),
    Family("grouped product", _grouping, _grouped),
    Family(
        "product of exponentials",
        lambda p: recognise_log(p.space, p.view) or recognise_weighted(p.space, p.view),
        lambda p, found: exponential_steps(p, found, allocated_steps),
    ),
    Family("distances", lambda p: recognise_distances(p.space, p.view), _of_distances),
    Family(
        "band of products", _plain(_banded), lambda p, found: found.carried_out(partial(_over_views, setting=p.setting))
    ),
    Family("pointwise", lambda p: p.space, _pointwise),
)


def _requested(s: Statement, view: StridedView, setting: Setting) -> Request:
    return Request(s, view.types, view.strides, view.int64_index, partial(allocated_steps, s, view, setting))


def allocated_steps(s: Statement, view: StridedView, setting: Setting) -> list[Step]:
    t = view.types[s.output]
    return [Allocate(s.output, t.shape, t.dtype), *statement_steps(s, s, view.types, view.strides, setting)]


def _over_views(view: StridedView, setting: Setting) -> list[Step]:
    """Steps of a statement over views, into a tensor that is there."""
    return statement_steps(view.statement, view.statement, view.types, view.strides, setting)
