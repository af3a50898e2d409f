"""What handlers write with: tensors as Tile expressions, names, indices, statements."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch.fx import Node

from tilec.errors import TileError, Unsupported
from tilec.ir.types import DTYPES
from tilec.torch_import.sizes import SizeNames

INDICES = "i j k l m n p q r s t u v w".split()
LONGEST_INLINE = 60  # characters of an expression that is not given a name of its own
PRIMARY = 100  # binds tighter than every operator


@dataclass(frozen=True)
class Term:
    """A tensor: `text` is its name, or an elementwise expression whose loosest operator binds as `level` says."""

    text: str
    shape: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype
    level: int = PRIMARY
    is_name: bool = True
    hint: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)


class Writer:
    """What handlers write with: names, indices, statements."""

    def __init__(self) -> None:
        self.sizes = SizeNames()
        self.statements: list[str] = []
        self.taken: set[str] = set()
        self.quotients: dict[str, str] = {}
        self.node: Node | None = None
        self.results: Sequence[torch.Tensor] = ()

    @property
    def meta(self) -> torch.Tensor:
        """The shape and the element type of what the operation at work makes, the first of several."""
        return self.results[0]

    def of(self, meta: torch.Tensor) -> Writer:
        """The same writer for another result of the operation."""
        writer = copy(self)
        writer.results = (meta,)
        return writer

    def fresh(self, hint: str) -> str:
        """A name for a tensor that nothing else has."""
        words = [w for w in re.split(r"[^A-Za-z0-9]+", hint) if w]
        base = "".join(w[:1].upper() + w[1:] for w in words) or "X"
        base = base if base[0].isalpha() else f"X{base}"
        number, name = 2, base
        while name in self.taken or keyword.iskeyword(name):
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return name

    def indices(self, count: int, besides: Sequence[str] = ()) -> list[str]:
        """So many index variables, none of `besides`."""
        free = [i for i in (*INDICES, *(f"i{n}" for n in range(1, 50))) if i not in besides]
        return free[:count]

    def named(self, value: Term, hint: str = "") -> Term:
        """The same tensor under a name, for accesses."""
        if value.is_name:
            return value
        name = self.fresh(hint or value.hint or self.hint())
        self.statements.append(f"{name} = {value.text};")
        return Term(name, value.shape, value.dtype)

    def access(self, value: Term, indices: Sequence[str]) -> str:
        """`X[i, j]`; a dimension of 1 that meets a longer one is read at 0 by whoever passes "0" there."""
        return f"{self.named(value).text}[{', '.join(indices)}]"

    def broadcast(self, value: Term, indices: Sequence[str], shape: Sequence[int | torch.SymInt]) -> str:
        """An access as NumPy broadcasts a tensor to `shape`, whose indices are given."""
        own = indices[len(indices) - value.rank :]
        far = shape[len(shape) - value.rank :]
        there = (
            "0" if self.size(n) == "1" and self.size(m) != "1" else i
            for n, m, i in zip(value.shape, far, own, strict=True)
        )
        return self.access(value, list(there))

    def size(self, size: int | torch.SymInt) -> str:
        return self.sizes.text(size)

    def offset(self, size: int | torch.SymInt) -> str:
        """A size for use in an index, where division is exact: a quotient gets a name, as sizes truncate."""
        text = self.size(size)
        if "/" not in text:
            return text
        if text not in self.quotients:
            self.quotients[text] = self.fresh("Size")
            self.statements.append(f"{self.quotients[text]} = {text};")
        return self.quotients[text]

    def state(
        self,
        indices: Sequence[str],
        shape: Sequence[int | torch.SymInt],
        body: str,
        *,
        dtype: torch.dtype | None = None,
        constraints: Sequence[str] = (),
        hint: str = "",
    ) -> Term:
        """A statement `NAME[indices : shape] = body, constraints;`, of the result's type if no other is named."""
        name = self.fresh(hint or self.hint())
        sizes = f" : {', '.join(map(self.size, shape))}" if shape else ""
        left = f"{name}[{', '.join(indices)}{sizes}]"
        self.statements.append(f"{left} = {', '.join([body, *constraints])};")
        return Term(name, tuple(shape), dtype or self.meta.dtype)

    def result(self, indices: Sequence[str], body: str, constraints: Sequence[str] = ()) -> Term:
        """The statement that makes the operation's result."""
        return self.state(indices, self.meta.shape, body, constraints=constraints)

    def expression(self, text: str, level: int = PRIMARY) -> Term:
        """The operation's result as an elementwise expression."""
        return Term(text, tuple(self.meta.shape), self.meta.dtype, level, is_name=False)

    def read(self, x: Term, place: Callable[[list[str]], Sequence[str]]) -> Term:
        """A statement whose elements are elements of x: `place` gives their indices by those of the result."""
        out = self.indices(self.meta.dim())
        return self.result(out, self.access(x, place(out)))

    def hint(self) -> str:
        """What the operation at work calls its result."""
        assert self.node is not None
        return re.sub(r"_default|_\d+$", "", self.node.name)


def constant(writer: Writer, tensor: torch.Tensor) -> Term:
    """A tensor that the code holds, where it is a single number."""
    if tensor.numel() != 1:
        hint = "pass it as an argument, then it becomes an input"
        raise Unsupported(f"the code holds a constant tensor of shape {tuple(tensor.shape)}", hint=hint)
    return writer.state([], [], f"{name_of(tensor.dtype)}({tensor.item()})", dtype=tensor.dtype, hint="Constant")


def converted_term(value: Term, dtype: torch.dtype) -> Term:
    """A tensor in an element type, as it is where it has that."""
    if value.dtype == dtype:
        return value
    return Term(f"{name_of(dtype)}({value.text})", value.shape, dtype, is_name=False)


def name_of(dtype: torch.dtype) -> str:
    """Tile's name of an element type."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Unsupported(f"element type {name} is not supported")
    return name


def refuse(what: str) -> TileError:
    return Unsupported(f"no translation of {what}")
