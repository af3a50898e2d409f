"""The matrix values of a flat program, and the statements that reduce them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.backends.common.chains.chain import ChainKernel, Inner, Target
from tilec.backends.common.chains.sheared import is_aslant
from tilec.backends.common.chains.values import (
    DOT_DTYPES,
    LONGEST_INNER,
    NARROWEST_ROW,
    SHORT,
    as_inner,
    as_value,
    extents_of,
    hidden_outside,
    is_computable,
    is_elementwise,
    is_matrix,
    least_value,
    open_conditions,
    plain_index,
    rebuilt,
    reduction_variables,
    value_of_access,
    where,
    without_pads,
    written_apart,
    zero_outside,
)
from tilec.ir.functions import RANDOM, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices, substitute_affine
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
    value_accesses,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, kind
from tilec.lattice.conditions import bound_of
from tilec.transforms.util.factors import Factor, factors_of

REDUCED = ("sum", "max", "min", "logsumexp")


@dataclass
class Matrices:
    """`roles`: the positions of the row's and the column's variable in the index of each matrix value; `values`: those
    that are made element by element; `types` also of inner sums."""

    types: dict[str, TensorType]
    inners: dict[str, Inner] = field(default_factory=dict)
    values: dict[str, tuple[tuple[str, ...], Expr]] = field(default_factory=dict)
    roles: dict[str, tuple[str, str]] = field(default_factory=dict)
    _written: dict[Access, Expr] = field(default_factory=dict)

    def written_out(self, e: Expr) -> Expr:
        """The expression down to inner sums and reads of tensors."""
        return rebuilt(e, self._value_at)

    def _value_at(self, a: Access) -> Expr:
        if a.tensor not in self.values:
            return a
        if a not in self._written:
            index, value = self.values[a.tensor]
            self._written[a] = self.written_out(value_of_access(value, index, a))
        return self._written[a]

    def drop(self, names: Collection[str]) -> None:
        """These are values no longer."""
        self._written.clear()
        for n in names:
            self.values.pop(n, None)
            self.roles.pop(n, None)


def matrices_of(program: Program, types: Types, stored: Collection[str] = ()) -> Matrices:
    """All statements that could be matrix values: inner sums, and elementwise statements of such; but outputs, those of
    the program and `stored`, and what is read at positions that are computed of several variables."""
    found = Matrices(dict(types))
    aslant = {a.tensor for s in program.statements for a in value_accesses(s) if any(map(is_aslant, a.index))}
    stored = {*program.outputs, *stored, *aslant}
    for s in program.statements:
        if s.output in stored or kind(types[s.output].dtype) != 2:
            continue
        s = written_apart(s, types, 1)
        inner = as_inner(s, types)
        if inner is not None and any(a.tensor in found.values for a in accesses_in(inner[0].body)):
            inner = None
        if inner is None and types[s.output].dtype == "float32" and any(n in found.values for n in reads(s)):
            s = written_apart(s, types, SHORT)
        if inner is not None:
            dot, s, row, column = inner
            found.inners[dot.output] = dot
            extent = extents_of(s, {**types, dot.output: TensorType((), dot.dtype)}) or {}
            found.types[dot.output] = TensorType(tuple(extent[v] for v in dot.index), dot.dtype)
            index = plain_index(s)
            assert index is not None
            found.roles[s.output] = row, column
            found.values[s.output] = index, as_value(s, extent, found.types)
        elif is_elementwise(s):
            roles = roles_of(s, found)
            index, extents = plain_index(s), extents_of(s, types)
            if roles is None or index is None or extents is None or not set(roles) <= set(index):
                continue
            if is_computable(without_pads(s.body, extents, types), s.guard):
                found.roles[s.output] = roles
                found.values[s.output] = index, as_value(s, extents, types)
    _add_made_in_place(program, found, stored)
    return found


def _add_made_in_place(program: Program, found: Matrices, stored: Collection[str]) -> None:
    """Take in elementwise statements of rows, columns and indices that matrix values and their readers alone read, each
    of them for a row and a column."""
    for s in reversed(program.statements):
        index, extent = plain_index(s), extents_of(s, found.types)
        fits = s.output not in found.values and s.output not in stored and is_elementwise(s)
        if not fits or index is None or extent is None or not is_computable(s.body, s.guard) or 0 in extent.values():
            continue
        roles: set[tuple[str, str]] = set()
        for r in program.readers(s.output):
            own = found.roles.get(r.output) or roles_of(r, found)
            for a in value_accesses(r):
                if a.tensor == s.output:
                    place = {linear(e).bare: v for v, e in zip(index, a.index, strict=True)}
                    both = None if own is None or not set(own) <= place.keys() else (place[own[0]], place[own[1]])
                    roles.add(both or ("", ""))
        if len(roles) == 1 and ("", "") not in roles:
            (found.roles[s.output],) = roles
            found.values[s.output] = index, as_value(s, extent, found.types)


def roles_of(s: Statement, matrices: Matrices) -> tuple[str, str] | None:
    """The variables of the matrix's rows and columns in a statement that reads matrix values; None where it reads none
    or reads them in several ways."""
    found: set[tuple[str, str]] = set()
    for a in value_accesses(s):
        if a.tensor in matrices.roles:
            names = distinct_variables(a.index)
            if names is None:
                return None
            index, _ = matrices.values[a.tensor]
            place = dict(zip(index, names, strict=True))
            row, column = (place[v] for v in matrices.roles[a.tensor])
            assert row is not None and column is not None
            found.add((row, column))
    return None if len({frozenset(x) for x in found}) != 1 else min(found)


def targets_of(program: Program, matrices: Matrices) -> dict[str, Target]:
    """The statements that reduce matrix values and nothing else of them, by output. Matrix values that are also needed
    in another way, and what is made of these, are no longer `matrices`."""
    while True:
        extrema = {s.output for s in program.statements if s.aggregation in ("max", "min") and _reads_any(s, matrices)}
        targets: dict[str, Target] = {}
        refused: set[str] = set()
        for s in program.statements:
            if s.output in matrices.values:
                continue
            read = {n for n in reads(s) if n in matrices.values}
            if not read:
                continue
            if matrices.types[s.output].dtype == "float32":
                s = written_apart(s, matrices.types, SHORT, _places(s, matrices))
            target = _target(s, matrices, extrema)
            if target is None:
                refused |= read
            else:
                targets[s.output] = target
        if not refused:
            return targets
        _drop(refused, matrices)


def _drop(refused: Collection[str], matrices: Matrices) -> None:
    """Refuse these and everything that shares a matrix value with them."""
    wanted = set(refused)
    while True:
        more = {n for n, (_, v) in matrices.values.items() if n in wanted or wanted & _names(v)}
        more |= {n for m in more for n in _names(matrices.values[m][1]) if n in matrices.values}
        if more <= wanted:
            break
        wanted |= more
    matrices.drop(wanted)


def _names(e: Expr) -> set[str]:
    return {a.tensor for a in accesses_in(e)}


def _target(s: Statement, matrices: Matrices, extrema: Collection[str]) -> Target | None:
    """`extrema`: outputs that are the greatest or least of matrix values."""
    types = matrices.types
    roles, index, extent = roles_of(s, matrices), plain_index(s), extents_of(s, types)
    if roles is None or index is None or extent is None or s.aggregation not in (*REDUCED, "assign"):
        return None
    plain = without_pads(s.body, extent, types)
    if 0 in extent.values() or not is_computable(plain, s.guard):
        return None
    if types[s.output].dtype not in DOT_DTYPES and not _is_count(s, extent, types):
        return None
    summed = tuple(v for v in reduction_variables(s) if extent[v] > 1)
    long = max(roles, key=lambda v: extent[v])
    if s.aggregation == "assign" and summed or not is_matrix(extent[roles[0]], extent[roles[1]], long in summed):
        return None
    conditions = open_conditions(s, types)
    if any(not c.form.is_affine or not c.form.is_integral for c in conditions):
        return None
    bounds = {b for c in conditions for b in (c.form, -c.form + (c.bound - 1)) if least_value(b, extent) < 0}
    others: dict[Expr, None] = {}
    for c in () if s.guard is None else operands_of("and", s.guard):
        form = bound_of(c)
        if form is None:
            others[matrices.written_out(c)] = None
        elif least_value(form, extent) < 0:
            bounds.add(form)
    body = matrices.written_out(plain)
    if isinstance(body, Call) and body.function == "float32":
        (body,) = body.args  # values are held so
    zeros = _without_effect(s, body, bounds, others, roles, extent, types)
    if zeros:
        for c in sorted(zeros, key=repr):
            form = bound_of(c)
            if form is None:
                others[c] = None
            elif least_value(form, extent) < 0:
                bounds.add(form)
        body = where(body, zeros)
    if any(e.function in RANDOM and len(e.args) == 1 for e in walk(body) if isinstance(e, Call)):
        return None
    inner = {v for a in accesses_in(body, *others) if a.tensor in matrices.inners for v in index_variables(a)}
    if not inner or not set(summed) <= inner or _compares(matrices, extrema, body, *others):
        return None
    features = [v for v in index if v not in inner and v not in roles and extent[v] > 1]
    if len(features) > 1 or any(extent[v] > LONGEST_INNER for v in features):
        return None
    if features and not {*roles} & {*summed}:
        return None  # matrices mixed: all of them would be made again for each mixture
    feature = features[0] if features else None
    if feature is not None and types[s.output].dtype in NARROW and extent[feature] < NARROWEST_ROW:
        return None
    if feature is not None and s.aggregation != "sum":
        return None
    selecting = {*index_variables(*others), *(v for b in bounds for v in b.variables())}
    if feature is not None and (feature in selecting or feature not in index_variables(body)):
        return None  # points that each feature selects: no product
    ordered = tuple(sorted(bounds, key=repr))
    return Target(s, body, s.aggregation, *roles, feature, summed, ordered, tuple(others))


def _without_effect(
    s: Statement, body: Expr, bounds: Collection[Affine], others: Collection[Expr], roles: Sequence[str],
    extent: Mapping[str, int], types: Types,
) -> frozenset[Expr]:  # fmt: skip
    """Conditions on indices and integers outside of which points add nothing. Weights relative to a statistic are no
    numbers where its row has no point: what hides scores counts, for statistics too, if each row is known to have one.
    """
    if s.aggregation not in ("sum", "max", "logsumexp"):
        return frozenset()
    scored = s.aggregation in ("max", "logsumexp")
    found = hidden_outside(body, types) if scored else zero_outside(body, types, True)
    plain = frozenset() if scored else zero_outside(body, types)
    forms = [f for c in found if (f := bound_of(c)) is not None]
    rows = [index_variables(*(s.index or ()))] if scored else _statistics(body, types)
    if found == plain or others or len(forms) < len(found):
        return plain
    known = [*bounds, *forms]
    return found if all(_has_a_point(own, known, roles, extent) for own in rows) else plain


def _statistics(body: Expr, types: Types) -> list[tuple[str, ...]]:
    """The variables of each statistic that hidden scores are relative to."""
    found: list[tuple[str, ...]] = []
    for e in walk(body):
        match e:
            case Call("exp", (Call("sub", (x, statistic)),)) if hidden_outside(x, types):
                found.append(index_variables(statistic))
    return found


def _has_a_point(own: Sequence[str], forms: Sequence[Affine], roles: Sequence[str], extent: Mapping[str, int]) -> bool:
    """Whether all forms are not negative somewhere along each row, whose variables are `own`: at its first place, at
    its last one, or at that of the row's number."""
    free = [v for v in roles if v not in own]
    if len(free) != 1:
        return False
    places = [Affine.variable(w) for w in own if extent[w] <= extent[free[0]]]
    places += [Affine(), Affine() + (extent[free[0]] - 1)]
    return any(all(least_value(f.substitute({free[0]: p}), extent) >= 0 for f in forms) for p in places)


