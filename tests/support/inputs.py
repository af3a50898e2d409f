"""What a random program is drawn from: a tape of choices, sizes, input tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

LARGE = 1e6  # beyond this a value no longer counts as exact: float32 holds integers up to 1.6e7
DTYPES = {
    "f": ("float64", "float64", "float64", "float32"),
    "i": ("int64", "int64", "int32", "int8", "uint8"),
    "b": ("bool",),
}


@dataclass(frozen=True)
class Options:
    """`smooth`: floating values and differentiable functions alone. `special`: infinities and NaN among the inputs.
    `quasi_affine`: many indices hold `%`, `clamp`, `abs`, `min` or `max`, of quotients among others."""

    smooth: bool = False
    special: bool = False
    quasi_affine: bool = False
    statements: int = 4
    kinds: tuple[str, ...] = ("contraction",) * 5 + ("elementwise", "elementwise", "structural")


@dataclass(frozen=True)
class Case:
    """A program's text and its inputs by name."""

    source: str
    inputs: dict[str, np.ndarray]
    features: frozenset[str]

    def __repr__(self) -> str:
        arrays = "\n".join(f"{name} = {np.array2string(a)} : {a.dtype} {a.shape}" for name, a in self.inputs.items())
        return f"\n{self.source}\n{arrays}"


@dataclass(frozen=True)
class Known:
    """What the writer knows of a tensor: category f, i or b; `magnitude` bounds its elements where they are exact."""

    shape: tuple[int, ...]
    category: str
    exact: bool
    magnitude: float


@dataclass(frozen=True)
class Text:
    """An expression written so far."""

    text: str
    category: str
    exact: bool = True
    magnitude: float = 3

    def __str__(self) -> str:
        return self.text


@dataclass
class Scope:
    """An aggregation being written: variables at hand, rows that bound them, sizes at which they stand bare."""

    variables: list[str]
    depth: int = 0
    used: dict[str, None] = field(default_factory=dict)
    rows: list[dict[str, Fraction]] = field(default_factory=list)
    bare: dict[str, set[int]] = field(default_factory=dict)
    constrains: bool = True
    dynamic: bool = True


def rank(rows: list[dict[str, Fraction]]) -> int:
    """Rank of a list of sparse rational rows."""
    pivots: list[tuple[str, dict[str, Fraction]]] = []
    for row in rows:
        row = {k: c for k, c in row.items() if c}
        for pivot, other in pivots:
            factor = row.get(pivot, Fraction(0))
            if factor:
                row = {k: row.get(k, 0) - factor * other.get(k, 0) for k in row.keys() | other.keys()}
                row = {k: c for k, c in row.items() if c}
        if row:
            pivot = next(iter(row))
            pivots.append((pivot, {k: c / row[pivot] for k, c in row.items()}))
    return len(pivots)


def row_of(*terms: tuple[str, Fraction]) -> dict[str, Fraction]:
    row: dict[str, Fraction] = {}
    for v, c in terms:
        row[v] = row.get(v, Fraction(0)) + c
    return row


