"""Output indices that only turn a variable round, or move it, as that variable: each element then reads its terms.

`O[(i - 1) % D] = +(A[i])` is `O[i] = +(A[(i + 1) % D])`, `O[(i + 1) % 3 + 1] = +(A[i])` is
`O[i + 1] = +(A[(i - 1) % 3]), i < 3`, and `O[2 - i] = +(A[i])` is `O[i] = +(A[2 - i])`. What stands beside the variable
may be elements of tensors: `O[t + S[k]] = +(A[t, k])` is `O[t] = +(A[t - S[k], k])`, in which each term of k moves by
an element of its own and nothing is sorted.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.constraining import asks_in_branches, constraining
from tilec.ir.functions import all_of, operands_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Statement, children, index_variables
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, sizes_of
from tilec.transforms.lower.reduce import keep_constraint_variables

_SPREAD = 4  # elements over terms that are moved to them by data, at most: each of these is looked for at all elements


def turned_back(s: Statement, shapes: Shapes) -> Statement:
    """The statement over its elements where an output index turns a variable of about as many values round, `(v + rest)
    % n`, alone or beside what it is moved by. By what is all the same: for each value of the other variables, all
    places are different."""
    for place, row in enumerate(map(linear, s.index or ())):
        circular_shifts = [(e, c) for e, c in row.terms if isinstance(e, Call) and e.function == "mod"]
        match circular_shifts:
            case ((Call("mod", (inner, Int(n))) as turn, c),) if n > 0:
                form, beside = linear(inner), row - Affine.of([(turn, c)])
            case _:
                continue
        box = bounds_of(domain(s, shapes)) if beside.is_affine and row.is_integral else None
        if box is None:
            continue
        taken = {
            *beside.variables(),
            *(w for k, e in enumerate(s.index or ()) if k != place for w in index_variables(e)),
        }
        candidates = (v for v in form.variables() if form.coefficient(v) == 1 and v not in taken)
        found = next((x for v in candidates if (x := _going_round(v, box, n, s)) is not None), None)
        if found is None or not _steps_by(form - Affine.variable(found[0]), found[0], s):
            continue
        v, low, s = found
        back = Affine.variable(v) * 2 - form - low
        turned = Affine.of([(Call("mod", (back.to_expr(), Int(n))), 1)], low)
        index = list(s.index or ())
        moved = substitute_affine(s, {v: turned})
        index[place] = (beside + Affine.variable(v, c)).to_expr()
        alone = linear(index[place]).bare is not None and sizes_of(s)[place] <= n
        bound = () if alone else (Constraint(Index(v), Int(n)),)
        s = replace(moved, index=tuple(index), constraints=(*moved.constraints, *bound))
    return s


def _steps_by(rest: Affine, v: str, s: Statement) -> bool:
    """Whether a variable can be counted from what stands beside it in an output index. Elements, `%` and fractions in
    there must be asked for by what the variable then indexes: no constraint can."""
    if rest.is_affine and rest.is_integral:
        return True
    asked = any(v in index_variables(e) for a in constraining(*s.roots) for e in a.index)
    constrained = v in index_variables(*(c.expr for c in s.constraints))
    if v in index_variables(rest.to_expr()) or v in _values(*s.roots):
        return False
    return asked and not constrained and not asks_in_branches(s)


def _values(*roots: Expr) -> set[str]:
    """Variables that stand in values. There, elements are of their own types, which may be too small for a place."""
    found: set[str] = set()
    for e in roots:
        found |= {e.name} if isinstance(e, Index) else _values(*(() if isinstance(e, Access) else children(e)))
    return found


def _going_round(v: str, box: Box, n: int, s: Statement) -> tuple[str, int, Statement] | None:
    """A variable with as many values as the modulus, or fewer, but not by far, which what it indexes says, and its
    first value; the statement without tests that leave out ends of its range."""
    low, high = box[v]
    told = v not in index_variables(*(c.expr for c in s.constraints)) and not asks_in_branches(s)
    if high - low + 1 == n or told and high - low + 1 <= n <= _SPREAD * (high - low + 1):
        return v, low, s
    tests = () if s.guard is None else operands_of("and", s.guard)
    ends = {end: Call("ne", (Index(v), Int(end))) for end in (low, high)}
    low, high = low + (ends[low] in tests), high - (ends[high] in tests)
    if high - low + 1 != n:
        return None
    return v, low, replace(s, guard=all_of(x for x in tests if x not in ends.values()))


def _own_variable(row: Affine) -> str:
    """The variable that alone moves an output index; beside it may stand elements, `%` and `clamp`, which say how far.
    "" where there is none."""
    variables = row.variables()
    alone = len(variables) == 1 and (row.is_affine or abs(row.coefficient(variables[0])) == 1)
    return variables[0] if alone else ""


def moved_back(s: Statement, shapes: Shapes) -> Statement:
    """The statement over its elements where each output index is a variable of its own, moved, mirrored or divided:
    what walks the same elements, such as the parts of a stencil's gradient, then does so by the same index."""
    rows = [linear(e) for e in s.index or ()]
    own = [_own_variable(row) for row in rows]
    if "" in own or len(set(own)) < len(own) or all(row.bare is not None for row in rows):
        return s
    still = {v: row - Affine.variable(v) * row.coefficient(v) for row, v in zip(rows, own, strict=True)}
    data = {v for v, rest in still.items() if not rest.is_affine}
    if data and not _moves_by_data(s, rows, own, data, shapes):
        return s
    moved = {v: (Affine.variable(v) - still[v]) * (1 / row.coefficient(v)) for row, v in zip(rows, own, strict=True)}
    return (
        keep_constraint_variables(substitute_affine(s, moved))
        if all(form.is_integral for form in moved.values())
        else s
    )


def _moves_by_data(s: Statement, rows: list[Affine], own: list[str], data: set[str], shapes: Shapes) -> bool:
    """Whether variables can be counted from the elements beside them: these are at places of variables that stay, and
    where they differ from term to term, there are not many more elements than terms of each."""
    constrained = set(index_variables(*(c.expr for c in s.constraints)))
    if data & (constrained | _values(*s.roots)) or asks_in_branches(s):
        return False
    bare = {row.bare for row in rows} - {None}
    box = bounds_of(domain(s, shapes))
    for row, v, size in zip(rows, own, sizes_of(s), strict=True):
        used = {w for a in row.atoms() if not isinstance(a, Index) for w in index_variables(a)}
        if v not in data or used <= bare:
            continue
        if used & set(own) - bare or box is None or size > _SPREAD * (box[v][1] - box[v][0] + 1):
            return False
        if not any(v in index_variables(e) for a in constraining(*s.roots) for e in a.index):
            return False
    return True
