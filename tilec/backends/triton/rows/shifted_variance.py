"""Deviations from a mean without a walk of their own.

A variance takes two walks over a row: one for the mean, one for the squares about it. Where rows are walked block by
block, deviations are taken from the mean z of the row's first block instead, and put right once the mean c is known
(Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983): over n columns

    sum((x - c)^2)   = q - s^2 / n + n ((z - c) + s / n)^2,   s = sum(x - z), q = sum((x - z)^2)
    sum(w (x - c))   = sum(w (x - z)) + sum(w) (z - c)

whatever rounding c went through. The first block's n' columns alone make q - s^2 / n at least n' n / (n - n') times
(z - c)^2, so that this difference loses at most a factor of the number of blocks, which is what adding the blocks' sums
one after the other may lose too; nothing depends on how far the row is from zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.backends.triton.emit.scalar import compute_dtype_of
from tilec.backends.triton.fusion.groups import Group, conditions
from tilec.backends.triton.iteration.column_moments import squares_about
from tilec.backends.triton.rows.online_softmax import MOST_INLINED_NODES, inlined, tensors_read
from tilec.ir.functions import without_casts
from tilec.ir.program import Access, Call, Expr, Float, Int, Statement, index_variables, node_count, rebuild, walk
from tilec.ir.types import TensorType, Types, is_floating
from tilec.transforms.util.factors import factors_of


@dataclass(frozen=True)
class Centred:
    """A group in which sums of deviations from a mean are made of sums of deviations from `heads`, the means of rows'
    first blocks. `types` has those of the statements that were made."""

    group: Group
    types: Types
    heads: frozenset[str]


def centred(group: Group, types: Types, block: int) -> Centred:
    """The group with such sums replaced: plain sums over all columns of `(x - c) * (x - c)`, or of weights times
    `x - c`, where c is the mean of x up to rounding and neither x nor the weights read members. `block`: columns of a
    block."""
    writer = _Writer(group, dict(types), block)
    statements = [made for s in group.statements for made in writer.replaced(s)]
    return Centred(replace(group, statements=tuple(statements)), writer.types, frozenset(writer.heads))


class _Writer:
    def __init__(self, group: Group, types: dict[str, TensorType], block: int):
        self.group, self.types = group, types
        self.columns = {v for v in group.columns if group.extent[v] > 1}
        self.count = group.count(group.columns)
        self.first = min(block, self.count)
        self.members = {s.output for s in group.statements}
        self.bodies: dict[str, Expr] = {}  # what members compute at each point
        self.totals: dict[str, Expr] = {}  # what sums add up
        self.means: dict[str, Expr] = {}  # what means are of
        self.heads: set[str] = set()
        self._made: dict[object, Expr] = {}

    def replaced(self, s: Statement) -> list[Statement]:
        group, dtype = self.group, self.types[s.output].dtype
        if s.guard is not None or s.constraints or conditions(s, group, self.types) or not is_floating(dtype):
            return [s]
        whole = inlined(s.body, self.bodies)
        body = self._plain(whole) if node_count(whole) <= MOST_INLINED_NODES else None
        if body is None or s.index is None:
            return [s]
        if not group.reductions(s):
            if self.columns & set(index_variables(body)):
                self.bodies[s.output] = whole
            elif s.aggregation == "assign":
                self._learn_mean(s)
            return [s]
        if s.aggregation != "sum" or s.output in group.sums:
            return [s]
        self.totals[s.output] = body
        known = self._made.get(("weight", body))
        if known is not None and isinstance(known, Access) and self.types[known.tensor] == self.types[s.output]:
            return [replace(s, body=known, aggregation="assign")]
        return self._deviations(s, body) or [s]

    def _plain(self, body: Expr) -> Expr | None:
        """The body without casts that change nothing; None where it is not all computed in one type."""
        dtypes = {compute_dtype_of(self.types[e.tensor].dtype) for e in walk(body) if isinstance(e, Access)}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
            return None
        (one,) = dtypes

        def visit(e: Expr) -> Expr:
            if isinstance(e, Access):
                return e
            e = rebuild(e, visit)
            idle = isinstance(e, Call) and e.function == one and any(isinstance(x, Access) for x in walk(e))
            return e.args[0] if idle and isinstance(e, Call) else e

        return visit(body)

    def _learn_mean(self, s: Statement) -> None:
        match without_casts(s.body):
            case Call("div", (Access(total), Int(n) | Float(n))) if n == self.count and total in self.totals:
                self.means[s.output] = self.totals[total]
            case _:
                pass

    def _deviations(self, s: Statement, body: Expr) -> list[Statement] | None:
        factors = factors_of(body, self.types)
        shared = [f for f in factors if not self.columns & set(index_variables(f.value))]
        moving = [f.value for f in factors if f not in shared]
        below = any(f.divides for f in factors if f not in shared)
        about = [e for e in moving if self._is_deviation(e)]
        weights = [e for e in moving if e not in about]
        squares = len(about) == 2 and about[0] == about[1] and not weights
        if below or not (squares or (len(about) == 1 and weights)):
            return None
        deviation = about[0]
        made: list[Statement] = []
        assert isinstance(deviation, Call)
        x, mean = deviation.args
        if self.members & (tensors_read(x) | {n for w in weights for n in tensors_read(w)}):
            return None

        def total(key: str, value: Expr) -> Expr:
            if (key, value) not in self._made:
                name = f"{s.output}.{key}"
                self.types[name] = replace(self.types[s.output], dtype=compute_dtype_of(self.types[s.output].dtype))
                self._made[key, value] = Access(name, s.index or ())
                made.append(replace(s, output=name, body=value))
                if key == "head":
                    self.heads.add(name)
            return self._made[key, value]

        head = total("head", x * Float(1 / self.first))
        away = x - head
        if squares:
            sums = total("first", away), total("second", away * away)
            result = squares_about(mean, head, *sums, self.count)
        else:
            weight = weights[0]
            for w in weights[1:]:
                weight = weight * w
            # a mean that is not finite is at no distance from anything
            result = total("product", weight * away) + (total("weight", weight) * (head - mean) + (mean - mean))
        for f in shared:
            result = Call("div" if f.divides else "mul", (result, f.value))
        return [*made, replace(s, body=result, aggregation="assign")]

    def _is_deviation(self, e: Expr) -> bool:
        match e:
            case Call("sub", (x, Access(mean))):
                return self.means.get(mean) == x
        return False