def _places(s: Statement, matrices: Matrices) -> set[str]:
    """The variables at which a statement reads matrix values."""
    return {v for a in value_accesses(s) if a.tensor in matrices.values for v in index_variables(a)}


def _is_count(s: Statement, extent: Mapping[str, int], types: Types) -> bool:
    """Whether a statement counts the points at which a condition holds, fewer than 32 bits have room for."""
    points = math.prod(extent[v] for v in reduction_variables(s))
    return s.aggregation == "sum" and expression_type(s.body, types).dtype == "bool" and points < 2**31


def _reads_any(s: Statement, matrices: Matrices) -> bool:
    return any(n in matrices.values for n in reads(s))


def _equalities(*roots: Expr) -> list[set[str]]:
    """The tensors that each test for equality reads."""
    return [
        {a.tensor for a in accesses_in(e)}
        for root in roots
        for e in walk(root)
        if isinstance(e, Call) and e.function in ("eq", "ne")
    ]


def rounded_alike(kernels: Sequence[ChainKernel], matrices: Matrices) -> list[ChainKernel]:
    """The kernels, those that compute an inner sum which some of them tests for equality rounding one by one."""
    roots = [e for k in kernels for r in k.targets for e in (r.target.body, *r.target.conditions)]
    compared = {n for names in _equalities(*roots) for n in names if n in matrices.inners}
    return [replace(k, singly=bool(compared & k.inners.keys())) for k in kernels]


