"""What the text of a Hopper kernel depends on, and how text is put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from tilec.backends.triton.matmul.hopper.epilogue import EpilogueText
from tilec.backends.triton.matmul.hopper.form import Digit, HopperProblem, Same, Variable, coefficients
from tilec.backends.triton.matmul.hopper.views import View
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, LineBuilder
from tilec.ir.index import Affine

IMPORTED_NAMES = frozenset(
    """seen_as gl range float mbarrier tma copy_in copy_out fence_async_shared warpgroup_mma warpgroup_mma_init
    warpgroup_mma_wait""".split()
)

ALIGNED = 16  # elements: what Triton finds out by itself that it divides


@dataclass(frozen=True)
class Design:
    """What a kernel's text depends on. `loose`: axes of each operand that can be left by points whose variables are in
    range; `tails`: summed variables
    past whose last value one operand alone is zero; `guards`: axes of the output that end some classes' rows or
    columns; `ones`: stride parameters that are 1; `unrolled`: the column variable of which a program computes several
    boxes, and how many; `same`: as a HopperDot's; `epilogue`: what is done to sums before they are stored;
    `sums_stored`: they are stored as they are too; `by_pieces`: a tile has its epilogue piece by piece, in a loop;
    `factor`: what divides the places where rows of the output begin and end, up to ALIGNED."""

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
    unrolled: tuple[str, int] | None = None
    same: Same | None = None
    epilogue: EpilogueText | None = None
    sums_stored: bool = False
    by_pieces: bool = False
    factor: int = ALIGNED

    @property
    def on_tile(self) -> EpilogueText | None:
        """The epilogue of a tile, which a part of a sum does not have."""
        return None if self.split else self.epilogue

    @property
    def exact(self) -> bool:
        """Must sums that are not finite be taken again?"""
        return bool(self.tails or any(self.loose.values()) or self.same)

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

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of a program's sums."""
        return ("acc",) if self.unrolled is None else tuple(f"acc_{k}" for k in range(self.unrolled[1]))

    @property
    def results(self) -> tuple[str, ...]:
        """These sums once all is multiplied."""
        return ("sums",) if self.unrolled is None else tuple(f"sums[{k}]" for k in range(self.unrolled[1]))

    def hinted(self, number: str) -> str:
        """The text of a stride or size of the output, of which Triton is to know what divides it."""
        return f"{number} // {self.factor} * {self.factor}" if 1 < self.factor < ALIGNED else number

    def reach(self, name: str) -> str:
        """A variable's extent in a program's tile: that of one box or of several."""
        several = self.unrolled is not None and self.unrolled[0] == name
        return f"{len(self.sums)} * B_{name}" if several else f"B_{name}"

    @property
    def counted_digits(self) -> tuple[Digit, ...]:
        """Digits that a greater one follows: what is left of a number once it is divided by their sizes."""
        digits = self.problem.digits
        return tuple(d for d, greater in pairwise(digits) if d.of == greater.of)

    def symbols(self, operand: str) -> tuple[str, ...]:
        """What an operand's element depends on."""
        return tuple(dict.fromkeys(name for form in self.forms[operand] for name, _ in coefficients(form)))


class Lines(LineBuilder):
    """`open`: the blocks around the innermost one."""

    def __init__(self) -> None:
        self.open: list[list[CodeLine]] = [[]]

    @property
    def lines(self) -> list[CodeLine]:
        return self.open[-1]

    @contextmanager
    def _block(self, made: Callable[[tuple[CodeLine, ...]], CodeLine]) -> Iterator[None]:
        self.open.append([])
        yield
        self.add(made(tuple(self.open.pop())))

    def loop(self, counter: str, over: str) -> AbstractContextManager[None]:
        return self._block(lambda body: ForLoop(counter, over, body))

    def branch(self, test: str) -> AbstractContextManager[None]:
        return self._block(lambda body: If(test, body))

    def otherwise(self) -> AbstractContextManager[None]:
        """What is done where the test of the branch before does not hold."""
        branch = self.lines.pop()
        assert isinstance(branch, If)
        return self._block(lambda body: replace(branch, orelse=body))


def spell(form: Affine, names: Mapping[str, str] | None = None) -> str:
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
