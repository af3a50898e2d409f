"""Rules: aggregations over all k up to i (or from i on), written with a constraint, as torch's cumulative functions,
products over all k but i, and sums along an axis that begin anew where a test says so.

`O[i : N] = +(X[k]), i - k < N` has N^2 points and N different values to add up. It applies where the body does not
depend on i, and i and one summed variable are held together by a single one-sided condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.backends.common.domain import Domain, ScanCondition, boxed, free, scan_condition
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.torch.expr.task import Task
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, distinct_variables, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Int, Pad, Statement, accesses_in, children, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, shapes_in
from tilec.lattice.sets import bounds, sizes_of

CUMULATIVE = {a.name: a.torch.cumulative for a in AGGREGATIONS.values() if a.torch and a.torch.cumulative}
_SUMMED, _VALUES = ("float32", "float64", "int64"), ("float32", "float64")
FEWEST_SCANNED = 4  # elements along the scan, below which the points are as few


def scan(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute the output, or None; `lines_for` carries out the statement of what is accumulated."""
    s = task.flat
    template = CUMULATIVE.get(s.aggregation)
    if template is None or s.default is not None or task.flat_domain is None:
        return None
    domain = task.flat_domain
    if not any(len(c.form.variables()) == 2 for c in domain.conditions):
        return None
    ranges = bounds(s, shapes_in(task.types))
    assert ranges is not None, "the domain is not empty"
    domain = boxed(s, ranges, task.types)  # the other one may have turned the summed variable round
    found = _scan(s, domain)
    if found is None:
        return None
    terms = _terms(task, s, domain, found.summed, found.output)
    lines = lines_for(terms)
    axis = next(a for a, e in enumerate(s.index or ()) if e == Index(found.output))
    name = terms.out
    dtype = accumulation_dtype(s.aggregation, task.type.dtype)
    text = name if terms.type.dtype == dtype else f"{name}.to(torch.{dtype})"
    text = text if found.rising else f"{text}.flip({axis})"
    lines.append(f"{name} = {template.format(text, axis)}")
    if not found.rising:
        lines.append(f"{name} = {name}.flip({axis})")
    size = task.type.shape[axis]
    first = found.shift - domain.low[found.summed]  # the place of the term that belongs to element 0
    if first or domain.extent[found.summed] != size:
        lines.append(f"{name} = rt.placed({name}, {axis}, {first}, {size}, {task.identity}, {found.rising})")
    start, count = domain.low[found.output], domain.extent[found.output]
    if _reached(domain, found, size) != (start, start + count):
        lines.append(f"{name} = rt.confined({name}, {axis}, {start}, {count}, {task.identity})")
    if dtype != task.type.dtype:
        lines.append(f"{name} = {name}.to(torch.{task.type.dtype})")
    return [*lines, f"{task.out} = {name}"]


def _scan(s: Statement, domain: Domain) -> ScanCondition | None:
    index = distinct_variables(s.index)
    if index is None:
        return None
    summed = [v for v, n in domain.extent.items() if v not in index and n > 1]
    found = scan_condition(domain.conditions, summed, s.roots, domain)
    if found is None or len(summed) != 1:
        return None
    k, i, kept = found.summed, found.output, [c for c in domain.conditions if c is not found.condition]
    if i not in index or any(k in free(c.form) and free(c.form) & {*index} for c in kept):
        return None
    size = dict(zip(index, sizes_of(s), strict=True))
    whole = all((domain.low[v], domain.extent[v]) == (0, n) for v, n in size.items() if v != i)
    return found if whole and domain.extent[k] >= FEWEST_SCANNED else None


def _reached(domain: Domain, found: ScanCondition, size: int) -> tuple[int, int]:
    """The elements that have terms as far as the scan's own condition goes, as a half-open range."""
    first = domain.low[found.summed] - found.shift
    last = first + domain.extent[found.summed] - 1
    return (max(first, 0), size) if found.rising else (0, min(last + 1, size))


