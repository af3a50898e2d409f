"""What a block of points adds to each target: greatest values, sums relative to them, mixtures, numbers of points.

Where a target takes the exponential of what its kernel has the greatest value of, sums are kept relative to the
greatest value so far and rescaled when it grows (online softmax: Milakov and Gimelshein 2018; with products: Rabe and
Staats 2021, Dao et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.common.blocks.builder import INDEX_TYPE, INT64
from tilec.backends.common.blocks.ir import MIRRORED, Value
from tilec.backends.common.chains.chain import ChainKernel, Reduced, Target
from tilec.backends.common.chains.codegen.emit import LOG2E, Emitter
from tilec.backends.common.chains.codegen.places import Places, Tiling, tensors_of
from tilec.backends.common.chains.codegen.visits import Visits
from tilec.backends.common.chains.codegen.walk import have_points, holds_everywhere, is_moved, limits
from tilec.backends.common.chains.values import DOT_DTYPES
from tilec.ir.functions import ZERO, operands_of
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Index, Int, accesses_in, index_variables
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import FLOATS, Types, is_integer
from tilec.lattice.conditions import is_affine
from tilec.transforms.util.factors import quotient_of

ORDERED = ("lt", "le", "gt", "ge")
# of a warp; points whose masks have room beside sums; warps of a program whose exponents are masked
THREADS, POINTS_OF_A_THREAD, MOST_WARPS = 32, 32, 4
TAME = ("add", "sub", "mul", "neg", "abs", "max", "min", "tanh", "sigmoid", *FLOATS)  # finite where arguments are


class Accumulation(Places):
    """The lines that add points to what is carried, mask them, and combine what they gave."""

    def __init__(self, kernel: ChainKernel, types: Types, tiling: Tiling, visits: Visits | None):
        super().__init__(kernel, types, tiling)
        self.visits = visits
        self.test: Value | None = None  # whether masks are needed in a round of a walk of masked blocks and others

    def _counts(self, t: Target) -> bool:
        """Whether the target is the number of points at which something holds."""
        return self.types[t.output].dtype not in DOT_DTYPES

    def _walked_axes(self, t: Target) -> list[str]:
        """Of what is carried for a target's row: those of the block too where each of its points has its own."""
        looped = [] if self.kernel.looped is None else [self.kernel.looped]
        if self.kernel.summed_side(t) in self.kernel.blocked:
            return looped
        return [*self.kernel.blocked, *(looped if self.kernel.elementwise else [])]

    def _along(self, aggregation: str, x: Value, t: Target, careful: bool = False) -> Value:
        """The aggregation along the block that a target sums over, if it is taken there at once."""
        side = self.kernel.summed_side(t)
        if side is None or self.kernel.elementwise:
            return x
        return self.b.reduce(aggregation, side, x, careful=careful)

    def _may_be_empty(self, r: Reduced) -> bool:
        """Whether an element without a point must be told apart from what factors outside of the sum make of zero."""
        if not (r.target.bounds or r.target.conditions) or r.target.aggregation != "sum" or self.kernel.looped is None:
            return False
        rest = any(index_variables(f.value) or tensors_of(f.value) for f in r.outer)
        rest = rest or (r.anchor is not None and self._of(r.anchor).target.aggregation == "logsumexp")
        return rest and not self._has_a_point(r.target)

    def _has_a_point(self, t: Target) -> bool:
        """Whether it is plain that each row has a point: the first place of the walk or the last one, or that of the
        row's own number, which is in its own document."""
        side, kernel = self.kernel.summed_side(t), self.kernel
        if side is None or kernel.walked or any(is_symbolic(n) or n < 1 for n in self.extent.values()):
            return False
        rows = [v for v in kernel.blocked if v != side and self.extent[v] <= self.extent[side]]
        places = [Affine.of((), k) for k in (0, self.extent[side] - 1)] + [Affine.variable(v) for v in rows]
        conditions = [*(Call("ge", (f.to_expr(), Int(0))) for f in t.bounds), *t.conditions]

        def is_whole(e: Expr) -> bool:
            return is_integer(expression_type(e, self.types).dtype)

        def hold(place: Affine) -> bool:
            at = (replace_indices(c, {side: place}) for c in conditions)
            return all(holds_everywhere(c, self.extent, is_whole) for c in at)

        return any(map(hold, places))

    def _needs_seen(self, r: Reduced) -> bool:
        looped = self.kernel.summed_side(r.target)
        simple = not r.target.conditions and all(
            looped is not None and abs(f.coefficient(looped)) <= 1 for f in r.target.bounds
        )
        return self._may_be_empty(r) and not (simple and not self.kernel.walked)

    def _of(self, output: str) -> Reduced:
        return next(r for r in self.kernel.targets if r.target.output == output)

    def _full(self, x: Value) -> Value:
        """The value with the axes of the matrix."""
        axes = [a for a in (*self.kernel.blocked, self.kernel.looped) if a is not None]
        return x if set(axes) <= set(x.type.axes) else x + self.b.fill(axes, 0.0)

    def _mask(self, t: Target, at: Emitter, masked: bool) -> Value | None:
        """Where points are valid; None where all are."""
        condition: Value | None = None
        for f in self._open_bounds(t, masked):
            condition = at.both(condition, at.not_negative(f))
        for c in self._open_conditions(t, masked):
            condition = at.both(condition, at.condition(c))
        side = self.kernel.summed_side(t)
        if side is not None and masked and self.extent[side] % self.axes[side]:
            condition = at.both(condition, at.positions[side] < self.size(side))
        return condition

    def _masked(self, mask: Value | None, x: Value, other: Value) -> Value:
        """The value where the mask holds, which may be asked for in some rounds alone."""
        if mask is None:
            return x
        if self.test is None:
            return self.b.apply("select", mask, x, other)
        return self.b.mask_where(self.test, mask, x, other)

    def _open_bounds(self, t: Target, masked: bool) -> list[Affine]:
        """The bounds that may fail in a block."""
        return [f for f in t.bounds if masked or f not in self.bounds]

    def _open_conditions(self, t: Target, masked: bool) -> list[Expr]:
        """The conditions that may fail in a block."""
        known = () if masked or self.visits is None else self.visits.conditions
        return [c for c in t.conditions if c not in known]

    def _seen(self, t: Target, at: Emitter, masked: bool) -> Value | None:
        """The places along the walk that some row of the block may see, as those below a length: memory beyond it may
        hold anything, and a weight of 0 would make NaN of an infinity."""
        b, looped = self.b, self.kernel.summed_side(t)
        seen: Value | None = None
        for f in (f for f in self._open_bounds(t, masked) if self._leaves_columns(f, looped)):
            own = {v: f.coefficient(v) for v in f.variables()}
            ends = {v: self.ends[v][k > 0] for v, k in own.items() if v != looped}
            rows = self.emitter({**at.positions, **ends}, masked)
            seen = at.both(seen, rows.not_negative(f))
        for c in (x for whole in self._open_conditions(t, masked) for x in operands_of("and", whole)):
            here = at.condition(c)
            if set(here.type.axes) <= {looped}:
                seen = at.both(seen, here)
            elif isinstance(c, Call) and c.function in ORDERED and looped is not None:
                values = at.alike(c.args)
                for k, order in enumerate((c.function, MIRRORED[c.function])):
                    place, limit = values[k], values[1 - k]
                    along = any(looped in index_variables(a) for a in accesses_in(c.args[k]))
                    if place.type.axes == (looped,) and looped not in limit.type.axes and not along:
                        limit = self._limit(c.args[1 - k], limit, at, masked, greatest=order in ("lt", "le"))
                        seen = at.both(seen, b.apply(order, place, limit))
        return seen

    def _told_ends(self, at: Emitter) -> list[tuple[bool, Value]]:
        """Ends of a program's walk that comparisons with integers of its rows tell (`j < Length[b]`): whether each is
        the last place or the first, and the place."""
        b, targets = self.b, [r.target for r in self.kernel.targets]
        found: list[tuple[bool, Value]] = []
        for c in targets[0].conditions:
            if not isinstance(c, Call) or c.function not in ORDERED or not all(c in t.conditions for t in targets):
                continue
            for (place, limit), order in ((c.args, c.function), (c.args[::-1], MIRRORED[c.function])):
                if self._tells_an_end(place, limit):
                    is_last = order in ("lt", "le")
                    end = b.cast(self._limit(limit, at.value(limit), at, False, greatest=is_last), INT64)
                    moved = as_int(linear(place).constant) + {"lt": 1, "gt": -1}.get(order, 0)
                    end = end - moved
                    end = b.apply("smaller", end, b.cast(self.size(self.kernel.looped or ""), INT64))
                    found.append((is_last, b.cast(b.apply("larger", end, b.number(-1, INT64)), INDEX_TYPE)))
        return found

    def _tells_an_end(self, place: Expr, limit: Expr) -> bool:
        """Whether a value is a place along the walk, and the other one integers that are the same all along it:
        elements, or arithmetic of these that has room in its type."""
        looped = self.kernel.looped or ""
        if not is_affine(place) or linear(place).variables() != (looped,) or linear(place).coefficient(looped) != 1:
            return False
        dtype = expression_type(limit, self.types).dtype
        fits = isinstance(limit, Access) or dtype == INT64
        return is_integer(dtype) and fits and looped not in index_variables(limit) and bool(tensors_of(limit))

    def _leaves_columns(self, f: Affine, looped: str | None) -> bool:
        """Whether a bound keeps all rows there are from some places along the walk."""
        last = {v: self.extent[v] - 1 for v in f.variables()}
        if looped is None or not f.coefficient(looped) or any(map(is_symbolic, last.values())):
            return False
        own = {v: as_int(f.coefficient(v)) for v in last}
        greatest = as_int(f.constant) + sum(max(k, 0) * last[v] for v, k in own.items() if v != looped)
        return greatest + min(own[looped], 0) * last[looped] < 0

    def _limit(self, e: Expr, rows: Value, at: Emitter, masked: bool, greatest: bool) -> Value:
        """The greatest value of an expression over the rows of the block, or the least; `rows`: its values."""
        b = self.b
        own = [v for v in self.kernel.blocked if v in index_variables(e)]
        extreme = "larger" if greatest else "smaller"
        if len(own) == 1 and is_moved(e, own[0]):
            ends = (self.emitter({**at.positions, own[0]: x}, masked) for x in self.ends[own[0]])
            first, last = (b.cast(values.value(e), rows.type.dtype) for values in ends)
            return b.apply(extreme, first, last)
        inside = at._within(tuple(own))
        if inside is not None:
            begin = self.emitter({**at.positions, **{v: self.ends[v][0] for v in own}}, masked)
            rows = b.apply("select", inside, rows, b.cast(begin.value(e), rows.type.dtype))
        for axis in rows.type.axes:
            rows = b.reduce("max" if greatest else "min", axis, rows)
        return rows

    def _statistic(self, t: Target, at: Emitter, mask: Value | None, before: Sequence[Value | None]):
        """The greatest value so far, the sum of exponentials relative to it, these, and what older sums are to be
        multiplied by, if there are any. Of a logsumexp the values are multiples of log 2."""
        b = self.b
        scaled = t.aggregation == "logsumexp"
        number, rest = at.parted(t.body) if scaled else (1.0, [])
        later = number > 0 and bool(
            rest
        )  # a positive number leaves the order alone: one product a row, one sum a point
        if scaled:
            x = self._full(at.product(rest) if later else at.scaled(t.body, LOG2E))
        else:
            x = self._full(at.value(t.body, "float32"))
        low, unit = b.number(-math.inf, "float32"), b.number(number * LOG2E, "float32")
        x = self._masked(mask, x, low)
        highest = self._along("max", x, t, careful=not scaled)
        if later:
            highest, x = highest * unit, x * unit
        earlier = before[0]
        top = highest if earlier is None else b.apply("larger" if scaled else "max", earlier, highest, hint="top")
        finite = b.apply("select", top.equals(low), b.number(0.0, "float32"), top)
        below = [v - finite for v in (x, earlier) if v is not None]
        below = below if scaled else [LOG2E * v for v in below]
        p, *ratio = (b.apply("exp2", v, hint=hint) for v, hint in zip(below, "pr", strict=False))
        r = ratio[0] if ratio else None
        if not scaled:
            return top, None, p, r
        older = None if r is None or before[1] is None else before[1] * r
        total = self._along("sum", p, t)
        return top, total if older is None else b.apply("add", older, total, hint="total"), p, r

    def _sum(
        self,
        reduced: Reduced,
        at: Emitter,
        mask: Value | None,
        before: Value | None,
        exponentials: Mapping[str, tuple[Value, Value | None]],
        masked: bool,
    ) -> Value:
        b, t = self.b, reduced.target
        looped = self.kernel.summed_side(t)
        factors = list(reduced.inner)
        weights: Value | None = None
        if reduced.anchor is not None:
            p, r = exponentials[reduced.anchor]
            rest = [f for f in factors if reduced.anchor not in tensors_of(f.value)]
            weights = p
            if rest:
                weights = at.product(rest) * p
            before = before if reduced.joined else None if before is None or r is None else before * r
            selected = bool(rest) or self._of(reduced.anchor).target.points != t.points
        elif mask is not None and self._masks_exponents(quotient_of(factors), t) and self._seen(t, at, masked) is None:
            weights, selected = self._masked_exponentials(at, mask, masked).product(factors), False
        else:
            weights = at.product(factors)
            selected = True
        if mask is not None and selected:
            weights = weights if self.test is None else self._full(weights)
            weights = self._masked(mask, weights, b.number(0.0, "float32"))
        weights = self._full(weights)
        if t.feature is not None and reduced.unrolled is None:
            mixed = quotient_of(reduced.feature)
            dtype = reduced.operand or "float32"
            operand = self.operand(mixed, dtype, at, looped or "")
            seen = self._seen(t, at, masked)
            if seen is not None:
                operand = b.apply("select", seen, operand, b.number(0.0, operand.type.dtype))
            return self.product(looped or "", b.cast(weights, dtype), operand, before)
        total = self._along("sum", weights, t)
        return total if before is None else before + total

    def _masked_exponentials(self, at: Emitter, mask: Value, masked: bool) -> Emitter:
        """Values with exponentials that are 0 where points do not count: one mask serves all sums of a block, and of
        what is 0 in float32 a pair is rounded at once."""
        low = self.b.number(-math.inf, "float32")

        def exponent(x: Value) -> Value:
            return self._masked(mask, x, low) if set(mask.type.axes) <= set(x.type.axes) else x

        return self._emitter(at.positions, masked, exponent)

    def _masks_exponents(self, e: Expr, t: Target) -> bool:
        """Whether exponents are masked and not what is made of them: in loops of masked blocks alone. Of more points,
        all masks at a time would take the registers that sums need; more warps wait for them. A row or column without a
        point may hold anything, and its statistics infinities."""
        points = math.prod(self.axes[v] for v in (*self.kernel.blocked, self.kernel.looped or self.kernel.blocked[0]))
        few = points <= POINTS_OF_A_THREAD * THREADS * self.tiling.warps and self.tiling.warps <= MOST_WARPS
        if self.test is not None or not few or t.conditions:
            return False
        return have_points(t.bounds, self.extent, (t.row, t.column)) and self._vanishes(e, t)

    def _vanishes(self, e: Expr, t: Target) -> bool:
        """Whether a value is 0 where exponentials of each point are, as far as what it is made of is finite."""
        match e:
            case Call("exp", (x,)):
                return {t.row, t.column} <= {*index_variables(x)}
            case Call("mul", (x, y)):
                return any(self._vanishes(a, t) and self._is_tame(b, t) for a, b in ((x, y), (y, x)))
            case Call("add" | "sub", (x, y)):
                return self._vanishes(x, t) and self._vanishes(y, t)
            case Call("select", (_, x, y)):
                return all(y == ZERO or self._vanishes(y, t) for y in (x, y))
            case Call("neg" | "float32", (x,)):
                return self._vanishes(x, t)
        return False

    def _is_tame(self, e: Expr, t: Target) -> bool:
        """Whether a value is finite as far as what it is made of is: products and elements of a row or a column, which
        count for other points too; no element of a point by itself."""
        match e:
            case Int() | Float() | Index():
                return True
            case Access(name):
                return name in self.kernel.inners or not {t.row, t.column} <= {*index_variables(e)}
            case Call("select", (_, x, y)):
                return self._is_tame(x, t) and self._is_tame(y, t)
            case Call(f, args):
                return f in TAME and all(self._is_tame(x, t) for x in args) or self._vanishes(e, t)
        return False

    def _count(self, t: Target, at: Emitter, mask: Value | None, before: Value | None) -> Value:
        b = self.b
        condition = at.condition(t.body)
        here = b.cast(condition if mask is None else mask & condition, INDEX_TYPE)
        axes = [a for a in (*self.kernel.blocked, self.kernel.looped) if a is not None]
        here = here if set(axes) <= set(here.type.axes) else here + b.fill(axes, 0, INDEX_TYPE)
        here = self._along("sum", here, t)
        return here if before is None else before + here

    def _empty(self, t: Target, at: Emitter, state: Sequence[Value]) -> Value:
        """Where no point is valid."""
        b, looped = self.b, self.kernel.summed_side(t)
        assert looped is not None
        if t.points in self.seen:
            return state[self.seen[t.points]].equals(0)
        ends = {v: (x, x) for v, x in at.positions.items()}
        found = limits(b, t.bounds, looped, ends, self.size(looped), self.extent)
        condition = found.last < found.first
        for f in t.bounds:
            if not f.coefficient(looped):
                condition = condition | (at.form(f) < 0)
        return condition

    def _holds_for_rows(self, t: Target, at: Emitter) -> Value | None:
        """Where conditions hold that do not ask for the place along the walk, if a product adds up points: weights of 0
        would make NaN of what is infinite."""
        holds: Value | None = None
        for c in (x for whole in t.conditions for x in operands_of("and", whole)):
            if t.feature is not None and self.kernel.summed_side(t) not in index_variables(c):
                holds = at.both(holds, at.condition(c))
        return holds

    def _combined(self, state: Sequence[Value], places: Mapping[str, tuple[int, ...]]) -> list[Value]:
        """What the points of a block have, as values of its rows: sums relative to a greatest value are rescaled to the
        row's."""
        b, looped = self.b, self.kernel.looped
        if looped is None or not self.kernel.elementwise:
            return list(state)
        found = list(state)
        scale: dict[str, Value] = {}
        anchors = {r.anchor for r in self.kernel.targets}
        for r in self.kernel.targets:
            t, own = r.target, places[r.target.output]
            scaled = t.aggregation == "logsumexp"
            if t.aggregation == "sum":
                for k in own:
                    x = found[k] if r.anchor is None else found[k] * scale[r.anchor]
                    found[k] = b.reduce("sum", looped, x)
                continue
            tops = found[own[0]]
            top = found[own[0]] = b.reduce("max" if scaled else t.aggregation, looped, tops, careful=not scaled)
            if scaled or t.output in anchors:
                low, zero = b.number(-math.inf, "float32"), b.number(0.0, "float32")
                below = tops - b.apply("select", top.equals(low), zero, top)
                below = below if scaled else LOG2E * below
                scale[t.output] = b.apply("exp2", below, hint="scale")
            if scaled:
                found[own[1]] = b.reduce("sum", looped, found[own[1]] * scale[t.output])
        for place in self.seen.values():
            found[place] = b.reduce("max", looped, found[place])
        return found
