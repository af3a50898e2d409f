"""Random statements of mixed element types, as one expression and with every subexpression named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np

from tilec.errors import TileError

TYPES = ("float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool")
BINARY = ("+", "-", "*", "/", "%", "<", "==", "max", "min", "pow", "&", "<<")
UNARY = ("-", "abs", "sqrt", "floor", "float32", "float16", "int64", "as_bool", "sign", "ident", "relu", "~", "exp")
SIZES = {"i": 2, "j": 3}


class Expression:
    """A tree of calls over leaves: its text, the index variables that it depends on, its parts."""

    def __init__(self, template: str, parts: tuple[Expression, ...] = (), variables: frozenset[str] = frozenset()):
        self.template, self.parts = template, parts
        self.variables = variables.union(*(p.variables for p in parts))

    def text(self) -> str:
        return self.template.format(*(f"({p.text()})" if p.parts else p.text() for p in self.parts))


class Drawing:
    """`indexed`: over elements; otherwise over whole tensors, which broadcast."""

    def __init__(self, seed: int, indexed: bool):
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.indexed, self.arrays = indexed, {}

    def leaf(self) -> Expression:
        kind = self.random.choice(["number", "size", "tensor", "tensor", "tensor", "rank 0", "rank 0", "index"])
        if kind == "number":
            return Expression(self.random.choice(["2", "0.5", "3", "1"]))
        if kind == "size":
            return Expression("N")
        if kind == "index" and self.indexed:
            v = self.random.choice("ij")
            return Expression(v, variables=frozenset(v))
        names = "" if kind == "rank 0" else self.random.choice(["i", "j", "ij", "ij"])
        name = f"A{len(self.arrays)}"
        dtype = self.random.choice(TYPES)
        shape = [SIZES[v] for v in names]
        self.arrays[name] = self.numbers.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)
        if self.indexed:
            return Expression(f"{name}[{', '.join(names)}]", variables=frozenset(names))
        if names == "i":
            self.arrays[name] = self.arrays[name].reshape(2, 1)
        return Expression(name, variables=frozenset(names))

    def draw(self, depth: int) -> Expression:
        if not depth or self.random.random() < 0.15:
            return self.leaf()
        kind = self.random.random()
        if kind < 0.2:
            return Expression("{0} ? {1} : {2}", tuple(self.draw(depth - 1) for _ in range(3)))
        if kind < 0.45:
            name = self.random.choice(UNARY)
            return Expression(name + ("{0}" if name in "-~" else "({0})"), (self.draw(depth - 1),))
        name = self.random.choice(BINARY)
        parts = self.draw(depth - 1), self.draw(depth - 1)
        return Expression(f"{name}({{0}}, {{1}})" if name.isalpha() else f"{{0}} {name} {{1}}", parts)


def named(seed: int, indexed: bool) -> tuple[str, str, dict[str, np.ndarray]]:
    """(as one expression, every subexpression named, inputs)."""
    drawing = Drawing(seed, indexed)
    root = drawing.draw(3)
    drawing.arrays["Z"] = np.ones((2, 3), bool)  # gives the result its shape
    statements: list[str] = []

    def visit(e: Expression) -> str:
        if not e.parts:
            return e.text()
        value = e.template.format(*map(visit, e.parts))
        name = f"T{len(statements)}"
        names = [v for v in SIZES if v in e.variables]
        left = f"{name}[{', '.join(names)} : {', '.join(str(SIZES[v]) for v in names)}]"
        statements.append(f"{left if indexed else name} = {value};")
        return f"{name}[{', '.join(names)}]" if indexed else name

    value = visit(root)
    declared = [f"{n}[{', '.join(map(str, a.shape))}]" for n, a in drawing.arrays.items()]
    header = f"function ({', '.join(declared)}, U[N]) -> (Y)"
    drawing.arrays["U"] = np.zeros(3)
    result = "Y[i, j : 2, 3] = Z[i, j] ? ({}) : 0;" if indexed else "Y = Z ? ({}) : 0;"
    whole, apart = result.format(root.text()), " ".join([*statements, result.format(value)])
    return f"{header} {{ {whole} }}", f"{header} {{ {apart} }}", drawing.arrays


Run = Callable[[str, Sequence[np.ndarray]], np.ndarray]


def agree(run: Run, indexed: bool, seeds: Iterable[int]) -> int:
    """Compare these expressions with their named forms; how many had values to compare."""
    compared = 0
    for seed in seeds:
        whole, apart, inputs = named(seed, indexed)
        arrays = [np.asarray(a) for a in inputs.values()]
        one, other = _outcome(run, whole, arrays), _outcome(run, apart, arrays)
        if isinstance(one, str) or isinstance(other, str):
            assert isinstance(one, str) and one == other, (whole, apart)
            continue
        assert one.dtype == other.dtype, (whole, apart)
        if "float16" not in whole and all(a.dtype != np.float16 for a in arrays):  # a name rounds to 16 bits
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=f"{whole}\n{apart}")
            compared += 1
    return compared


def _outcome(run: Run, source: str, arrays: Sequence[np.ndarray]) -> np.ndarray | str:
    """The result, or the name of the mistake that refuses the text."""
    try:
        return run(source, arrays)
    except TileError as error:
        return type(error).__name__
