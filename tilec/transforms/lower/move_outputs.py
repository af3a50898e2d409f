"""Output indices that only turn a variable round, or move it, as that variable: each element then reads its terms.

`O[(i - 1) % D] = +(A[i])` is `O[i] = +(A[(i + 1) % D])`, `O[(i + 1) % 3 + 1] = +(A[i])` is
`O[i + 1] = +(A[(i - 1) % 3]), i < 3`, and `O[2 - i] = +(A[i])` is `O[i] = +(A[2 - i])`. What stands beside the variable
may be elements of tensors: `O[t + S[k]] = +(A[t, k])` is `O[t] = +(A[t - S[k], k])`, in which each term of k moves by
an element of its own and nothing is sorted.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir.constraining import asks_in_branches, constraining
from tilec.ir.functions import all_of, operands_of
from tilec.ir.index import Affine, canonical, linear, substitute_affine
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Statement, children, index_variables
from tilec.ir.rational import Fraction
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, sizes_of
from tilec.transforms.lower.reduce import keep_constraint_variables

_BESIDE = 16  # terms of an element that is moved by data, of which others are summed over
_SPREAD = 4  # elements over terms that are moved to them by data, at most: each of these is looked for at all elements


def unrotated(s: Statement, shapes: Shapes) -> Statement:
    """The statement over its elements where an output index turns a variable round, `(v + rest) % n`, alone or beside
    what it is moved by: a variable of about as many values as n, or one that goes round once by longer steps
    (`O[(2*i + 3) % D] = +(A[i])` is `O[2*i + 1] = +(A[(i - 1) % (D/2)])`). By what is all the same: for each value of
    the other variables, all places are different."""
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
        candidates = (v for v in form.variables() if v not in taken)
        found_rounds = (_going_round(v, form.coefficient(v), box, n, s) for v in candidates)
        found = next((x for x in found_rounds if x is not None), None)
        if found is None:
            continue
        v, low, without = found
        step = form.coefficient(v)
        rest, start = _in_steps(form - Affine.variable(v, step), abs(step))
        if not _steps_by(rest, v, s) or (abs(step) > 1 and not rest.is_integral):
            continue
        s, steps = without, n // int(abs(step))
        back = (Affine.variable(v) - rest) * (1 if step > 0 else -1) - low
        turned = linear(canonical(Call("mod", (back.to_expr(), Int(steps))))) + low
        index = list(s.index or ())
        moved = substitute_affine(s, {v: turned})
        index[place] = (beside + (Affine.variable(v, abs(step)) + start) * c).to_expr()
        alone = beside == Affine() and c == 1 and sizes_of(s)[place] <= n
        bound = () if alone else (Constraint(Index(v), Int(steps)),)
        s = replace(moved, index=tuple(index), constraints=(*moved.constraints, *bound))
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


def _going_round(v: str, step: Fraction, box: Box, n: int, s: Statement) -> tuple[str, int, Statement] | None:
    """A variable with as many values as the modulus, or fewer, but not by far, which what it indexes says, or whose
    steps go round once, and its first value; the statement without tests that leave out ends of its range."""
    low, high = box[v]
    if abs(step) != 1:
        return (v, low, s) if step.denominator == 1 and (high - low + 1) * abs(step) == n else None
    told = v not in index_variables(*(c.expr for c in s.constraints)) and not asks_in_branches(s)
    if high - low + 1 == n or told and high - low + 1 <= n <= _SPREAD * (high - low + 1):
        return v, low, s
    tests = () if s.guard is None else operands_of("and", s.guard)
    ends = {end: Call("ne", (Index(v), Int(end))) for end in (low, high)}
    low, high = low + (ends[low] in tests), high - (ends[high] in tests)
    if high - low + 1 != n:
        return None
    return v, low, replace(s, guard=all_of(x for x in tests if x not in ends.values()))


def _own_variables(s: Statement, rows: list[Affine], shapes: Shapes) -> list[str] | None:
    """For each output index the variable that moves it: the only one, beside which may stand elements, `%` and `clamp`,
    which say how far; beside elements also one of several, where the others are summed over and few (the corners of an
    interpolation in a window). None where an index has none."""
    fixed = _values(*s.roots) | set(index_variables(*(c.expr for c in s.constraints)))
    several = [row for row in rows if len(row.variables()) > 1 and not row.is_affine]
    box = bounds_of(domain(s, shapes)) if several else None
    found = []
    for row in rows:
        variables = row.variables()
        others = {v for other in rows if other is not row for v in index_variables(other.to_expr())}
        if row in several and box is not None:
            free = [v for v in variables if v not in fixed | others and abs(row.coefficient(v)) == 1]
            variables = tuple(sorted(free, key=lambda v: box[v][0] - box[v][1])[:1])
            beside = math.prod(box[v][1] - box[v][0] + 1 for v in row.variables() if v not in (*variables, *others))
            if beside > _BESIDE:
                return None
        if len(variables) != 1 or not (row.is_affine or abs(row.coefficient(variables[0])) == 1):
            return None
        found.append(variables[0])
    return found


def with_inverted_index(s: Statement, shapes: Shapes) -> Statement:
    """The statement over its elements where each output index is a variable of its own, moved, mirrored or divided:
    what walks the same elements, such as the parts of a stencil's gradient, then does so by the same index."""
    rows = [linear(e) for e in s.index or ()]
    if all(row.bare is not None for row in rows):
        return s
    own = _own_variables(s, rows, shapes)
    if own is None or len(set(own)) < len(own):
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
