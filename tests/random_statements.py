"""Random bound statements with small rational indices, for Hypothesis."""

from __future__ import annotations

from fractions import Fraction

import sympy
from hypothesis import strategies as st

from tilec.ir.index import Affine, integer
from tilec.ir.program import Access, Call, Constraint, Index, Inside, Int, Pad, Statement, index_variables

# weighted so that most statements have valid points, and all of the small cases occur
SIZES = st.sampled_from([6, 5, 6, 4, 3, 2, 6, 5, 1, 0])
NUMBERS = st.builds(Fraction, st.sampled_from([1, 2, 3, 1, 2, -1, -2, -3, 0]), st.sampled_from([1, 1, 1, 1, 2, 3]))
SHIFTS = st.builds(Fraction, st.sampled_from([0, 0, 0, 0, 1, 2, 3, -1, -2]), st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3]))


def forms(variables):
    """Affine forms in a few of the variables, or a single bare one."""
    some = st.dictionaries(st.sampled_from(variables), NUMBERS, max_size=3) if variables else st.just({})
    mixed = st.builds(Affine.combine, some, SHIFTS)
    return st.one_of(mixed, mixed, st.sampled_from(variables).map(Affine.variable)) if variables else mixed


def rank(rows, variables):
    return (
        sympy.Matrix([[sympy.Rational(str(r.coefficient(v))) for v in variables] for r in rows]).rank() if rows else 0
    )


@st.composite
def statements(draw, quasi_affine=True, aggregation="sum"):
    """(statement, shapes): the body multiplies accesses, `in`, `pad`s and bounds every variable."""
    variables = [f"{'abc'[i]}" for i in range(draw(st.integers(0, 3)))]
    row = forms(variables)
    index = draw(st.lists(row, max_size=2))
    sizes = [draw(SIZES) for _ in index]
    shapes, factors, bounding = {}, [], list(index)

    def operand(rows):
        name = f"A{len(shapes)}"
        shapes[name] = tuple(draw(SIZES) for _ in rows)
        return Access(name, tuple(r.to_expr() if isinstance(r, Affine) else r for r in rows))

    for _ in range(draw(st.integers(0, 2))):
        rows = draw(st.lists(row, min_size=1, max_size=2))
        access = operand(rows)
        kind = draw(st.sampled_from(["read", "read", "read", "in", "pad"]))
        if kind == "pad":
            factors.append(Pad(access, Int(7)))
        else:
            bounding += rows
            factors.append(access if kind == "read" else Inside(access))
    if quasi_affine and variables and draw(st.booleans()):
        wrapped = draw(row).to_expr()
        low = draw(st.integers(-1, 1))
        atom = draw(
            st.sampled_from([Call("mod", (wrapped, Int(3))), Call("clamp", (wrapped, integer(low), Int(low + 2)))])
        )
        factors.append(operand([Call("add", (atom, draw(row).to_expr()))]))
    constraints = []
    for form in draw(st.lists(row, max_size=1)):
        bounding.append(form)
        constraints.append(Constraint(form.to_expr(), Int(draw(SIZES))))
    for v in variables:
        if rank([*bounding, Affine.variable(v)], variables) > rank(bounding, variables):
            bounding.append(Affine.variable(v))
            factors.append(operand([bounding[-1]]))
    body = Int(1)
    for factor in factors:
        body = Call("mul", (body, factor))
    used = index_variables(*(r.to_expr() for r in index), body, *(c.expr for c in constraints))
    for v in used if draw(st.booleans()) else ():
        body = Call("mul", (body, Index(v)))
    left = tuple(r.to_expr() for r in index)
    return Statement("O", left, tuple(map(Int, sizes)), body, aggregation, None, tuple(constraints)), shapes


@st.composite
def scatters(draw):
    """(statement, shapes) as gradients of strided windows have them: output rows that mix variables with integer
    coefficients, operands that read them alone; nearly always with valid points and residue classes."""
    variables = list("abc"[: draw(st.integers(2, 3))])
    coefficients = st.sampled_from([2, 3, 1, -1, -2])
    index, sizes = [], []
    for _ in range(draw(st.integers(1, 2))):
        names = draw(st.permutations(variables))[: draw(st.sampled_from([2, 2, 1, 3]))]
        index.append(Affine.combine({v: draw(coefficients) for v in names}, draw(st.integers(-1, 3))))
        sizes.append(draw(st.integers(3, 9)))
    shapes, body = {}, Int(1)
    for v in variables:
        if draw(st.integers(0, 4)):
            row = Affine.variable(v, draw(st.sampled_from([1, 1, 1, 1, 2, Fraction(1, 2)])))
            shapes[f"A{v}"] = (draw(st.integers(2, 5)),)
            body = Call("mul", (body, Access(f"A{v}", (row.to_expr(),))))
        else:
            body = Call("mul", (body, Index(v)))
    bounding = [*index, *(Affine.variable(v) for v in variables if f"A{v}" in shapes)]
    constraints = []
    for v in variables:
        if rank([*bounding, Affine.variable(v)], variables) > rank(bounding, variables):
            bounding.append(Affine.variable(v))
            constraints.append(Constraint(Index(v), Int(draw(st.integers(2, 4)))))
    left = tuple(r.to_expr() for r in index)
    return Statement("O", left, tuple(map(Int, sizes)), body, "sum", None, tuple(constraints)), shapes
