"""Which blocks of the walked variable a program visits, and where in them all points are valid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.blocks.builder import INDEX_TYPE, INT64, Builder
from tilec.backends.common.blocks.ir import Value
from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.values import least_value
from tilec.ir.index import Affine, linear
from tilec.ir.program import Call, Expr, Index, accesses_in, index_variables
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic
from tilec.lattice.conditions import is_affine
from tilec.lattice.spans import WIDEST


@dataclass(frozen=True)
class Piece:
    """Blocks from `start` to below `stop`; `masked`: not all of their points are valid."""

    start: Value
    stop: Value
    masked: bool


@dataclass(frozen=True)
class Range:
    """Of the variable: `first` and `last` bound it where a point is valid for some row of the block; from `full_first`
    to `full_last` all points are, for all rows."""

    first: Value
    last: Value
    full_first: Value | None
    full_last: Value | None


def is_falling(bounds: Collection[Affine], looped: str, blocked: Sequence[str]) -> bool:
    """Whether programs of later blocks have more to walk."""
    return _grows(bounds, looped, blocked, -1) and not _grows(bounds, looped, blocked, 1)


def is_rising(bounds: Collection[Affine], looped: str, blocked: Sequence[str]) -> bool:
    """Whether programs of earlier blocks have more to walk."""
    return _grows(bounds, looped, blocked, 1) and not _grows(bounds, looped, blocked, -1)


def walks_values(kernel: ChainKernel) -> bool:
    """Whether bodies read values of the points that are walked."""
    read = [a for r in kernel.targets for f in r.inner for a in accesses_in(f.value) if a.tensor not in kernel.inners]
    return any(kernel.looped in index_variables(a) for a in read)


def cut_at_both_ends(kernel: ChainKernel) -> bool:
    """Whether bounds cut the walk short at both ends."""
    looped = kernel.looped or ""
    return len({c > 0 for r in kernel.targets for f in r.target.bounds if (c := f.coefficient(looped))}) > 1


def is_whole_window(kernel: ChainKernel, step: int) -> bool:
    """The same where nothing but bounds does, and blocks of so many are whole: many need masks, and one loop serves
    these and others."""
    conditions = any(r.target.conditions for r in kernel.targets)
    return cut_at_both_ends(kernel) and not conditions and kernel.extent[kernel.looped or ""] % step == 0


def _grows(bounds: Collection[Affine], looped: str, blocked: Sequence[str], sign: int) -> bool:
    """Whether the walk's end (-1) or its beginning (1) moves on with the block."""
    cut = [b for b in bounds if b.coefficient(looped) * sign > 0]
    return any(b.coefficient(v) * sign < 0 for b in cut for v in blocked)


def index_dtype_of(form: Affine, extent: Mapping[str, int]) -> str:
    """The dtype in which a form of index variables, each from 0 to below its extent, is computed."""
    if form.bare is not None or not form.terms and not form.constant:
        return INDEX_TYPE
    reach = abs(as_int(form.constant))
    reach += sum(abs(as_int(form.coefficient(v))) * extent[v] for v in form.variables())
    return INDEX_TYPE if reach < WIDEST else INT64


def limits(
    b: Builder,
    bounds: Collection[Affine],
    looped: str,
    ends: Mapping[str, tuple[Value, Value]],
    extent: Value,
    extents: Mapping[str, int],
) -> Range:
    """`ends`: the least and the greatest value of every other variable in this program."""
    first, last = b.number(0), extent - 1

    def place(v: Value) -> Value:
        """As a place, or a neighbour of the first or the last one."""
        if v.type.dtype == INDEX_TYPE:
            return v
        return b.cast(b.apply("larger", b.apply("smaller", v, b.cast(extent, INT64)), b.number(-1, INT64)), INDEX_TYPE)

    full_first: Value | None = None
    full_last: Value | None = None
    for form in bounds:
        c = as_int(form.coefficient(looped))
        if not c:
            continue
        dtype = index_dtype_of(form, extents)
        low = high = b.number(as_int(form.constant), dtype)
        for atom, k in form.terms:
            assert isinstance(atom, Index)
            if atom.name == looped:
                continue
            n = b.number(as_int(k), dtype)
            below, above = (b.cast(x, dtype) for x in (ends[atom.name] if k > 0 else ends[atom.name][::-1]))
            low = low + below * n
            high = high + above * n
        if c > 0:  # c * v >= -rest
            first = b.apply("larger", first, place(_up(b, high, c)))
            least = place(_up(b, low, c))
            full_first = least if full_first is None else b.apply("larger", full_first, least)
        else:  # -c * v <= rest
            last = b.apply("smaller", last, place(_down(b, high, -c)))
            most = place(_down(b, low, -c))
            full_last = most if full_last is None else b.apply("smaller", full_last, most)
    return Range(first, last, full_first, full_last)


def within_ends(b: Builder, found: Range, told: Collection[tuple[bool, Value]]) -> Range:
    """The range within ends that data tell: whether each is a last one, and the end."""
    for is_last, end in told:
        if is_last:
            found = replace(found, last=b.apply("smaller", found.last, end))
        else:
            found = replace(found, first=b.apply("larger", found.first, end))
    return found


def _up(b: Builder, rest: Value, c: int) -> Value:
    """The least v of at least 0 with c * v >= -rest."""
    least = b.apply("larger", 0 - rest, b.number(0, rest.type.dtype))
    return (least + (c - 1)) // c if c > 1 else least


def _down(b: Builder, rest: Value, c: int) -> Value:
    """The greatest v with c * v <= rest, or one below 0."""
    if c == 1:
        return rest
    return b.apply("larger", rest + c, b.number(0, rest.type.dtype)) // c - 1


