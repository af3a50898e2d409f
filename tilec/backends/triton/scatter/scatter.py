"""Family scatter: an output index that is no change of variables (elements of tensors, `%`, `clamp`).

Deterministic, for every aggregation: each point's position in the output is computed, the points are sorted by it
(stably), and each output element combines its run of points in order. Variables that the output index lacks are
aggregated first, and trailing output axes that are variables of their own stay axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilec.backends.common.domain import Domain, build_domain, free, row_major
from tilec.backends.common.scalars import accumulation_dtype, identity
from tilec.backends.common.terms import product_of
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.device_text import module_text
from tilec.backends.triton.emit.kernel import triton_type
from tilec.backends.triton.plan.heading import without_sizes
from tilec.backends.triton.plan.plan import Allocate, Launch, Pointer, Release, Step, TorchLines, python_name
from tilec.backends.triton.plan.sizes import Strides, contiguous, power_of_two
from tilec.ir.constraining import constraining
from tilec.ir.index import QUASI_AFFINE, Affine, linear
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Inside, Int, Statement, rebuild, walk
from tilec.ir.types import TensorType
from tilec.language.show import show_statement

StatementPlanner = Callable[..., list[Step]]


def scattered(
    s: Statement, types: Mapping[str, TensorType], strides: Strides, wide: bool, carry: StatementPlanner
) -> list[Step]:
    """Steps that compute the flat statement `s` into its allocated output; `carry` carries out an ordinary one."""
    domain = build_domain(s, types)
    out = types[s.output]
    if domain is None:
        content = s.default if s.default is not None else identity(s.aggregation, out.dtype)
        return [Allocate(s.output, out.shape, out.dtype, content)]
    s = domain.statement
    rows = tuple(map(linear, s.index or ()))
    # with a default it matters which elements were reached, so every point has a position of its own
    plain = _plain_axes(rows, out.shape, domain) if s.default is None else ()
    split = len(rows) - len(plain)
    keyed = tuple(v for v in domain.low if s.default is not None or any(v in free(row) for row in rows[:split]))
    columns = tuple(rows[a].variables()[0] for a in plain)
    order = (*keyed, *columns)
    at, values, sources = f"{s.output}.at", f"{s.output}.values", f"{s.output}.order"
    starts = f"{s.output}.starts"
    shifted = {v: (Affine.variable(v) - domain.low[v]).to_expr() for v in order}
    inside = _insides(s)
    limits = tuple(Constraint(row.to_expr(), Int(n)) for row, n in zip(rows, out.shape, strict=True))
    # positions: one more than the place in the output, so that points that are not valid, left at 0, come first
    place = row_major(rows[:split], out.shape[:split]) + 1
    whole_guard = s.guard is not None and bool(free_guard(s) - set(keyed))
    position = Statement(
        at,
        tuple(shifted[v] for v in keyed),
        tuple(Int(domain.extent[v]) for v in keyed),
        product_of([_as_value(place.to_value()), *[i for i in inside if _within(i, keyed)]]),
        "assign",
        None if whole_guard else s.guard,
        tuple(c for c in (*s.constraints, *limits) if free(linear(c.expr)) <= set(keyed)),
        span=s.span,
    )
    aggregation = "any" if s.aggregation == "assign" and out.dtype == "bool" else s.aggregation
    value = replace(
        s,
        output=values,
        index=tuple(shifted[v] for v in order),
        sizes=tuple(Int(domain.extent[v]) for v in order),
        constraints=(*s.constraints, *limits),
        default=None,
    )
    dtype = accumulation_dtype(aggregation, out.dtype)
    types = {
        **types,
        at: TensorType(tuple(domain.extent[v] for v in keyed), "int64"),
        values: TensorType(tuple(domain.extent[v] for v in order), dtype),
    }
    strides = {**strides, at: contiguous(types[at].shape), values: contiguous(types[values].shape)}
    count = math.prod(out.shape[:split])
    content = f"{s.output}.default"
    steps: list[Step] = [
        Allocate(at, types[at].shape, "int64"),
        *carry(position, position, types, strides),
        Allocate(values, types[values].shape, dtype),
        *carry(value, value, types, strides),
        TorchLines(
            (
                f"placed, {python_name(sources)} = torch.sort({python_name(at)}.reshape(-1), stable=True)",
                f"edges = torch.arange(1, {count + 2}, device=placed.device)",
                f"{python_name(starts)} = torch.searchsorted(placed, edges)",
            ),
            (at,),
            (sources, starts),
            (s.output,),
        ),
        *([_contiguous_default(s, content)] if s.default is not None else []),
        _segments(s, types, domain, count, columns, split, aggregation, dtype),
        Release((at, values, sources, starts, *([content] if s.default is not None else []))),
    ]
    return steps


def _contiguous_default(s: Statement, content: str) -> Step:
    assert s.default is not None
    line = f"{python_name(content)} = {python_name(s.default)}.contiguous()"
    return TorchLines((line,), (s.default,), (content,), (s.output,))


def _plain_axes(rows: tuple[Affine, ...], shape: tuple[int, ...], domain: Domain) -> tuple[int, ...]:
    """Trailing axes that are one variable each, which walks all of the axis and stands nowhere else in the index."""
    found: list[int] = []
    for a in reversed(range(len(rows))):
        v = rows[a].bare
        used = sum(v in free(row) for row in rows) if v is not None else 0
        if v is None or used != 1 or domain.low[v] != 0 or domain.extent[v] != shape[a]:
            break
        found.insert(0, a)
    return tuple(found)


def free_guard(s: Statement) -> frozenset[str]:
    assert s.guard is not None
    return frozenset(e.name for e in walk(s.guard) if isinstance(e, Index))


def _insides(s: Statement) -> list[Inside]:
    """`in(...)` of every access that constrains the point."""
    roots = (s.body, *(() if s.guard is None else (s.guard,)), *(s.index or ()))
    return list(dict.fromkeys(Inside(a) for root in roots for a in constraining(root)))


def _within(i: Inside, variables: tuple[str, ...]) -> bool:
    return all(free(linear(e)) <= set(variables) for e in i.access.index)


def _as_value(e: Expr) -> Expr:
    """An index as a value, in 64 bits whatever the type of the elements in it; divisions in it come out even."""
    match e:
        case Access():
            return Call("int64", (e,))
        case Call(function, args) if function in QUASI_AFFINE:
            return replace(e, args=tuple(_as_value(linear(a).to_value()) for a in args))
    return rebuild(e, _as_value)


def _segments(
    s: Statement,
    types: Mapping[str, TensorType],
    domain: Domain,
    count: int,
    columns: tuple[str, ...],
    split: int,
    aggregation: str,
    dtype: str,
) -> Launch:
    """Each output element combines the values of its run of sorted points."""
    out = types[s.output]
    width = math.prod(out.shape[split:])
    a = Accumulator.of(aggregation, dtype)
    block = min(power_of_two(width), 256)
    default = s.default is not None
    name = python_name(s.output) + "_segments"
    parameters = ["values", "order", "starts", "out", *(["default"] if default else []), "width"]
    own = triton_type(out.dtype)
    value = "tl.load(values + point * width + col, mask=col_in, other=0)"
    truth = a.aggregation in ("any", "all")
    value = f"({value} != 0)" if truth else f"{value}.to({triton_type(a.dtype)})"
    lines = [
        *(f"# {line}" for line in show_statement(without_sizes(s)).splitlines()),
        "at = tl.program_id(0).to(tl.int64)",
        "col = tl.program_id(1) * BN + tl.arange(0, BN)",
        "col_in = col < width",
        "begin = tl.load(starts + at)",
        "end = tl.load(starts + at + 1)",
        *a.start("(BN,)"),
        "for place in range(begin, end):",
        "    point = tl.load(order + place)",
        f"    value = {value}",
        *(f"    {line}" for line in a.step("value")),
        f"result = ({a.result()}).to({own})",
    ]
    if default:
        lines.append(f"other = tl.load(default + at * width + col, mask=col_in, other=0).to({own})")
        lines.append("result = tl.where(end > begin, result, other)")
    lines.append("tl.store(out + at * width + col, result, mask=col_in)")
    text = "\n".join(
        ["@triton.jit", f"def {name}({', '.join(parameters)}, BN: tl.constexpr):", *(f"    {x}" for x in lines)]
    )
    arguments: list[tuple[str, object]] = [
        ("values", Pointer(f"{s.output}.values")),
        ("order", Pointer(f"{s.output}.order")),
        ("starts", Pointer(f"{s.output}.starts")),
        ("out", Pointer(s.output)),
    ]
    if default:
        arguments.append(("default", Pointer(f"{s.output}.default")))
    arguments.append(("width", width))
    grid = (count, -(-width // block), 1)
    return Launch(
        name,
        module_text(text + "\n"),
        grid,
        tuple(arguments),
        (("BN", block),),
        1 if block <= 32 else 4,
        2,
        (s.output,),
    )