def of_others(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute `O[i : N] = *(k != i ? X[k])`, which has N^2 points too."""
    s, domain = task.flat, task.flat_domain
    index = distinct_variables(s.index)
    if s.aggregation != "prod" or s.default is not None or s.constraints or domain is None or index is None:
        return None
    match s.guard:
        case Call("ne", (Index(a), Index(b))) if (a in index) != (b in index):
            k, i = (b, a) if a in index else (a, b)
        case _:
            return None
    sizes = dict(zip(index, task.type.shape, strict=True))
    summed = [v for v, n in domain.extent.items() if v not in index and n > 1]
    whole = all((domain.low[v], domain.extent[v]) == (0, n) for v, n in {**sizes, k: sizes[i]}.items())
    if summed != [k] or domain.conditions or not whole or i in index_variables(s.body):
        return None
    terms = _terms(task, replace(s, guard=None), domain, k, i)
    dtype = accumulation_dtype(s.aggregation, task.type.dtype)
    text = f"rt.product_of_others({terms.out}, {index.index(i)}, torch.{dtype})"
    return [*lines_for(terms), f"{task.out} = {text}" + f".to(torch.{task.type.dtype})" * (dtype != task.type.dtype)]


def tested_sums(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute `S[i] = X[i] + (test ? S[i - 1] * A[i] : 0)`, or with S[i + 1]: what the gradients of
    cumulative extrema and of logsumexp are made of."""
    s, dtype = task.flat, task.type.dtype
    plain = s.aggregation == "assign" and s.guard is None and not s.constraints and s.default is None and s.init is None
    args = s.body.args if plain and isinstance(s.body, Call) and s.body.function == "add" else ()
    chosen = [k for k, e in enumerate(args) if isinstance(e, Call) and e.function == "select" and _reads(e, s.output)]
    if len(chosen) != 1:
        return None
    (test, kept, other), x = children(args[chosen[0]]), args[1 - chosen[0]]
    own, factors = _factors(kept, s.output)
    step = None if own is None else _one_step(own, s)
    if step is None or other != ZERO or dtype not in _SUMMED or any(_reads(e, s.output) for e in (x, test, *factors)):
        return None
    values = None if factors else _values_tested(test, step, s)
    of_values = task.types[values] if values is not None else task.type
    if of_values.shape != task.type.shape or of_values.dtype not in _VALUES:
        values = None
    made = [_whole(task, x, dtype, "_terms"), *(_whole(task, e, dtype, "_factors") for e in factors)]
    made += [] if values is not None else [_whole(task, test, "bool", "_tests")]
    if None in made:
        return None
    parts = [part for part in made if part is not None]
    tests = parts[-1].out if values is None else task.local[values]
    scale = parts[1].out if factors else "None"
    axis, by = step
    lines = [line for part in parts for line in lines_for(part)]
    return [*lines, f"{task.out} = rt.running({parts[0].out}, {tests}, {scale}, {axis}, {by > 0})"]


def _whole(task: Task, e: Expr, dtype: str, suffix: str) -> Task | None:
    """The statement of an expression at all elements of the output, where it has a value at each."""
    body = e if expression_type(e, task.types).dtype == dtype else Call(dtype, (e,))
    made = replace(task.flat, output=task.unused(suffix), body=body)
    part = task.before(made, TensorType(task.type.shape, dtype), suffix)
    whole = part.classes and len(part.classes) == 1 and not part.classes[0].masked and part.covered
    return part if whole else None


def _values_tested(test: Expr, step: tuple[int, int], s: Statement) -> str | None:
    """The tensor of which each element is asked whether it is equal to its neighbour."""
    sides = test.args if isinstance(test, Call) and test.function == "eq" else ()
    own = [e for e in sides if isinstance(e, Access) and e.index == s.index]
    beside = [e.access for e in sides if isinstance(e, Pad) and isinstance(e.access, Access)]
    if len(own) != 1 or len(beside) != 1 or own[0].tensor != beside[0].tensor or _one_step(beside[0], s) != step:
        return None
    return own[0].tensor


def _factors(e: Expr, output: str) -> tuple[Access | None, list[Expr]]:
    """An element of the output and, where that is multiplied, by what."""
    match e:
        case Access(name) if name == output:
            return e, []
        case Call("mul", (Access(name) as own, x)) | Call("mul", (x, Access(name) as own)) if name == output:
            return own, [x]
    return None, []


def _one_step(own: Access, s: Statement) -> tuple[int, int] | None:
    """The axis along which an element's neighbour lies, and whether before it, -1, or after it, 1."""
    index = distinct_variables(s.index)
    if index is None:
        return None
    apart = [linear(e) - Affine.variable(v) for e, v in zip(own.index, index, strict=True)]
    steps = [(axis, as_int(a.constant)) for axis, a in enumerate(apart) if a != Affine()]
    constant = all(not a.terms and a.is_integral for a in apart)
    return steps[0] if constant and len(steps) == 1 and abs(steps[0][1]) == 1 else None


def _reads(e: Expr, tensor: str) -> bool:
    return any(a.tensor == tensor for a in accesses_in(e))


def _terms(task: Task, s: Statement, domain: Domain, k: str, i: str) -> Task:
    """The statement of what is accumulated, over k in the place of i; points that do not count hold the identity."""
    low, count = domain.low[k], domain.extent[k]
    place = (Affine.variable(k) - low).to_expr()
    index = tuple(place if e == Index(i) else e for e in s.index or ())
    sizes = tuple(Int(count) if e == Index(i) else n for e, n in zip(s.index or (), s.sizes or (), strict=True))
    # what is said of the output variable is either the scan's own condition or true of the whole box
    kept = tuple(c for c in s.constraints if i not in index_variables(c.expr))
    element = expression_type(s.body, task.types)
    dtype = element.dtype if s.aggregation in ("max", "min") else task.type.dtype
    name = task.unused("_terms")
    made = replace(s, output=name, index=index, sizes=sizes, constraints=kept, default=None, attributes=())
    return task.before(made, TensorType(tuple(n.value for n in sizes if isinstance(n, Int)), dtype), "_terms")
