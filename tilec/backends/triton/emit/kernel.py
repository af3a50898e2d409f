"""The text of one kernel while it is written: parameters, lines in scopes, index arithmetic, reads.

A kernel works on a tile. Each of its axes enumerates the values of some index variables; `Frame` says at which
dimension of a block the axes stand, so that one kernel can hold blocks of several shapes (the operands of a product).
Every number that depends on shapes is a parameter, so that kernels of one form are one text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilec.backends.common.code import Names
from tilec.backends.common.domain import Condition, access_conditions, free, gathered, whole_arguments
from tilec.backends.triton.emit.device_text import device_functions
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.heading import LITERAL, without_sizes
from tilec.backends.triton.plan.plan import Pointer, python_name
from tilec.ir.functions import FUNCTIONS
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Pad, Statement
from tilec.ir.types import TensorType
from tilec.language.show import show_statement

RESERVED = (
    "tl", "gl", "triton", "torch", "libdevice", "device", "range", "float", "int", "True", "False", "None",
    "BM", "BN", "BK", "BR", "row", "row_in", "col", "col_in", "red", "red_in", "tile", "across", "first", "step",
    "over", "red_from", "red_end", "down", "batch", "group", "members", "GROUP", "PARTS", "steps", "part", "start",
    "end", "at_step", "lane", "window", "at_window", "at_red", "UNROLL", "acc", "top", "total", "new_top", "highest",
    "scaled", "valid", "sure", "value", "result", "reached", "pairs", "base", "near_top", "far_top", "lifted",
    "weight", "zeros", "offset", "origin", "head", "span", "whole", "place", "vector", "filled", "rest", "one",
    *device_functions(),
)  # fmt: skip


@dataclass
class Scope:
    """Lines of one level of the kernel; `made` remembers texts and the names they were given."""

    lines: list[str] = field(default_factory=list)
    made: dict[object, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """Index variables enumerated together, the last fastest; `name` is the 1-D block of their common position. An axis
    without a block is a scalar position."""

    name: str
    variables: tuple[str, ...]
    block: str | None


class Kernel:
    def __init__(
        self,
        name: str,
        space: Space,
        types: Mapping[str, TensorType],
        strides: Mapping[str, Sequence[int]],
        wide: bool,
        powers: bool = False,
    ):
        """`strides`: of every tensor, in elements. `wide`: positions are 64-bit. `powers`: powers of two below 16 that
        divide a number of the shapes stand in the text; Triton by itself knows of 16 alone, and so vectorizes there."""
        self.names = Names(RESERVED)
        self.name = self.names.fresh(name)
        self.space = space
        self.types = types
        self.strides = strides
        self.wide = wide
        self.powers = powers
        self.parameters: dict[str, object] = {}
        self.unspecialized: list[str] = []  # parameters whose divisibility makes no difference
        self.constants: dict[str, int] = {}
        self.columns: list[tuple[int, ...]] = []  # of the table of classes
        self.blockwise = False  # functions may look at all elements of a block before they choose how to compute them
        self.scopes = [Scope()]
        self.axis_of: dict[str, Axis] = {}
        self.value_of: dict[str, str] = {}
        self.quarters: dict[str, str] = {}  # by axis: a quarter of its positions, each the first of four, over 4
        self._by_stem: dict[object, str] = {}
        fastest = (axes for axes in (space.outputs, space.reductions) if axes)
        self._fastest = {v for axes in fastest for v in axes[-2:]}  # blocks may run along these

    # parameters

    def pointer(self, tensor: str) -> str:
        key = ("pointer", tensor)
        if key not in self._by_stem:
            name = self.names.fresh(python_name(tensor))
            self.parameters[name] = Pointer(tensor)
            self._by_stem[key] = name
        return self._by_stem[key]

    def number(self, key: object, stem: str, value: int, specialized: bool = True) -> str:
        """A run-time integer. Not `specialized`: one compiled kernel serves whatever it is divisible by."""
        if key not in self._by_stem:
            name = self.names.fresh(stem)
            power = math.gcd(value, 16) if self.powers and specialized and value else 1
            factor = power if power < 16 else 1
            self.parameters[name] = value // factor
            if not specialized:
                self.unspecialized.append(name)
            self._by_stem[key] = name if factor == 1 else f"({name} * {factor})"
        return self._by_stem[key]

    def per_class(self, kind: str, v: str, values: Sequence[int]) -> str:
        """A number of a variable that may differ from class to class: a parameter, or an entry of the class's row."""
        if len(set(values)) <= 1:
            value = values[0] if values else 0
            if kind == "low" and abs(value) <= LITERAL:
                return str(value)
            return self.number((kind, v), f"{kind}_{python_name(v)}", value, kind == "n" and v in self._fastest)
        key = (kind, v)
        if key not in self._by_stem:
            table = self.pointer(self.table)
            width, column = self.number("width", "row_width", 0, False), len(self.columns)
            self.columns.append(tuple(values))
            self.parameters[width] = len(self.columns)
            name = self.names.fresh(f"{kind}_{python_name(v)}")
            self.scopes[0].lines.append(f"{name} = tl.load({table} + tl.program_id(1) * {width} + {column})")
            self._by_stem[key] = name
        return self._by_stem[key]

    @property
    def table(self) -> str:
        return f"{self.space.statement.output}.classes"

    def table_rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(zip(*self.columns, strict=True))

    # lines

    def line(self, stem: str, text: str, depth: int | None = None) -> str:
        """A name for the text's value, in the scope of that depth (default: the innermost), made once."""
        depth = len(self.scopes) - 1 if depth is None else depth
        for scope in self.scopes[: depth + 1]:
            if text in scope.made:
                return scope.made[text]
        name = self.names.fresh(stem)
        self.scopes[depth].lines.append(f"{name} = {text}")
        self.scopes[depth].made[text] = name
        return name

    def emit(self, text: str) -> None:
        self.scopes[-1].lines.append(text)

    # axes

    def low(self, v: str) -> str:
        return self.per_class("low", v, [a[v] for a in self.space.low])

    def extent(self, v: str) -> str:
        return self.per_class("n", v, [n[v] for n in self.space.extent])

    def count(self, variables: Sequence[str]) -> str:
        """Text of the number of values that variables take together."""
        texts = [self.extent(v) for v in variables]
        if self.wide and texts:
            texts[0] = f"tl.cast({texts[0]}, tl.int64)"
        return " * ".join(texts) or "1"

    def residues(self) -> None:
        """Bind the residues to the class's own."""
        for v in self.space.residues:
            self.value_of[v] = self.per_class("class", v, [c[v] for c in self.space.classes])

    def decode(self, axis: Axis, depth: int | None = None) -> None:
        """Lines that give the axis's variables their values from its position."""
        rest = axis.name
        variables = [v for v in axis.variables if self.space.largest(v) > 1]
        for v in axis.variables:
            if v not in variables:
                self.axis_of.pop(v, None)
                self.value_of[v] = self.low(v)
        for place in range(len(variables) - 1, -1, -1):
            v = variables[place]
            n = self.extent(v)
            value = rest if place == 0 else f"{rest} % {n}"
            if place:
                rest = self.line(f"{axis.name}_rest", f"{rest} // {n}", depth)
            low = self.low(v)
            text = value if low == "0" else f"{low} + ({value})" if place else f"{low} + {value}"
            self.value_of[v] = self.line(python_name(v), text, depth)
            self.axis_of[v] = axis

    # assembly

    def _decorator(self) -> str:
        names = ", ".join(f'"{name}"' for name in self.unspecialized)
        return f"@triton.jit(do_not_specialize=[{names}])" if names else "@triton.jit"

    def text(self, *flat: Statement) -> str:
        """The kernel, headed by its statements as written, without sizes, which would make each shape another text."""
        comments = [line for s in flat for line in show_statement(without_sizes(s)).splitlines()]
        parameters = [*self.parameters, *(f"{c}: tl.constexpr" for c in self.constants)]
        header = [f"def {self.name}({', '.join(parameters)}):"]
        if len(header[0]) > 118:
            header = [f"def {self.name}(", f"    {', '.join(parameters)},", "):"]
        body = [f"    # {c}" for c in comments] + [f"    {line}" for line in self.scopes[0].lines]
        return "\n".join([self._decorator(), *header, *body]) + "\n"