class Inputs:
    """Choices from a tape of bytes, and the inputs, sizes and tensors that there are."""

    def __init__(self, tape: bytes, options: Options):
        self.tape = iter(tape)
        self.options = options
        self.random = np.random.default_rng(256 * self.integer(0, 255) + self.integer(0, 255))
        self.arrays: dict[str, np.ndarray] = {}
        self.declared: dict[str, str] = {}
        self.sizes: dict[str, int] = {}  # dimensions, size statements and integer inputs
        self.tensors: dict[str, Known] = {}
        self.statements: list[str] = []
        self.outputs: list[str] = []
        self.features: set[str] = set()
        self.shape: tuple[int, ...] = ()  # of the elementwise statement being written
        self.pending: list[str] = []  # constraints that nested aggregations need

    # draws

    def integer(self, low: int, high: int) -> int:
        """A choice; the least once the tape is at its end."""
        return low + next(self.tape, 0) % (high - low + 1)

    def pick(self, options):
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """Shrinks to False."""
        return self.integer(0, 99) >= 100 - percent

    # inputs and sizes

    def size(self) -> int:
        return self.pick((2, 3, 4, 3, 2, 4, 5, 3, 2, 1, 3, 4, 1, 0))

    def dimension(self, size: int) -> str:
        """A way to declare a dimension of an input."""
        same = [name for name, n in self.sizes.items() if n == size and name.startswith("N")]
        if same and self.chance(40):
            return self.pick(same)
        if self.chance(25):
            return str(size)
        name = f"N{len(self.sizes)}"
        self.sizes[name] = size
        return name

    def size_text(self, size: int) -> str:
        """An expression for a size that is wanted."""
        known = list(self.sizes.items())
        exact = [name for name, n in known if n == size]
        if exact and self.chance(40):
            return self.pick(exact)
        if known and self.chance(15):
            name, n = self.pick(known)
            if self.chance(20):
                truth, holds = self.truth(name, n)
                return f"{truth} + {size - holds}" if size >= holds else str(size)
            if n == 2 * size or n == 2 * size + 1:
                return f"{name}/2"
            return f"{name} + {size - n}" if size >= n else f"{name} - {n - size}"
        return str(size)

    def truth(self, name: str, n: int) -> tuple[str, bool]:
        """A truth value made of others about a size, and whether it holds."""
        a, b = self.integer(0, 5), self.integer(0, 5)
        self.features.add("truth values in sizes")
        return self.pick(
            (
                (f"~({name} > {a})", not n > a),
                (f"(({name} > {a}) + ({name} < {b}))", n > a or n < b),
                (f"(({name} != {a}) * ~({name} == {b}))", n != a and n != b),
                (f"~(({name} > {a}) ^ ({name} < {b}) & ~({name} == 2))", not ((n > a) ^ (n < b and n != 2))),
                (f"~max({name} > {a}, {name} > {b})", not n > min(a, b)),
                (f"~({name} > {a} ? {name} < {b} : {name} < 2)", not (n < b if n > a else n < 2)),
            )
        )

    def new_input(self, category: str, shape: tuple[int, ...], values: tuple[int, int] | None = None) -> str:
        """Declare an input and draw its elements."""
        name = f"A{len(self.arrays)}"
        dtype = self.pick(DTYPES[category]) if not self.options.smooth else "float64"
        if category == "b":
            array = self.random.integers(0, 2, shape).astype(bool)
        elif self.options.smooth:
            array = np.round(self.random.uniform(-1.5, 1.5, shape), 6)
        else:
            low, high = values or ((0, 4) if dtype == "uint8" else (-3, 4))
            array = self.random.integers(low, high, shape).astype(dtype)
        exact = not self.options.smooth
        if category == "f" and self.options.special and self.chance(60):
            self.features.add("special")
            odd = self.random.choice([np.inf, -np.inf, np.nan, 0.0], shape)
            array = np.where(self.random.random(shape) < 0.3, odd, array).astype(dtype)
            exact = False
        bare = self.chance(20)
        dims = [self.dimension(n) for n in shape] if not bare else []
        self.declared[name] = name if bare else f"{name}[{', '.join(dims)}]"
        self.arrays[name] = np.asarray(array)
        self.tensors[name] = Known(shape, category, exact, 4)
        return name

    def size_input(self) -> None:
        """An integer input that stands in sizes."""
        name = f"S{len(self.sizes)}"
        value = self.integer(0, 4)
        self.declared[name] = f"{name}[]" if self.chance(70) else name
        self.arrays[name] = np.asarray(value)
        self.sizes[name] = value
        self.features.add("integer input as size")

    def size_statement(self) -> None:
        """A statement of sizes alone."""
        terms = [*self.sizes.items(), ("3", 3)]
        (a, x), (b, y) = self.pick(terms), self.pick(terms)
        name = f"P{len(self.sizes)}"
        text, value = self.pick(
            (
                (f"({a} + {b}) / 2", (x + y) // 2),
                (f"max(0, {a} - {b})", max(0, x - y)),
                (f"min({a}, {b} + 1)", min(x, y + 1)),
                (f"({a} * 2 + {b}) % 3", (x * 2 + y) % 3),
            )
        )
        self.statements.append(f"{name} = {text};")
        self.sizes[name] = value
        self.features.add("size statement")

    def tensor(self, category: str, exact: bool, ranks: tuple[int, ...] = (1, 2, 1, 2, 3, 0)) -> str:
        """A tensor to read, an input made for it if need be."""
        fit = [
            name
            for name, t in self.tensors.items()
            if t.category == category and (t.exact or not exact) and len(t.shape) in ranks
        ]
        if fit and not self.chance(30) or len(self.arrays) > 5 and fit:
            return self.pick(fit[-4:])
        if exact and (self.options.special or self.options.smooth) and category == "f":
            return self.new_input("i", tuple(self.size() for _ in range(self.pick(ranks))))
        return self.new_input(category, tuple(self.size() for _ in range(self.pick(ranks))))