def _compares(matrices: Matrices, extrema: Collection[str], *roots: Expr) -> bool:
    """Whether an inner sum is tested for equality that may come out otherwise, computed again, than what it is compared
    with was: other programs may round otherwise, and tensor cores add in another order. A float32 sum that is added up
    term by term is the same in each kernel of this program, once they round products and sums one by one."""
    for names in _equalities(*roots):
        sums = [matrices.inners[n] for n in names if n in matrices.inners]
        again = all(i.left is None and i.dtype == "float32" for i in sums)
        if sums and not (again and names - matrices.inners.keys() <= set(extrema)):
            return True
    return False


def renamed_target(t: Target, names: Mapping[str, str]) -> Target:
    """The target with other index variables."""
    mapping = {v: Affine.variable(w) for v, w in names.items() if v != w}
    if not mapping:
        return t
    return replace(
        t,
        statement=substitute_affine(t.statement, mapping),
        body=replace_indices(t.body, mapping),
        row=names.get(t.row, t.row),
        column=names.get(t.column, t.column),
        feature=None if t.feature is None else names.get(t.feature, t.feature),
        summed=tuple(names.get(v, v) for v in t.summed),
        bounds=tuple(b.substitute(mapping) for b in t.bounds),
        conditions=tuple(replace_indices(c, mapping) for c in t.conditions),
    )


def operand_factors(t: Target, types: Types) -> list[Factor]:
    """The factors of a sum's terms. Where the sum is a product of matrices, those of an operand that is cast to 16 bits
    too: the product rounds what is left of it."""
    found: list[Factor] = []
    for f in factors_of(t.body, types):
        match f.value:
            case Call(function, (x,)) if not f.divides and (function == "float32" or t.feature and function in NARROW):
                found += factors_of(x, types)
            case _:
                found.append(f)
    return found


def operand_dtype(t: Target, types: Types) -> str:
    """The type of a product's operands: that of the factors that it sums, 16 bits only if all have these."""
    summed = [f.value for f in factors_of(t.body, types) if set(index_variables(f.value)) & {*t.summed, t.feature}]
    kinds = {expression_type(e, types).dtype for e in summed if not expression_type(e, types).weak}
    return min(kinds) if len(kinds) == 1 and kinds <= set(NARROW) else "float32"
