"""Reading tensors over a box of index variables: views where every index is affine and inside, else index tensors.

A frame is one evaluation of a statement over a box. Its dimensions are the box's variables in a given order; a tensor
that does not depend on a variable has size 1 there. `prologue` runs once, `lines` runs in each block of the loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.common.code import FreshNames, literal, part_text, permuted, slice_text, tuple_text
from tilec.backends.common.domain import Condition, Domain, access_conditions, all_conditions, free, may_wrap, row_major
from tilec.backends.torch.expr.lookups import by_axes, whole_rows
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Pad, accesses_in, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import Types, is_floating

_Box = tuple[tuple[int, ...], tuple[int, ...]]  # the first and the last index of each axis
PADDING_LIMIT = 2  # a padded copy may be this many times the tensor, plus PADDING_SLACK elements
PADDING_SLACK = 2**14


class TensorFrame:
    def __init__(
        self,
        domain: Domain,
        order: Sequence[str],
        types: Types,
        local: Mapping[str, str],
        names: FreshNames,
        loops: Mapping[str, tuple[str, str]] | None = None,
        outside: float = 0,
    ):
        """`local`: Python names of tensors. `loops`: for each variable that a loop walks, its slice's two ends (offsets
        from the variable's low end, as Python text). `outside`: what a padded copy holds outside its tensor."""
        self.domain = domain
        self.order = tuple(order)
        self.types = types
        self.local = local
        self.names = names
        self.loops = dict(loops or {})
        self.outside = outside
        self.prologue: list[str] = []
        self.lines: list[str] = []
        self.temporaries: list[str] = []  # names that lines assign
        self.extended: set[Access] = set()  # those read from a copy that holds `outside` there
        self.views: set[str] = set()  # texts of reads that share memory with the tensor read
        self.backward: dict[str, str] = {}  # those that may be copies, turned round, of which tensors
        self._copies: set[str] = set()
        self._made: dict[object, str] = {}

    # values of index variables and whole accesses

    def iota(self, variable: str) -> str:
        """An int64 tensor that holds the variable's values."""
        key = ("iota", variable)
        if key not in self._made:
            name = self.names.fresh("i_" + variable.rstrip("'"))
            d = self.domain
            position = self.order.index(variable) if variable in self.order else 0  # one value only: anywhere
            place = f"{position}, {len(self.order)}"
            self.prologue.append(f"{name} = rt.iota({d.low[variable]}, {d.extent[variable]}, {place}, device)")
            self._made[key] = self._blocked(name, (variable,))
        return self._made[key]

    def read(self, access: Access) -> tuple[str, frozenset[str]]:
        """Python text of the elements read, and the variables they depend on. Points outside read some element."""
        forms = [self._folded(linear(e)) for e in access.index]
        variables = frozenset(v for f in forms for v in free(f))
        if access not in self._made:
            text = self._made[access] = self._read(access, forms, variables)
            if text not in self._copies:
                self.views.add(text)
        return self._made[access], variables

    def _folded(self, form: Affine) -> Affine:
        """The form with variables of one value replaced by it."""
        single = {v: Affine.combine({}, self.domain.low[v]) for v in free(form) if self.domain.extent[v] == 1}
        return form.substitute(single) if single else form

    def _read(self, access: Access, forms: list[Affine], variables: frozenset[str]) -> str:
        if not forms:
            return self.local[access.tensor]
        tensor = self.local[access.tensor]
        shape = self.types[access.tensor].shape
        if 0 in shape:  # only a `pad` reads there, and takes none of it; an index that reads there keeps its variables
            zero = f"torch.zeros((), dtype=torch.{self.types[access.tensor].dtype}, device=device)"
            sizes = [self.size(v) if v in variables else "1" for v in self.order]
            return self.assign("outside", f"{zero}.expand({tuple_text(sizes)})" if variables else zero)
        if self.domain.inside(access, self.types):
            if all(f.is_affine for f in forms):
                return self._view(tensor, access.tensor, forms, shape, variables)
            flat = row_major(forms, shape)
            if flat.is_affine and flat.is_integral:
                return self._view(f"{tensor}.reshape(-1)", access.tensor, [flat], (math.prod(shape),), variables)
            turned = self._turned(access, forms, shape, variables)
            if turned is not None:
                return turned
        else:
            padded = self._padded(access, forms, shape, variables)
            if padded is not None:
                return padded
        return self._gather(access, forms, shape)

    def _view(
        self, tensor: str, stem: str, forms: list[Affine], shape: Sequence[int], variables: frozenset[str]
    ) -> str:
        text = self._plain_view(tensor, forms, shape) or self._window(tensor, forms)
        name = self.names.fresh(stem_of(stem))
        self.prologue.append(f"{name} = {text}")
        view = self._blocked(name, variables)
        if any(c < 0 for f in forms for _, c in f.terms):
            self.backward[view] = tensor
        return view

    def _padded(
        self, access: Access, forms: list[Affine], shape: Sequence[int], variables: frozenset[str]
    ) -> str | None:
        """A view of a copy that reaches as far as the box reads, where that is not much larger than the tensor."""
        ranges = read_box(self.domain, forms, shape)
        if ranges is None:
            return None
        low, high = self._reach(access.tensor, shape, ranges) or ranges
        key = ("extended", access.tensor, low, high)
        if key not in self._made:
            name = self._made[key] = self.names.fresh(stem_of(access.tensor))
            floating = is_floating(self.types[access.tensor].dtype)
            value = literal(self.outside if floating else 0)
            source = self.local[access.tensor]
            self.prologue.append(f"{name} = rt.extend({source}, {tuple_text(low)}, {tuple_text(high)}, {value})")
        name = self._made[key]
        self.extended.add(access)
        moved = [f - a for f, a in zip(forms, low, strict=True)]
        sizes = [b - a + 1 for a, b in zip(low, high, strict=True)]
        return self._view(name, access.tensor, moved, sizes, variables)

    def _reach(self, tensor: str, shape: Sequence[int], own: _Box) -> _Box | None:
        """First and last index of each axis that any read outside of the tensor has, where one copy may have all."""
        own_variables = self.domain.low.keys()  # those of sums inside are not
        found_reads = (e for e in accesses_in(*self.domain.statement.roots) if e.tensor == tensor)
        read = {e for e in found_reads if own_variables >= {*index_variables(*e.index)}}
        forms = [[self._folded(linear(i)) for i in e.index] for e in read if not self.domain.inside(e, self.types)]
        found = [own, *(ranges for f in forms if (ranges := read_box(self.domain, f, shape)))]
        low = tuple(map(min, zip(*(a for a, _ in found), strict=True)))
        high = tuple(map(max, zip(*(b for _, b in found), strict=True)))
        return (low, high) if _worth_copying(list(zip(low, high, strict=True)), shape) else None

    def _turned(
        self, access: Access, forms: list[Affine], shape: Sequence[int], variables: frozenset[str]
    ) -> str | None:
        """A view of a copy with the axes turned that one variable each goes round: `A[(i + 1) % N]`."""
        text, moved, sizes, copied = self.local[access.tensor], list(forms), list(shape), False
        for axis, form in enumerate(forms):
            if form.is_affine:
                continue
            match form.atoms():
                case (Call("mod", (e, Int(n))),) if form == Affine.of([(form.atoms()[0], 1)]) and n == shape[axis]:
                    inner = linear(e)
                case _:
                    return None
            names = inner.variables()
            if len(names) != 1 or inner != Affine.variable(names[0]) + inner.constant or not inner.is_integral:
                return None
            (v,) = names
            if self.domain.extent[v] > PADDING_LIMIT * n:
                return None
            low, count = self.domain.low[v], self.domain.extent[v]
            start = (low + as_int(inner.constant)) % n
            text = f"rt.turned({text}, {axis}, {start}, {count})"
            copied = copied or start + count > n
            moved[axis], sizes[axis] = Affine.variable(v) - low, count
        if not all(f.is_affine and f.is_integral for f in moved):
            return None
        name = self.names.fresh(stem_of(access.tensor))
        self.prologue.append(f"{name} = {text}")
        view = self._view(name, access.tensor, moved, sizes, variables)
        if copied:
            self._copies.add(view)
        return view

    def _plain_view(self, tensor: str, forms: list[Affine], shape: Sequence[int]) -> str | None:
        """Slices and a permutation, where each index is one variable of its own going forward, or a number."""
        slices: list[str] = []
        kept: list[str] = []
        for form, size in zip(forms, shape, strict=True):
            names = form.variables()
            if len(names) > 1 or (names and (form.terms[0][1] < 0 or names[0] in kept)):
                return None
            if not names:
                slices.append(str(as_int(form.constant)))
                continue
            (v,) = names
            kept.append(v)
            step = as_int(form.terms[0][1])
            first = as_int(form.constant) + step * self.domain.low[v]
            slices.append(slice_text(first, step, self.domain.extent[v], size))
        text = tensor if all(s == ":" for s in slices) else f"{tensor}[{', '.join(slices)}]"
        return self.in_order(text, kept)

    def in_order(self, text: str, names: Sequence[str]) -> str:
        """A tensor whose dimensions are these variables as one of the frame."""
        text = permuted(text, sorted(range(len(names)), key=lambda d: self.order.index(names[d])))
        if len(names) < len(self.order):
            text += f"[{', '.join(':' if v in names else 'None' for v in self.order)}]"
        return text

    def _window(self, tensor: str, forms: list[Affine]) -> str:
        start = [as_int(f.constant + sum(c * self.domain.low[v] for v, c in named(f))) for f in forms]
        sizes, steps = [], []
        for v in self.order:
            step = tuple(as_int(f.coefficient(v)) for f in forms)
            sizes.append(self.domain.extent[v] if any(step) else 1)
            steps.append(tuple_text(step))
        return f"rt.window({tensor}, {tuple_text(sizes)}, {tuple_text(start)}, {tuple_text(steps)})"

    def _gather(self, access: Access, forms: list[Affine], shape: Sequence[int]) -> str:
        conditions = access_conditions(access, self.types)

        def part(axis: int) -> str:
            condition = conditions[axis]
            text = self.index(condition.form)
            if self.domain.holds(condition):
                return text
            nearest = min(max(as_int(condition.form.constant), 0), condition.bound - 1)
            return f"({text}).clamp(0, {condition.bound - 1})" if condition.form.terms else str(nearest)

        text, copied = (
            by_axes(self, access, forms, shape, part)
            or whole_rows(self, access, forms, shape, part)
            or self._everywhere(access, forms, [part(axis) for axis in range(len(forms))])
        )
        name = self.assign(stem_of(access.tensor), text)
        if copied:
            self._copies.add(name)
        return name

    def _everywhere(self, access: Access, forms: list[Affine], parts: Sequence[str]) -> tuple[str, bool]:
        tensor, at = self.local[access.tensor], ", ".join(parts)
        text = f"{tensor}[{at}]" if self.order else f"rt.elements_at({tensor}, {at})"
        return text, any(f.terms for f in forms)

    # index arithmetic

    def index(self, form: Affine) -> str:
        """The form's value, rounded down where it is no integer, as an int64 tensor (a number if it is constant)."""
        scale = form.denominator
        scaled = form * scale
        text = ""
        for atom, c in scaled.terms:
            factor = "" if abs(c) == 1 else f"{abs(as_int(c))} * "
            sign = "-" if c < 0 else "+" if text else ""
            text += (f" {sign} " if text else sign) + factor + self._atom(atom)
        constant = as_int(scaled.constant)
        if constant or not text:
            text += f" {'-' if constant < 0 else '+'} {abs(constant)}" if text else str(constant)
        return text if scale == 1 else f"({text}) // {scale}"

    def _atom(self, atom: Expr) -> str:
        match atom:
            case Index(name):
                return self.iota(name)
            case Access():
                code, _ = self.read(atom)
                return code if self.types[atom.tensor].dtype == "int64" else f"{code}.to(torch.int64)"
            case Call("mod", (e, n)):
                return f"torch.remainder({self.index(linear(e))}, {self.index(linear(n))})"
            case Call("clamp", (e, low, high)):
                return f"torch.clamp({self.index(linear(e))}, {self.index(linear(low))}, {self.index(linear(high))})"
            case Call("max" | "min", (a, b)):
                return f"rt.{atom.function}imum({self.index(linear(a))}, {self.index(linear(b))})"
            case Pad():
                return self._padded_index(atom)
        raise AssertionError(f"no index atom: {atom!r}")

    def _padded_index(self, e: Pad) -> str:
        access = e.access if isinstance(e.access, Access) else e.access.access
        inside = self.inside(access)
        code = self._atom(e.access) if isinstance(e.access, Access) else "1"
        if inside is None:
            return code
        tensors = f"torch.full((), {code}, device=device)" if code.isdigit() else code
        return f"torch.where({inside[0]}, {tensors}, {self.index(linear(e.value))})"

    # conditions

    def inside(self, access: Access) -> tuple[str, frozenset[str]] | None:
        """A bool tensor, and the variables it depends on: where the access, those in its index included, lies in its
        tensor. None where it does everywhere."""
        open_ = [c for c in all_conditions(access, self.types) if not self.domain.holds(c)]
        if not open_:
            return None
        tests = [t for c in open_ for t in self.tests(c)]
        text = self.assign("inside", " & ".join(tests))
        return text, frozenset(v for c in open_ for v in free(c.form))

    def tests(self, condition: Condition) -> list[str]:
        """Python text of the comparisons that the box leaves open."""
        form = condition.form
        if not form.terms:
            fails = form.constant.denominator != 1 or not 0 <= form.constant < condition.bound
            shape = tuple_text([1] * len(self.order))
            return [f"torch.zeros({shape}, dtype=torch.bool, device=device)"] if fails else []
        tests = []
        scale = form.denominator
        code = self.assign("at", self.index(form * scale))
        low, high = self.domain.interval(form)
        wraps = may_wrap(form, self.types, (low, high))
        if low < 0 or wraps:
            tests.append(f"({code} >= 0)")
        if high >= condition.bound or wraps:
            tests.append(f"({code} < {condition.bound * scale})")
        if scale != 1:
            tests.append(f"({code} % {scale} == 0)")
        return tests

    def mask(self) -> str | None:
        """A bool tensor of the points that are valid, guard aside; None where all of the box is."""
        if not self.domain.conditions:
            return None
        tests = [t for c in self.domain.conditions for t in self.tests(c)]
        return self.assign("valid", " & ".join(tests))

    # lines

    def assign(self, stem: str, text: str) -> str:
        """A name for the text's value, made once."""
        key = ("line", text)
        if key not in self._made:
            self._made[key] = self.assign_new(stem, text)
        return self._made[key]

    def size(self, variable: str) -> str:
        """Python text of the variable's number of values in the current block."""
        if variable in self.loops:
            first, last = self.loops[variable]
            return f"{last} - {first}"
        return str(self.domain.extent[variable])

    def assign_new(self, stem: str, text: str) -> str:
        """Like `assign`, for a text whose value differs each time."""
        name = self.names.fresh(stem)
        self.lines.append(f"{name} = {text}")
        self.temporaries.append(name)
        return name

    def _blocked(self, name: str, variables: Sequence[str] | frozenset[str]) -> str:
        """The part of a prologue tensor that the current block needs."""
        walked = [v for v in self.order if v in self.loops and v in variables]
        if not walked:
            return name
        parts = [":".join(self.loops[v]) if v in walked else ":" for v in self.order]
        return self.assign(name + "_", part_text(name, parts))


def read_box(
    domain: Domain, forms: Sequence[Affine], shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """First and last index of each axis that the box reads, where a copy of that extent is not much larger than the
    tensor; None otherwise, and where an index is more than affine."""
    if not all(f.is_affine and f.is_integral for f in forms):
        return None
    ranges = [domain.interval(f) for f in forms]
    if not _worth_copying(ranges, shape):
        return None
    return tuple(as_int(a) for a, _ in ranges), tuple(as_int(b) for _, b in ranges)


def _worth_copying(ranges: Sequence[tuple], shape: Sequence[int]) -> bool:
    return math.prod(b - a + 1 for a, b in ranges) <= PADDING_LIMIT * math.prod(shape) + PADDING_SLACK


def named(form: Affine):
    return [(a.name, c) for a, c in form.terms if isinstance(a, Index)]


def stem_of(tensor: str) -> str:
    return "".join(c for c in tensor.lower() if c.isalnum() or c == "_")