class Frame:
    """Blocks whose dimensions are the given axes (by name; None: no dimension of its own). `how`: text of what loads
    are told beside."""

    how = ""

    def __init__(self, kernel: Kernel, axes: Sequence[str], tails: Mapping[str, str], *inner: frozenset[str]):
        """`tails`: for each axis, the 1-D test that its position is inside, where blocks may overhang. `inner`: for
        each scope inside the kernel's own, the axes and variables that it binds; a line goes to the outermost scope
        that binds all it depends on."""
        self.kernel = kernel
        self.axes = tuple(axes)
        self.tails = dict(tails)
        self.inner = inner
        self.types = kernel.types
        self.untested = ""  # the test of reads that need none, where they shall have one all the same

    # dependence

    def dimensions(self, variables: frozenset[str]) -> frozenset[str]:
        """Axes that the variables stand on."""
        found = (self.kernel.axis_of.get(v) for v in variables)
        return frozenset(a.name for a in found if a is not None and a.block is not None)

    def depth(self, variables: frozenset[str]) -> int:
        needed = variables | self.dimensions(variables)
        return max((place for place, bound in enumerate(self.inner, 1) if needed & bound), default=0)

    def spread(self, text: str, axis: str) -> str:
        """A 1-D block as a block of this frame."""
        if len(self.axes) == 1:
            return text
        return f"{text}[{', '.join(':' if a == axis else 'None' for a in self.axes)}]"

    def variable(self, v: str) -> str:
        axis = self.kernel.axis_of.get(v)
        value = self.kernel.value_of[v]
        return value if axis is None or axis.block is None else self.spread(value, axis.name)

    def assign(self, stem: str, text: str, variables: frozenset[str]) -> str:
        return self.kernel.line(stem, text, self.depth(variables))

    # index arithmetic

    def form(self, e: Expr) -> Affine:
        """An index expression with variables of a single known value replaced by it."""
        form = linear(e)
        values = self.kernel.value_of
        known = {v: Affine.of((), int(values[v])) for v in free(form) if values[v].lstrip("-").isdigit()}
        return form.substitute(known) if known else form

    def index(self, form: Affine) -> str:
        """The form's value; where it is no integer, some integer."""
        scale = form.denominator
        text = self.sum([(self.atom(a), int(c * scale)) for a, c in form.terms], int(form.constant * scale), form)
        return text if scale == 1 else f"({text}) // {scale}"

    def sum(self, terms: Sequence[tuple[str, int]], constant: int, key: object) -> str:
        text = ""
        for value, c in terms:
            factor = "" if abs(c) == 1 else f"{abs(c)} * "
            if abs(c) > LITERAL:
                factor = self.kernel.number(("coefficient", key, value), "c", abs(c), False) + " * "
            sign = "-" if c < 0 else "+" if text else ""
            text += (f" {sign} " if text else sign) + factor + value
        if constant or not text:
            number = str(abs(constant))
            if abs(constant) > LITERAL:
                number = self.kernel.number(("constant", key), "c", abs(constant), False)
            text += f" {'-' if constant < 0 else '+'} {number}" if text else ("-" if constant < 0 else "") + number
        return text

    def atom(self, e: Expr) -> str:
        match e:
            case Index(name):
                return self.variable(name)
            case Access():
                return f"{self.read(e, 0)}.to(tl.int64)"  # an element may be out of 32 bits, and so out of every range
            case Call("mod", (a, Int(n))) if (turn := self._turned(self.form(a), n)) is not None:
                return turn
            case Call("mod", (a, n)):
                text = f"remainder_({self.block(self.form(a))}, {self.block(self.form(n))})"
            case Call("max" | "min" | "clamp", args):
                text = (FUNCTIONS[e.function].triton or "").format(*(self.block(self.form(a)) for a in args))
            case Pad():
                access = e.access if isinstance(e.access, Access) else e.access.access
                read = f"{self.read(e.access, 0)}.to(tl.int64)" if isinstance(e.access, Access) else "1"
                inside = self.inside(access)
                if inside is None:
                    return read
                text = f"tl.where({inside}, {read}, {self.index(self.form(e.value))})"
            case _:
                raise AssertionError(f"no index atom: {e!r}")
        return self.assign("at", text, free(Affine.of([(e, 1)])))

    def _turned(self, form: Affine, n: int) -> str | None:
        """`form % n` without a division, where the form is never further than once round; None elsewhere."""
        if not form.terms or not form.is_integral:
            return None
        spans = [self.kernel.space.box(k).interval(form) for k in range(len(self.kernel.space.classes))]
        if not all(low >= -n and high < 2 * n for low, high in spans):
            return None
        name = self.assign("at", self.index(form), free(form))
        size = str(n) if n <= LITERAL else self.kernel.number(("turn", n), "n", n, False)
        if not all(low >= 0 for low, _ in spans):
            name = self.assign("at", f"tl.where({name} < 0, {name} + {size}, {name})", free(form))
        if not all(high < n for _, high in spans):
            name = self.assign("at", f"tl.where({name} >= {size}, {name} - {size}, {name})", free(form))
        return name

    def block(self, form: Affine) -> str:
        """The form as a 64-bit tensor."""
        text = self.index(form)
        return f"({text}).to(tl.int64)" if form.terms else f"tl.full((), {text}, tl.int64)"

    # conditions

    def tests(self, conditions: Sequence[Condition]) -> list[str]:
        """Texts of the comparisons that the boxes of all classes leave open."""
        found: list[str] = []
        boxes = [self.kernel.space.box(k) for k in range(len(self.kernel.space.classes))]
        for c in conditions:
            form = self.form(c.form.to_expr())
            if not form.terms:
                if form.constant.denominator != 1 or not 0 <= form.constant < c.bound:
                    found.append("tl.full((), False, tl.int1)")
                continue
            scale = form.denominator
            spans = [b.interval(form) for b in boxes]
            above = all(low >= 0 for low, _ in spans)
            below = all(high < c.bound for _, high in spans)
            if above and below and scale == 1:
                continue
            code = self.assign("at", self.index(form * scale), free(form))
            if not above:
                found.append(f"({code} >= 0)")
            if not below:
                bound = self.kernel.number(("bound", form, c.bound), "bound", c.bound * scale, False)
                found.append(f"({code} < {bound})")
            if scale != 1:
                found.append(f"({code} % {scale} == 0)")
        return found

    def inside(self, access: Access) -> str | None:
        """Text of the test that an access, those in its index included, lies in its tensor; None: it always does."""
        wanted: list[Condition] = []
        pending = [access]
        while pending:
            a = pending.pop()
            wanted += (*access_conditions(a, self.types), *whole_arguments(a.index))
            pending += [x for e in a.index for x in gathered(linear(e))]
        texts = self.tests(tuple(dict.fromkeys(wanted)))
        if not texts:
            return None
        return self.assign("inside", " & ".join(dict.fromkeys(texts)), free_of(access))

    # reads

    def address(self, tensor: str, forms: Sequence[Affine], spread_over: frozenset[str] = frozenset()) -> str:
        """Text of the address of an element: one product a variable, with the strides of all axes added up. It has the
        dimensions of the axes `spread_over` even if it is the same along them."""
        strides = self.kernel.strides[tensor]
        moves: dict[Expr, int] = {}
        start = 0
        text = self.kernel.pointer(tensor)
        for axis, (form, stride) in enumerate(zip(forms, strides, strict=True)):
            if self.types[tensor].shape[axis] == 1:
                continue  # always at 0
            if form.denominator != 1:
                step = self.kernel.number(("stride", tensor, axis), f"{python_name(tensor)}_stride", stride)
                text += f" + ({self.index(form)}) * {step}"
                continue
            for a, c in form.terms:
                moves[a] = moves.get(a, 0) + int(c) * stride
            start += int(form.constant) * stride
        if self.kernel.powers:
            moves = self._together(moves)
        for a, move in moves.items():
            if move:
                stem = f"{python_name(tensor)}_{python_name(a.name) if isinstance(a, Index) else 'at'}"
                step = self.kernel.number(("move", tensor, tuple(forms), a), stem, move)
                text += f" + {_atom(self.atom(a))} * {step}"
                if isinstance(a, Index):
                    spread_over -= self.dimensions(frozenset((a.name,)))
        if start:
            text += f" + {self.kernel.number(('start', tensor, tuple(forms)), python_name(tensor) + '_start', start)}"
        for name in self.axes:
            if name in spread_over:
                text += f" + {self.spread(name, name)} * 0"
        return text

    def _together(self, moves: dict[Expr, int]) -> dict[Expr, int]:
        """The moves, those of all variables of an axis as one of its last where memory runs through them as the axis
        does: a position's parts then need not be known to read there."""
        k, left = self.kernel, dict(moves)
        for axis in {a.name: a for a in k.axis_of.values() if a.block is not None}.values():
            variables = [v for v in axis.variables if k.space.largest(v) > 1]
            steps = [moves.get(Index(v), 0) for v in variables]
            sizes = [{n[v] for n in k.space.extent} for v in variables]
            runs = all(len(n) == 1 and a == b * min(n) for a, b, n in zip(steps, steps[1:], sizes[1:], strict=False))
            if len(variables) > 1 and steps[-1] and runs and all(k.low(v) == "0" for v in variables):
                for v in variables:
                    del left[Index(v)]
                k.value_of[f"{axis.name}."], k.axis_of[f"{axis.name}."] = axis.name, axis
                left[Index(f"{axis.name}.")] = steps[-1]
        return left

    def access_tests(self, access: Access) -> list[str]:
        """Texts of the tests that the access itself lies in its tensor."""
        return self.tests(access_conditions(access, self.types))

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        """Texts of the tests that what the variables take is no overhang of a block."""
        return [self.spread(self.tails[a], a) for a in self.axes if a in self.dimensions(variables) & set(self.tails)]

    def read(self, access: Access, other: float | int | None) -> str:
        """A name of the elements read; where the access is outside, or the tile overhangs, they are `other` (None: not
        needed, since what is read there is not used)."""
        forms = [self.form(e) for e in access.index]
        if 0 in self.types[access.tensor].shape:
            return f"tl.full((), 0, {triton_type(self.types[access.tensor].dtype)})"
        variables = free_of(access)
        tests = [*self.access_tests(access), *self.tail_tests(variables)]
        masked = self.dimensions(variables) if tests else frozenset()
        text = f"tl.load({self.address(access.tensor, forms, masked)}"
        if tests:
            mask = " & ".join(dict.fromkeys(tests))
            text += f", mask={mask}, other={0 if other is None else other}"
        elif self.untested:
            text += f", mask={self.untested}, other=0"
        text += self.how
        return self.assign(python_name(access.tensor).lower(), text + ")", variables)


def free_of(access: Access) -> frozenset[str]:
    return frozenset(v for e in access.index for v in free(linear(e)))


def _atom(text: str) -> str:
    return text if text.replace("_", "").isalnum() or text.endswith("]") else f"({text})"


def triton_type(dtype: str) -> str:
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"
