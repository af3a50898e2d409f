"""What a chain is made of.

A chain computes matrix values, of a row i and a column j, and reduces them: to statistics of rows or of columns
(`L[i] = logsumexp(S[i, j])`), or to mixtures (`O[i, f] = +(W[i, j] * V[j, f])`). A matrix value is an inner sum
(`S[i, j] = +(Q[i, e] * K[j, e])`), or made element by element of such, of rows, columns, matrices that are read, and
indices. None of them reaches memory: each kernel computes again what it needs, block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import Access, Expr, Program, Statement, accesses_in, index_variables
from tilec.transforms.util.factors import Factor


@dataclass(frozen=True)
class Inner:
    """The matrix value `output[index]`: the sum over `axis` of left * right, or of `body` term by term where these are
    None. `extent` of the axis."""

    output: str
    index: tuple[str, ...]
    axis: str
    extent: int
    left: Expr | None
    right: Expr | None
    body: Expr
    dtype: str


@dataclass(frozen=True)
class Target:
    """What is stored: `statement` with matrix values written out in `body` down to inner sums. `row` and `column`: the
    variables of the matrix's two blocked axes. `feature`: the output's variable beside the matrix's, if any. `summed`:
    the variables that it aggregates over. `bounds`: forms that must not be negative at a point; `conditions`: values
    that must hold there."""

    statement: Statement
    body: Expr
    aggregation: str
    row: str
    column: str
    feature: str | None
    summed: tuple[str, ...]
    bounds: tuple[Affine, ...]
    conditions: tuple[Expr, ...]

    @property
    def output(self) -> str:
        return self.statement.output

    @property
    def points(self) -> tuple:
        """What makes a point valid."""
        return frozenset(self.bounds), frozenset(self.conditions)


@dataclass(frozen=True)
class Reduced:
    """A target as its kernel computes it: `outer * sum(inner)`, each a product. `anchor`: the statistic of this kernel
    that stands in an exponential of the inner product as its greatest argument. `operand`: the type of a mixture's
    operands. `unrolled`: the extent of a mixture's feature where each of its values is a sum by itself, in registers.
    """

    target: Target
    inner: tuple[Factor, ...]
    feature: tuple[Factor, ...]
    outer: tuple[Factor, ...]
    anchor: str | None
    operand: str | None = None
    unrolled: int | None = None


@dataclass(frozen=True)
class RowStatement:
    """A value of each row that a kernel computes before it walks: `statement` over the kernel's variables, summed over
    `feature` where it has one. `stored`: others read it too."""

    statement: Statement
    feature: str | None
    stored: bool


@dataclass(frozen=True)
class ReadInPlace:
    """A value that a kernel reads at a computed position where it needs it, of variables `index`."""

    index: tuple[str, ...]
    body: Expr

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(a.tensor for a in accesses_in(self.body)))

    def at(self, a: Access) -> Expr:
        """The value at the place that an access names."""
        return replace_indices(self.body, {v: linear(e) for v, e in zip(self.index, a.index, strict=True)})


@dataclass(frozen=True)
class ChainKernel:
    """Targets that one kernel computes. `blocked`: the variables that programs have a block of; `batch`: those that
    they have one value of; `looped`: the blocked variable that a program walks, if any; `walked`: the others that it
    aggregates over. `extent` of all variables. `rows`: values of rows that come first. `singly`: products and sums are
    rounded one by one, so that what several kernels compute and compare is the same in all. `dealt`: for a variable of
    `walked` one of `batch`: a program has each n-th value of the first, from the second's on, which has n values.
    `in_place`: what it reads that no tensor holds, by name."""

    targets: tuple[Reduced, ...]
    inners: Mapping[str, Inner]
    blocked: tuple[str, ...]
    batch: tuple[str, ...]
    looped: str | None
    walked: tuple[str, ...]
    extent: Mapping[str, int]
    rows: tuple[RowStatement, ...] = ()
    singly: bool = False
    dealt: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, ReadInPlace] = field(default_factory=dict)

    @property
    def statements(self) -> tuple[Statement, ...]:
        return (*(r.statement for r in self.rows), *(r.target.statement for r in self.targets))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is stored."""
        stored = tuple(r.statement.output for r in self.rows if r.stored)
        return (*stored, *(r.target.output for r in self.targets))

    def tensors(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tensors that reads of these names read."""
        found: dict[str, None] = {}
        for n in names:
            found.update(dict.fromkeys([n] if n not in self.in_place else self.in_place[n].tensors))
        return tuple(found)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel may read."""
        roots = [e for r in self.targets for e in (r.target.body, *r.target.conditions)]
        roots += [i.body for i in self.inners.values()]
        roots += [r.statement.body for r in self.rows]
        own = {*self.inners, *(s.output for s in self.statements)}
        return self.tensors(a.tensor for a in accesses_in(*roots) if a.tensor not in own)

    @property
    def elementwise(self) -> bool:
        """Whether a program multiplies no matrices while it walks: then each point of its block has sums of its own,
        which are combined after the walk."""
        products = any(i.left is not None for i in self.inners.values())
        mixtures = any(r.target.feature is not None and r.unrolled is None for r in self.targets)
        return self.looped is not None and not products and not mixtures

    @property
    def first(self) -> str:
        return self.statements[0].output


def with_products(kernel: ChainKernel) -> ChainKernel:
    """The kernel with its mixtures as products where it multiplies matrices anyway: no point has sums of its own then,
    and those of a block would be combined for each value of a feature."""
    if kernel.elementwise:
        return kernel
    targets = []
    for r in kernel.targets:
        mixed = tuple(f for f in r.inner if r.unrolled and r.target.feature in index_variables(f.value))
        if mixed and mixes(mixed, kernel.blocked):
            inner = tuple(f for f in r.inner if f not in mixed)
            r = replace(r, inner=inner, feature=mixed, unrolled=None, operand="float32")
        targets.append(r)
    return replace(kernel, targets=tuple(targets))


def mixes(factors: Sequence[Factor], blocked: Sequence[str]) -> bool:
    """What is mixed has no variable of the side that programs have."""
    one_side = len(blocked) == 1 and not any(f.divides for f in factors)
    return one_side and set(blocked).isdisjoint(index_variables(*(f.value for f in factors)))


def with_reads(program: Program, kernels: Iterable[ChainKernel]) -> Program:
    """The program with what chains read among its outputs: it has to be in memory, although the matrix values that read
    it are no statements any more."""
    stated = {s.output for s in program.statements}
    read = [n for k in kernels for n in k.reads if n in stated]
    return replace(program, outputs=tuple(dict.fromkeys((*program.outputs, *read))))
