"""The points of aggregations, and index arithmetic at them: which candidates there are, and which of them count."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilec.errors import RankMistake, SizeMistake, TypeMistake, UnboundIndex
from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.oracle.branches import Accesses, BranchChoice, branch_accesses, branch_paths, merged_choices
from tilec.ir.oracle.memory import GIVE_RANK, Memory, PointValue, require_integers
from tilec.ir.oracle.points import Columns, LinearForm, enumerate_points, form, take
from tilec.ir.program import Access, Call, Constraint, Expr, Int, Name, Pad, accesses_in, index_variables, walk
from tilec.ir.types import is_integer

# of truth values these take 0 and 1 in a size
INTEGER_ONLY = ("neg", "sub", "mod", "abs", "shl", "shr", "shape", "same")


def _literal(value: int) -> Expr:
    return Call("ne", (Int(int(value)), Int(0))) if isinstance(value, bool) else Int(value)


@dataclass
class Site:
    """An aggregation's place in the program: what its points are. Its free variables belong to `outer`."""

    variables: tuple[str, ...]
    free: tuple[str, ...]
    forms: list[LinearForm]
    outer: Site | None
    inner: dict[int, Site] = field(default_factory=dict)
    accesses: Accesses = field(default_factory=Accesses)  # by conditionals: what stands in branches
    box: dict[str, tuple[int, int]] | None = None  # exact, once asked for

    def __post_init__(self) -> None:
        self.affine = [f for f in self.forms if f.affine]
        self.quasi = [f for f in self.forms if not f.affine and not f.dynamic]
        self.dynamic = [f for f in self.forms if f.dynamic]


@dataclass
class Points:
    """Points at which expressions are evaluated, all at once. `whole`: an elementwise statement, over whole tensors;
    `shape`: that of its result, once it is known. `zeroed`: elements outside are 0."""

    columns: Columns
    site: Site
    whole: bool = False
    shape: tuple[int, ...] | None = None
    zeroed: bool = False
    known: dict[int, PointValue] = field(default_factory=dict)


def row_major_position(values: Sequence, shape: Sequence[int]) -> np.ndarray:
    position: np.ndarray | int = 0
    for value, size in zip(values, shape, strict=True):
        position = position * size + value
    return np.asarray(position)


