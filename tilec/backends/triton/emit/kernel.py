"""A kernel while it is written: parameters, lines in scopes, axes.

A kernel works on a tile. Each of its axes enumerates the values of some index variables; `Frame` says at which
dimension of a block the axes stand, so that one kernel can hold blocks of several shapes (the operands of a product).
Every number that depends on shapes is a parameter, so that kernels of one form are one text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilec.backends.common.code import FreshNames, python_name
from tilec.backends.common.scalars import rounds_each
from tilec.backends.triton.emit.device_text import device_functions, kernel_file
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.heading import LITERAL, without_sizes
from tilec.backends.triton.plan.lines import Assignment, CodeLine, ForLoop, If, LineBuilder, Return, assign
from tilec.backends.triton.plan.plan import Launch, Pointer, Step, Table
from tilec.backends.triton.plan.sizes import bits_below, multiplier
from tilec.backends.triton.plan.source import PROGRAM, Heading, KernelFile, KernelFunction
from tilec.ir.index import linear
from tilec.ir.program import Access, Statement, accesses_in, index_variables
from tilec.ir.symbolic import gcd, is_symbolic
from tilec.ir.types import TensorType
from tilec.language.show import show_statement

LANGUAGE = ("tl", "gl", "triton", "torch", "libdevice", "device", "range", "float", "int", "True", "False", "None")
# names that writers give as they are; a test derives them from the writers
KERNEL_NAMES = (
    "BM", "BN", "BK", "BR", "row", "row_in", "col", "col_in", "red", "red_in", "tile", "across", "first", "step",
    "over", "red_from", "red_end", "down", "batch", "group", "members", "GROUP", "steps", "part", "start", "part_in",
    "steps_each", "end", "at_step", "lane", "window", "at_window", "at_red", "UNROLL", "acc", "top", "total", "new_top",
    "highest", "PIECE", "scaled", "valid", "sure", "value", "result", "reached", "pairs", "base", "near_top", "far_top",
    "lifted", "weight", "zeros", "origin", "head", "span", "place", "vector", "filled", "rest", "one", "BINS",
    "other", "difference", "lanes_at", "lane_in", "step_in", "chunk", "at_chunk", "known", "element_in", "unsure",
    "from_chunk", "BT", "BL", "BC", "joint", "joint_in", "KEYS", "rows_base", "columns_base", "least",
    "element", "exponent", "units", "PLANES", "WIDTH", "BITS", "planes", "plane", "below", "pivot", "common", "here",
    "cause", "red_stop", "STRIP", "STEPS",
)  # fmt: skip
RESERVED = (*LANGUAGE, *KERNEL_NAMES, *device_functions())


@dataclass
class Scope:
    """Lines of one level of the kernel; `made` remembers texts and the names they were given."""

    lines: list[CodeLine] = field(default_factory=list)
    made: dict[object, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """Index variables enumerated together, the last fastest; `name` is the 1-D block of their common position. An axis
    without a block is a scalar position."""

    name: str
    variables: tuple[str, ...]
    block: str | None


class Kernel(LineBuilder):
    def __init__(
        self,
        name: str,
        space: Space,
        types: Mapping[str, TensorType],
        strides: Mapping[str, Sequence[int]],
        int64_index: bool,
        powers: bool = False,
        vectors: Collection[str] | None = None,
        innermost: Collection[str] = (),
    ):
        """`strides`: of every tensor, in elements. `int64_index`: of positions. `powers`: powers of two below 16 that
        divide a number of the shapes stand in the text; Triton by itself knows of 16 alone, and so vectorizes there.
        `vectors`: the variables along which memory is read in vectors; None: the last two of outputs and of sums, and
        those that are `innermost` in a block."""
        self.names = FreshNames(RESERVED)
        self.name = self.names.fresh(name)
        self.space = space
        self.types = types
        self.strides = strides
        self.int64_index = int64_index
        self.powers = powers
        self.parameters: dict[str, object] = {}
        self.unspecialized: list[str] = []  # parameters whose divisibility makes no difference
        self.constants: dict[str, int] = {}
        self.columns: list[tuple[int, ...]] = []  # of the table of classes
        self.blockwise = False  # functions may look at all elements of a block before they choose how to compute them
        self.or_nan = False  # functions may be NaN where they would take long, and are computed again then
        # not where single 16-bit elements of several classes are written between each other: programs that find places
        # sooner take longer (twice as large images of 33 channels 89 and 196 us on an H100)
        self.places_shared = True
        self.padded: Collection[str] = ()  # tensors of the plan whose rows have room behind them, up to whole vectors
        self.scopes = [Scope()]
        self.axis_of: dict[str, Axis] = {}
        self.value_of: dict[str, str] = {}
        self.quarters: dict[str, str] = {}  # by axis: a quarter of its positions, each the first of four, over 4
        self.starts: dict[str, tuple[str, str, str]] = {}  # by axis: its first position, its end, its block
        self._by_stem: dict[object, str] = {}
        fastest = [axes for axes in (space.outputs, space.reductions) if axes]
        last = {v for axes in fastest for v in axes[-2:]}  # blocks may run along these
        self._fastest = last.union(innermost) if vectors is None else set(vectors)
        self._last = {axes[-1] for axes in fastest}

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
            if type(value) is int:
                value = (value + 2**63) % 2**64 - 2**63  # as positions, of which more says no more
            power = gcd(value, 16) if self.powers and specialized and value else 1
            factor = power if power < 16 else 1
            self.parameters[name] = value // factor
            if not specialized:
                self.unspecialized.append(name)
            self._by_stem[key] = name if factor == 1 else f"({name} * {factor})"
        return self._by_stem[key]

    def value(self, n: float) -> str:
        """A run-time number that values are computed with, which depends on sizes that are left open."""
        key = ("value", str(n.text))  # type: ignore[attr-defined]
        if key not in self._by_stem:
            self._by_stem[key] = self.names.fresh("number")
            self.parameters[self._by_stem[key]] = n
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
            self.scopes[0].lines.append(assign(name, f"tl.load({table} + {PROGRAM[1]} * {width} + {column})"))
            self._by_stem[key] = name
        return self._by_stem[key]

    @property
    def table(self) -> str:
        return f"{self.space.statement.output}.classes"

    def table_rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(zip(*self.columns, strict=True))

    def runs_fast(self, v: str) -> bool:
        """Whether vectors may lie along the variable."""
        return v in self._last

    # lines

    def line(self, stem: str, text: str, depth: int | None = None) -> str:
        """A name for the text's value, in the scope of that depth (default: the innermost), made once."""
        depth = len(self.scopes) - 1 if depth is None else depth
        for scope in self.scopes[: depth + 1]:
            if text in scope.made:
                return scope.made[text]
        name = self.names.fresh(stem)
        self.scopes[depth].lines.append(Assignment((name,), text, shared=True))
        self.scopes[depth].made[text] = name
        return name

    def pair(self, stem: str, text: str, depth: int) -> tuple[str, str]:
        """Names for the two values that the text gives, in the scope of that depth, made once."""
        keys = (text, 0), (text, 1)
        for scope in self.scopes[: depth + 1]:
            if keys[0] in scope.made:
                return scope.made[keys[0]], scope.made[keys[1]]
        a, b = self.names.fresh(stem), self.names.fresh(stem)
        self.scopes[depth].lines.append(Assignment((a, b), text))
        self.scopes[depth].made |= {keys[0]: a, keys[1]: b}
        return a, b

    @property
    def lines(self) -> list[CodeLine]:
        return self.scopes[-1].lines

    def program(self, axis: int = 0) -> str:
        """Text of the program's place in the grid, as wide as positions are."""
        return PROGRAM[axis] + (".to(tl.int64)" if self.int64_index else "")

    def leave(self, test: str) -> None:
        """End the program where the test holds."""
        self.add(If(test, (Return(),)))

    def close(self, counter: str, over: str, depth: int = -1) -> None:
        """End the innermost scope, whose lines are the body of a loop."""
        body = tuple(self.scopes.pop().lines)
        self.scopes[depth].lines.append(ForLoop(counter, over, body))

    # axes

    def low(self, v: str) -> str:
        return self.per_class("low", v, [a[v] for a in self.space.low])

    def extent(self, v: str) -> str:
        if v in self.space.steps:
            return str(self.space.extent[0][v])
        return self.per_class("n", v, [n[v] for n in self.space.extent])

    def count(self, variables: Sequence[str]) -> str:
        """Text of the number of values that variables take together."""
        texts = [self.extent(v) for v in variables]
        if self.int64_index and texts:
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
        for whole in [n for n, a in self.axis_of.items() if n.endswith(".") and {*a.variables} & {*axis.variables}]:
            del self.axis_of[whole]  # what stood for all of these together does no more
        for v in axis.variables:
            if v not in variables:
                self.axis_of.pop(v, None)
                self.value_of[v] = self.low(v)
        for place in range(len(variables) - 1, -1, -1):
            v = variables[place]
            n = self.extent(v)
            divided = place and self._quotient(axis, rest, v)
            value = rest if place == 0 else f"{rest} % {n}"
            if divided:
                name = self.line(f"{axis.name}_rest", divided, depth)
                value, rest = f"{rest} - {name} * {n}", name
            elif place:
                rest = self.line(f"{axis.name}_rest", f"{rest} // {n}", depth)
            low = self.low(v)
            text = value if low == "0" else f"{low} + ({value})" if place else f"{low} + {value}"
            self.value_of[v] = self.line(python_name(v), text, depth)
            self.axis_of[v] = axis

    def _quotient(self, axis: Axis, position: str, v: str) -> str | None:
        """Text of positions of an axis divided by a variable's extent, as a product; None where a division tells the
        compiler along which elements memory is read in vectors, or where positions take 64 bits."""
        extents = {e[v] for e in self.space.extent}
        if not self.places_shared or axis.block is None or self.int64_index or v in self.space.steps:
            return None
        if len(extents) != 1:
            return None
        if any(map(self._in_vectors, axis.variables[axis.variables.index(v) :])):
            return None
        (n,) = extents
        stem = python_name(v)
        by = self.number(("by", v), f"by_{stem}", multiplier(n), False)
        return f"quotient_({position}, {by}, {self.number(('shift', v), f'shift_{stem}', bits_below(n), False)})"

    def _in_vectors(self, v: str) -> bool:
        """Whether vectors of what the kernel's statement reads or writes may begin with a variable."""
        extents = {e[v] for e in self.space.extent}
        if not any(is_symbolic(n) or n % 2 == 0 for n in extents):
            return False
        s = self.space.statement
        for access in {Access(s.output, s.index or ()), *accesses_in(*s.roots)}:
            pairs = zip(map(linear, access.index), self.strides[access.tensor], strict=True)
            moved = [(form, step) for form, step in pairs if v in index_variables(form.to_expr())]
            moves = abs(sum(form.coefficient(v) * step for form, step in moved if form.is_affine)) == 1
            if moves or not all(form.is_affine for form, _ in moved):
                return True
        return False

    # assembly

    def file(self, *flat: Statement) -> KernelFile:
        """The kernel, headed by its statements as written, without sizes, which would make each shape another text."""
        parameters, constants, body = tuple(self.parameters), tuple(self.constants), tuple(self.scopes[0].lines)
        unspecialized, contracts = tuple(self.unspecialized), not rounds_each(flat)
        return kernel_file(
            KernelFunction(self.name, parameters, constants, body, unspecialized, heading(*flat), contracts)
        )

    def launch(
        self,
        grid: tuple[int, int, int],
        warps: int,
        stages: int,
        *statements: Statement,
        fusion: bool = True,
        cooperative: bool = False,
    ) -> Launch:
        """A launch of the kernel, which computes the outputs of these statements, as written."""
        parameters, constants = tuple(self.parameters.items()), tuple(self.constants.items())
        outputs = tuple(s.output for s in statements)
        file = self.file(*statements)
        return Launch(file, grid, parameters, constants, warps, stages, outputs, fusion=fusion, cooperative=cooperative)

    def launches(self, grid: tuple[int, int, int], warps: int, stages: int, *statements: Statement) -> list[Step]:
        """The same, and before it the table of its classes, where it has one."""
        launch = self.launch(grid, warps, stages, *statements)
        return [Table(self.table, self.table_rows()), launch] if self.columns else [launch]


def heading(*flat: Statement) -> Heading:
    """Statements as written, without sizes."""
    return tuple((line, s.output) for s in flat for line in show_statement(without_sizes(s)).splitlines())


def all_text(tests: Sequence[str]) -> str:
    """Text of the test that all of these hold."""
    return " & ".join(dict.fromkeys(tests))


def where_text(tests: Sequence[str], code: str, other: str) -> str:
    """Text of a value where all tests hold, and of another elsewhere."""
    return f"tl.where({all_text(tests)}, {code}, {other})" if tests else code


def triton_type(dtype: str) -> str:
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"