def pieces(
    b: Builder,
    found: Range,
    step: int,
    extent: Value,
    whole: bool,
    residual: bool,
    told: bool = False,
    masked_first: bool = False,
) -> list[Piece]:
    """The walk in at most three pieces: blocks of valid points alone between blocks that need masks. `whole`: the last
    block of the extent is a whole one; `told`: it may end before blocks of valid points do. `masked_first`: where rows
    end it (causal), the last blocks come first, and one of them at least is taken for one that needs masks."""
    start = found.first // step * step
    stop = b.apply("larger", found.last + 1, b.number(0))
    if residual:
        return [Piece(start, stop, True)]
    made: list[Piece] = []
    middle = start
    if found.full_first is not None:
        middle = b.apply("larger", _rounded_up(found.full_first, step), start)
        middle = b.apply("smaller", middle, _rounded_up(stop, step))
        made.append(Piece(start, b.apply("smaller", middle, stop), True))
    if found.full_last is None and whole:
        return [*made, Piece(middle, stop, False)]
    full = extent // step * step
    if found.full_last is not None:
        past = b.apply("larger", found.full_last + 1, b.number(0))
        full = b.apply("smaller", full, past // step * step)
    full = b.apply("smaller", full, _rounded_up(stop, step)) if told else full
    if masked_first and found.full_last is not None and not made:
        full = b.apply("smaller", full, (stop - 1) // step * step)
        full = b.apply("larger", full, middle)
        return [Piece(full, stop, True), Piece(middle, full, False)]
    full = b.apply("larger", full, middle)
    return [*made, Piece(middle, full, False), Piece(full, stop, True)]


def _rounded_up(v: Value, step: int) -> Value:
    return (v + (step - 1)) // step * step


def have_points(bounds: Collection[Affine], extent: Mapping[str, int], sides: Collection[str]) -> bool:
    """Whether bounds leave each row and each column a point. Of one place they are intervals, which meet where any two
    of them and the extent do."""
    if any(is_symbolic(extent[v]) for f in bounds for v in f.variables()):
        return False

    for v in sides:
        forms = [Affine.variable(v), Affine.of([(Index(v), -1)], extent[v] - 1), *bounds]
        up, down, other = ([f for f in forms if f.coefficient(v) == c] for c in (1, -1, 0))
        whole = len(up) + len(down) + len(other) == len(forms)
        if not whole or any(least_value(f, extent) < 0 for f in other):
            return False
        if any(least_value(f + g, extent) < 0 for f in up for g in down):
            return False
    return True


def holds_everywhere(e: Expr, extent: Mapping[str, int], is_whole: Callable[[Expr], bool]) -> bool:
    """Whether a condition plainly holds for all values of index variables below their extents: comparisons of forms in
    these, and of any whole number with itself."""
    match e:
        case Call("and", args):
            return all(holds_everywhere(x, extent, is_whole) for x in args)
        case Call("or", args):
            return any(holds_everywhere(x, extent, is_whole) for x in args)
        case Call("lt" | "gt" | "le" | "ge" as order, (x, y)) if is_affine(x) and is_affine(y):
            above = linear(x) - linear(y) if order in ("gt", "ge") else linear(y) - linear(x)
            return least_value(above, extent) >= (order in ("lt", "gt"))
        case Call("eq" | "le" | "ge", (x, y)):
            return x == y and is_whole(x)
    return False


def is_moved(e: Expr, v: str) -> bool:
    """Whether an expression is a variable with something added that does not depend on it."""
    match e:
        case Index(name):
            return name == v
        case Call("add" | "sub", args):
            own = [a for a in args if v in index_variables(a)]
            return len(own) == 1 and is_moved(own[0], v)
    return False


@dataclass(frozen=True)
class Round:
    """The values of a variable from `first` to below `stop`, for each of which blocks are walked."""

    variable: str
    first: Value
    stop: Value
    step: int


def rounds_of_blocks(
    b: Builder,
    piece: Piece,
    step: int,
    rounds: Sequence[Round],
    state: tuple[Value, ...],
    body: Callable[[Value, dict[str, Value], tuple[Value, ...]], Sequence[Value]],
    hint: str,
) -> tuple[Value, ...]:
    """One loop over the blocks of a piece, for all values of other variables, the last one's inside: `body` is given
    the block's first place, their values and what is carried."""
    if not rounds:
        return b.loop(piece.start, piece.stop, step, state, lambda n, carried: body(n, {}, carried), hint=hint)
    number = b.apply("larger", _steps(piece.start, piece.stop, step), b.number(0))
    for r in rounds:
        number = number * _steps(r.first, r.stop, r.step)

    def go(_: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        count, *values = carried[: len(rounds) + 1]
        following = count + step
        past = following >= piece.stop
        following = b.apply("select", past, piece.start, following)
        places: list[Value] = []
        for r, v in zip(reversed(rounds), reversed(values), strict=True):
            moved = b.apply("select", past, v + r.step, v)
            past = moved >= r.stop
            places.insert(0, b.apply("select", past, r.first, moved))
        own = {r.variable: v for r, v in zip(rounds, values, strict=True)}
        return [following, *places, *body(count, own, carried[len(rounds) + 1 :])]

    begun = (b.apply("add", piece.start, b.number(0), hint=hint), *(r.first for r in rounds))
    return b.loop(b.number(0), number, 1, (*begun, *state), go, hint="round")[len(begun) :]


def _steps(start: Value, stop: Value, step: int) -> Value:
    """How many lie between."""
    return (stop - start + (step - 1)) // step