class Sites(Memory):
    """Enumerates the points at which expressions count."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[int, tuple[Expr, list[LinearForm]]] = {}  # by identity of the access, which is kept alive
        self.own: str | None = None  # the output of the recurrence at hand, and what it holds outside
        self.initial: tuple[tuple[str, ...], Expr] | None = None

    def size(self, e: Expr) -> int:
        """The integer that a size expression stands for, or the truth value, which counts as 0 or 1; division
        truncates, operation by operation."""
        match e:
            case Int(value):
                return value
            case Name(name):
                if name in self.sizes:
                    return self.sizes[name]
                t = self.tensor(name, e.span)
                if t.data.ndim or not (is_integer(t.dtype) or t.dtype == "bool" and name not in self.given):
                    raise SizeMistake(f"{name} is no size: it is {t.dtype} of shape {t.data.shape}", e.span)
                return bool(t.data) if t.dtype == "bool" else int(t.data)
            case Call("shl" | "shr", (_, shift)) if self.size(shift) < 0:
                raise SizeMistake(f"a shift by {self.size(shift)} bits, which is less than 0", e.span)
            case Call("div" | "mod", (_, divisor)) if self.size(divisor) == 0:
                raise SizeMistake("division by zero in a size", e.span)
            case Call(function, args) if function not in STRUCTURAL + RANDOM:
                if function != "shape":
                    numbers = [int(self.size(a)) if function in INTEGER_ONLY else self.size(a) for a in args]
                    e = replace(e, args=tuple(map(_literal, numbers)))
                result = self.value(e, Points({}, Site((), (), [], None)))
                if np.ndim(result.data) == 0 and result.type.dtype == "bool":
                    return bool(result.data)
                if np.ndim(result.data) == 0 and is_integer(result.type.dtype):
                    return int(result.data)
        raise SizeMistake("a size is an integer, made of dimensions, integers and integer scalars", e.span)

    # points

    def site(
        self,
        body: Expr,
        guard: Expr | None,
        constraints: tuple[Constraint, ...],
        index,
        outer=None,
        bound=None,
        identity: float | None = None,
    ) -> Site:
        """The points of an aggregation over `body`; of a nested one (with `outer`), those of the variables `bound`.
        Points at which the body is the literal `identity` may be left out."""
        index = list(index)
        roots = [e for e, _ in index] + ([] if guard is None else [guard]) + [body]
        forms = [form(e, size, self.size) for e, size in index]
        parts = [branch_accesses(root, self.own, identity if root is body else None) for root in roots]
        for part in parts:
            for access in part.accesses:
                forms.extend(self.access_forms(access))
        forms.extend(form(c.expr, self.size(c.bound), self.size) for c in constraints)
        choices = Accesses([], merged_choices([c for part in parts for c in part.choices]))
        present = index_variables(*roots, *(c.expr for c in constraints))
        variables = present if bound is None else bound
        free = tuple(v for v in present if v not in variables)
        return Site(variables, free, list(dict.fromkeys(forms)), outer, accesses=choices)

    def access_forms(self, access: Access) -> list[LinearForm]:
        known = self.forms.get(id(access))
        if known is None:
            shape = self.tensor(access.tensor, access.span).data.shape
            if len(shape) != len(access.index):
                raise RankMistake(
                    f"{access.tensor} has {len(shape)} dimensions; {len(access.index)} indices here",
                    access.span,
                    hint=GIVE_RANK,
                )
            forms = [form(e, n, self.size) for e, n in zip(access.index, shape, strict=True)]
            known = self.forms[id(access)] = (access, forms)
        return known[1]

    def candidates(self, site: Site, start: Columns, data: bool = True) -> Iterator[Columns]:
        """Points valid by what is known without looking at elements: indices and constraints without gathers. Where
        there are conditionals, each access in a branch and each condition counts, unless `data` is false."""
        for way, columns in self.enclosed(site, start):
            for f in site.quasi:
                columns = take(columns, self.form_value(f, Points(columns, site))[1])
            for choice, sense in way:
                if data or not self.reads_data(choice):
                    holds = self.value(choice.condition, Points(columns, site)).data != 0
                    columns = take(columns, np.broadcast_to(holds == sense, columns[""].shape))
            if site.accesses.choices:
                at = Points(columns, site)
                columns = take(columns, np.broadcast_to(self.sound(site.accesses, at, data), columns[""].shape))
            yield columns

    def enclosed(self, site: Site, start: Columns) -> Iterator[tuple[tuple[tuple[BranchChoice, bool], ...], Columns]]:
        """Points that include the valid ones: all at once if what stands in no branch bounds them, otherwise those of
        each way through the conditionals, with the branches taken."""
        try:
            for columns in enumerate_points(site.affine, site.variables, start):
                yield (), columns
            return
        except UnboundIndex:
            if not site.accesses.choices:
                raise
        for way in branch_paths(site.accesses):
            forms = [f for access in way.accesses for f in self.access_forms(access) if f.affine]
            try:
                for columns in enumerate_points([*site.affine, *forms], site.variables, start):
                    yield way.taken, columns
            except UnboundIndex:
                if not way.idle:
                    raise

    def sound(self, part: Accesses, at: Points, data: bool = True) -> np.ndarray | bool:
        """Where the accesses that the taken branches hold lie inside; without `data`, where some elements allow it."""
        good: np.ndarray | bool = True
        for access in part.accesses:
            for f in self.access_forms(access):
                if data or not f.dynamic:
                    good = good & self.form_value(f, at)[1]
        for choice in part.choices:
            yes, no = self.sound(choice.yes, at, data), self.sound(choice.no, at, data)
            if self.reads_data(choice) and not data:
                good = good & (np.asarray(yes) | no)
            else:
                good = good & np.where(self.value(choice.condition, at).data != 0, yes, no)
        return good

    def reads_data(self, choice: BranchChoice) -> bool:
        """Whether the condition reads a tensor; in an elementwise statement by its name alone."""
        names = [e.name for e in walk(choice.condition) if isinstance(e, Name) and e.name not in self.sizes]
        return choice.data or any(self.tensor(name, choice.condition.span).data.ndim for name in names)

    def restrict(self, site: Site, guard: Expr | None, columns: Columns) -> Columns:
        """Those of the candidates at which the gathers and the guard hold as well."""
        for f in site.dynamic:
            columns = take(columns, self.form_value(f, Points(columns, site))[1])
        if guard is not None:
            condition = self.value(guard, Points(columns, site)).data != 0
            columns = take(columns, condition if np.ndim(condition) else bool(condition))
        return columns

    def places(self, place: Sequence[LinearForm], sizes: Sequence[int], columns: Columns, site: Site) -> np.ndarray:
        at = Points(columns, site)
        position = row_major_position([self.form_value(f, at)[0] for f in place], sizes)
        return np.broadcast_to(position, columns[""].shape)

    def bounds(self, site: Site) -> dict[str, tuple[int, int]] | None:
        """Exact range of each variable over the valid points, elements and guards aside; None if there are none.

        Free variables of a nested aggregation take every value of their own ranges, as in a statement of its own.
        """
        if site.box is None:
            ranges = {} if site.outer is None else self.bounds(site.outer)
            if ranges is None:
                return None
            affine = list(site.affine)
            for v in site.free:
                low, high = ranges[v]
                affine.append(LinearForm(((v, 1),), -low, 1, high - low + 1))
            variables = (*site.free, *site.variables)
            whole = Site(variables, (), affine + site.quasi, site.outer, site.inner, site.accesses)
            box: dict[str, tuple[int, int]] = {}
            for columns in self.candidates(whole, {"": np.zeros(1, np.int64)}, data=False):
                for v in variables if len(columns[""]) else ():
                    low, high = int(columns[v].min()), int(columns[v].max())
                    a, b = box.get(v, (low, high))
                    box[v] = (min(a, low), max(b, high))
            if variables and not box:
                return None
            site.box = box
        return site.box

    def number(self, site: Site, variables: Sequence[str], columns: Columns) -> np.ndarray:
        """Row-major number of each point in the box of the variables' exact bounds."""
        box = self.bounds(site) or {}
        ranges = [box.get(v, (0, 0)) for v in variables]
        position = row_major_position(
            [columns[v] - low for v, (low, _) in zip(variables, ranges, strict=True)],
            [high - low + 1 for low, high in ranges],
        )
        return np.broadcast_to(position, columns[""].shape)

    # index arithmetic

    def form_value(self, f: LinearForm, at: Points) -> tuple[np.ndarray | int, np.ndarray | bool]:
        """The form's integers, and where they are integers within its extent (and its atoms are sound)."""
        total: np.ndarray | int = f.constant
        good: np.ndarray | bool = True
        for key, c in f.terms:
            if isinstance(key, str):
                x = at.columns[key]
            else:
                x, sound = self.atom(key, at)
                good = good & sound
            total = total + x * c
        if f.denominator != 1:
            good = good & (total % f.denominator == 0)
            total = total // f.denominator
        if f.extent is not None:
            good = good & (total >= 0) & (total < f.extent)
        return total, good

    def remainder(self, f: LinearForm, n: np.ndarray, at: Points) -> tuple[np.ndarray, np.ndarray]:
        """The form modulo n, of its terms' remainders: the form itself may take more than 64 bits."""
        if f.denominator != 1 or np.any(abs(n) >= 2**31):
            x, good = self.form_value(f, at)
            return np.mod(x, n), np.asarray(good)
        total, sound = np.mod(f.constant, n), np.asarray(True)
        for key, c in f.terms:
            x, good = (at.columns[key], True) if isinstance(key, str) else self.atom(key, at)
            total, sound = np.mod(total + np.mod(c, n) * np.mod(x, n), n), sound & good
        return total, sound

    def atom(self, e: Expr, at: Points) -> tuple[np.ndarray, np.ndarray | bool]:
        match e:
            case Access() if e.tensor != self.own:
                place, good = self.locate(e, at)
                return self.fetch(e, place), good
            case Access() | Pad():
                value = self.value(e, at)
                require_integers(value.type, e.span)
                return value.data, True
            case Call("mod", (a, n)):
                divisor, sound = self.form_value(form(n, None, self.size), at)
                nonzero = np.asarray(divisor) != 0
                remainder, whole = self.remainder(form(a, None, self.size), np.where(nonzero, divisor, 1), at)
                return remainder, whole & sound & nonzero
            case Call("clamp" | "max" | "min" | "abs", args):
                parts = [self.form_value(form(a, None, self.size), at) for a in args]
                x, *rest = (value for value, _ in parts)
                good = True
                for _, sound in parts:
                    good = good & sound
                match e.function:
                    case "abs":
                        return np.abs(x), good
                    case "max":
                        return np.maximum(x, rest[0]), good
                    case "min":
                        return np.minimum(x, rest[0]), good
                    case "clamp":
                        return np.minimum(np.maximum(x, rest[0]), rest[1]), good
        raise TypeMistake("an index holds integers", e.span)

    def locate(self, access: Access, at: Points) -> tuple[tuple, np.ndarray | bool]:
        """Coordinates of an access, 0 where it lies outside, and where it lies inside."""
        parts = [self.form_value(f, at) for f in self.access_forms(access)]
        good: np.ndarray | bool = True
        for _, inside in parts:
            good = good & inside
        if np.size(good) and np.all(good):
            return tuple(value for value, _ in parts), good
        return tuple(np.where(good, value, 0) for value, _ in parts), good

    def fetch(self, access: Access, place: tuple) -> np.ndarray:
        tensor = self.tensor(access.tensor, access.span)
        if any(accesses_in(*access.index)):
            for i in access.index:
                self.check_gathers(i)
        if tensor.data.size == 0:  # nothing to read: no coordinates, or all of them outside
            return np.zeros(np.broadcast_shapes(*(np.shape(p) for p in place)), tensor.data.dtype)
        return tensor.data[place]

    def check_gathers(self, e: Expr) -> None:
        for a in walk(e):
            if isinstance(a, Access):
                require_integers(self.tensor(a.tensor, a.span).element(), a.span)

    @abstractmethod
    def value(self, e: Expr, at: Points) -> PointValue:
        """Elements of an expression at the points, or of whole tensors in an elementwise statement."""
