"""What each index variable of a reduced or defracted statement is to whoever runs it: class, output or reduction."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.index import Affine, linear
from tilec.ir.program import Int, Statement, expressions, index_variables


@dataclass(frozen=True)
class Roles:
    """`classes`: residues and their numbers of values; `outputs`: the variables that together with the classes name an
    element, one for each independent row of the output index; `reductions`: all others. Different values of classes
    (within their numbers) and outputs are different elements."""

    classes: tuple[tuple[str, int], ...]
    outputs: tuple[str, ...]
    reductions: tuple[str, ...]


def roles(s: Statement) -> Roles | None:
    """The roles in a statement, None where its output index is not that of a reduced or defracted statement: each row
    adds at most an output variable and a residue to those of the rows before it, as `b*r + m*q` with `r < m/b`."""
    limits: dict[str, int] = {}
    for c in s.constraints:
        bare = linear(c.expr).bare
        if bare is not None and isinstance(c.bound, Int):
            limits[bare] = min(c.bound.value, limits.get(bare, c.bound.value))
    classes: dict[str, int] = {}
    outputs: dict[str, None] = {}
    for row in map(linear, s.index or ()):
        new = [v for v in row.variables() if v not in classes and v not in outputs]
        if not row.is_affine or len(new) > 2:
            return None
        if len(new) == 2:
            residue = next((v for v in new if _is_residue(v, row, new, limits)), None)
            if residue is None:
                return None
            new.remove(residue)
            classes[residue] = limits[residue]
        outputs.update(dict.fromkeys(new))
    others = (v for v in index_variables(*expressions(s)) if v not in classes and v not in outputs)
    return Roles(tuple(classes.items()), tuple(outputs), tuple(others))


def _is_residue(v: str, row: Affine, new: list[str], limits: dict[str, int]) -> bool:
    (tile,) = (u for u in new if u != v)
    return v in limits and abs(row.coefficient(v)) * limits[v] == abs(row.coefficient(tile))
