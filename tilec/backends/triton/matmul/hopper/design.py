"""What the text of a Hopper kernel depends on, and how text is put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilec.backends.triton.matmul.hopper.form import HopperProblem, Variable, coefficients
from tilec.backends.triton.matmul.hopper.views import View
from tilec.ir.index import Affine


@dataclass(frozen=True)
class Design:
    """What a kernel's text depends on. `loose`: axes of each operand that can be left by points whose variables are in
    range; `tails`: summed variables
    past whose last value one operand alone is zero; `guards`: axes of the output that end some classes' rows or
    columns; `ones`: stride parameters that are 1."""

    name: str
    problem: HopperProblem
    left: View
    right: View
    out: View | None
    loose: Mapping[str, tuple[int, ...]]
    tails: tuple[str, ...]
    guards: tuple[int, ...]
    ones: frozenset[str]
    split: bool
    scaled: bool
    consumers: int
    boxed: frozenset[str]

    @property
    def exact(self) -> bool:
        """Must sums that are not finite be taken again?"""
        return bool(self.tails or any(self.loose.values()))

    @property
    def specialise(self) -> bool:
        """Do copies have a warp of their own?"""
        return self.consumers > 0

    @property
    def forms(self) -> Mapping[str, tuple[Affine, ...]]:
        return {"left": self.problem.left, "right": self.problem.right, "out": self.problem.out}

    @property
    def summed(self) -> tuple[Variable, ...]:
        """Summed variables, outermost first: those that are contiguous in an operand innermost."""
        inner = (self.left.inner, self.right.inner)
        return tuple(sorted(self.problem.summed, key=lambda v: v.name in inner))

    def symbols(self, operand: str) -> tuple[str, ...]:
        """What an operand's element depends on."""
        return tuple(dict.fromkeys(name for form in self.forms[operand] for name, _ in coefficients(form)))


class Lines:
    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def __call__(self, *lines: str) -> None:
        self.lines.extend("    " * self.depth + line if line else "" for line in lines)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.depth += 1
        yield
        self.depth -= 1


def spell(form: Affine, names: Mapping[str, str] | None = None) -> str:
    """A form as an expression."""
    text = ""
    for name, c in coefficients(form):
        shown = (names or {}).get(name, name)
        term = shown if abs(c) == 1 else f"{abs(c)} * {shown}"
        text += (f" {'-' if c < 0 else '+'} " if text else "-" if c < 0 else "") + term
    constant = int(form.constant)
    if not text:
        return str(constant)
    return text + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")


def joined(terms: Sequence[str], operator: str, empty: str) -> str:
    return f" {operator} ".join(terms) or empty
