"""Output indices that only turn a variable round, or move it, as that variable: each element then reads its terms.

`O[(i - 1) % D] = +(A[i])` is `O[i] = +(A[(i + 1) % D])`, and `O[2 - i] = +(A[i])` is `O[i] = +(A[2 - i])`. What stands
beside the variable may be elements of tensors: `O[t + S[k]] = +(A[t, k])` is `O[t] = +(A[t - S[k], k])`, in which each
term of k moves by an element of its own and nothing is sorted.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.constraining import asks_in_branches, constraining
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Statement, children, index_variables
from tilec.ir.rational import Fraction
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, sizes_of
from tilec.transforms.lower.reduce import keep_constraint_variables

_SPREAD = 4  # elements over terms that are moved to them by data, at most: each of these is looked for at all elements


def turned_back(s: Statement, shapes: Shapes) -> Statement:
    """The statement over its elements where an output index turns a variable of as many values round, by steps of one
    or of more: `O[(2*i + 3) % D] = +(A[i])` is `O[2*i + 1] = +(A[(i - 1) % (D/2)])`. By what is all the same: for each
    value of the other variables, all places are different."""
    for place, row in enumerate(map(linear, s.index or ())):
        match row.terms:
            case ((Call("mod", (inner, Int(n))), c),) if c == 1 and row.is_integral and n > 0:
                form = linear(inner)
            case _:
                continue
        box = bounds_of(domain(s, shapes))
        if box is None:
            continue
        v = next((v for v in form.variables() if _goes_round(v, form.coefficient(v), box, n)), None)
        if v is None or any(v in index_variables(e) for k, e in enumerate(s.index or ()) if k != place):
            continue
        step = form.coefficient(v)
        rest, start = _in_steps(form - Affine.variable(v, step), abs(step))
        if not _steps_by(rest, v, s) or (abs(step) > 1 and not rest.is_integral):
            continue
        low, high = box[v]
        back = (Affine.variable(v) - rest) * (1 if step > 0 else -1) - low
        turned = Affine.of([(Call("mod", (back.to_expr(), Int(high - low + 1))), 1)], low)
        index = list(s.index or ())
        moved = substitute_affine(s, {v: turned})
        index[place] = (Affine.variable(v, abs(step)) + start + row.constant).to_expr()
        s = replace(moved, index=tuple(index))
        if sizes_of(s)[place] > n or row.constant:  # places of no value
            limit = Constraint(Index(v), Int(high - low + 1))
            s = replace(s, constraints=tuple(dict.fromkeys((*s.constraints, limit))))
    return s


def _in_steps(rest: Affine, step: Fraction) -> tuple[Affine, Fraction]:
    """What stands beside a variable of such a step, in steps, and what is left of its number."""
    start = rest.constant % step
    return (rest - start) * (1 / step), start


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


def _goes_round(v: str, step: Fraction, box: Box, n: int) -> bool:
    """Whether the steps of a variable go round once."""
    return step.denominator == 1 and (box[v][1] - box[v][0] + 1) * abs(step) == n


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
