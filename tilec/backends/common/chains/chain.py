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

from tilec.ir.functions import call
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.program import Access, Call, Expr, Program, Statement, accesses_in, index_variables, walk
from tilec.ir.types import FLOATS, NARROW, Types
from tilec.transforms.util.factors import Factor, added, quotient_of, shared_factors, terms_of, without_factors

# of a program that sums over both sides of its matrices: how many of these it has at a time, and registers for them and
# the sums, of eight warps
BOTH_SIDES_MATRICES, BOTH_SIDES_REGISTERS = 3, 200 * 256


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
    `closing`: conditions on complete statistics of this kernel, where one of which fails a row's sum is 0. `joined`:
    further products of the sum of the target before that has the same output.
    """

    target: Target
    inner: tuple[Factor, ...]
    feature: tuple[Factor, ...]
    outer: tuple[Factor, ...]
    anchor: str | None
    operand: str | None = None
    unrolled: int | None = None
    closing: tuple[Expr, ...] = ()
    joined: bool = False


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
    `in_place`: what it reads that no tensor holds, by name. Where one block holds all of `looped` and one all of
    `blocked`, some targets may sum over the latter."""

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
        return (*(r.statement for r in self.rows), *(r.target.statement for r in self.stored))

    @property
    def stored(self) -> tuple[Reduced, ...]:
        """The targets, each output's once."""
        return tuple(r for r in self.targets if not r.joined)

    @property
    def outputs(self) -> tuple[str, ...]:
        stored = tuple(r.statement.output for r in self.rows if r.stored)
        return (*stored, *(r.target.output for r in self.stored))

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
    def exponents(self) -> list[Expr]:
        """What exponentials are taken of, in sums of them too."""
        targets = [r.target for r in self.targets]
        taken = (e.args[0] for t in targets for e in walk(t.body) if isinstance(e, Call) and e.function == "exp")
        return [*taken, *(t.body for t in targets if t.aggregation == "logsumexp")]

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

    @property
    def on_both_sides(self) -> bool:
        """Whether some targets sum over the columns and others over the rows, of which a program has all."""
        return len({self.summed_side(r.target) for r in self.targets}) > 1

    def summed_side(self, t: Target) -> str | None:
        """The side of the matrix that a target sums over."""
        across = self.looped is not None and self.looped in index_variables(*(t.statement.index or ()))
        return self.blocked[0] if across else self.looped


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


def joined_sums(program: Program, kernels: Sequence[ChainKernel], types: Types) -> tuple[Program, list[ChainKernel]]:
    """The program and its kernels with mixtures of a kernel that nothing but a statement reads, which adds them up, as
    one sum. Derivatives of products are such: `TO = TP * V + P * TV`. Registers have room for few sums."""
    found = list(kernels)
    for s in program.statements:
        alone = added_alone(s, program, types)
        inside = _added_up(s.body)
        terms = terms_of(inside, False) if alone else []
        for place, k in enumerate(found):
            own = [r for r in k.targets if r.target.output in alone and r.target.feature is not None]
            own = [r for r in own if _adds_up(k, r, own[0])]
            if len(own) < 2 or k.on_both_sides or k.elementwise:
                continue
            first, last = own[0].target.output, own[-1].target.output
            rest = [t for t in terms if t not in [alone[r.target.output] for r in own]]
            body = added([(False, r.target.statement.body) for r in own])
            whole = replace(own[0].target.statement, output=first if rest else s.output, body=body)
            made: dict[str, tuple[Statement, ...]] = {r.target.output: () for r in own}
            made[last], made[s.output] = (whole,), ()
            if rest:
                left = added([alone[first], *rest])
                value = left if inside == s.body else call(types[s.output].dtype, left)
                made[s.output] = (replace(s, body=value),)
            statements = tuple(m for x in program.statements for m in made.get(x.output, (x,)))
            program = replace(program, statements=statements)
            found[place] = replace(k, targets=_with_joined(k.targets, own, whole))
            break
    return program, found


def added_alone(s: Statement, program: Program, types: Types) -> dict[str, tuple[bool, Expr]]:
    """The terms of an elementwise statement that nothing else reads, by tensor."""
    names, terms = distinct_variables(s.index), terms_of(_added_up(s.body), False)
    if s.aggregation != "assign" or s.guards or s.constraints or s.default is not None or names is None:
        return {}
    return {
        e.tensor: (negative, e)
        for negative, e in terms
        if not negative and isinstance(e, Access) and distinct_variables(e.index) == names
        if terms.count((negative, e)) == len(program.readers(e.tensor)) == 1
        if e.tensor not in program.outputs and types[e.tensor] == types[s.output]
    }


def _added_up(e: Expr) -> Expr:
    """What a cast widens or rounds."""
    return e.args[0] if isinstance(e, Call) and e.function in FLOATS else e


def _adds_up(kernel: ChainKernel, r: Reduced, first: Reduced) -> bool:
    """Whether the sums of two targets have the same points, and may be one: what one of them alone is multiplied by
    afterwards is a number of each row that is there before."""

    def kind(x: Reduced) -> tuple:
        t = x.target
        places = t.feature, t.summed, t.points, t.statement.index
        return t.aggregation, x.anchor, x.closing, x.operand, x.unrolled, *places

    common = shared_factors(r.outer, first.outer)
    later = [f.value for x in (r, first) for f in without_factors(x.outer, common)]
    before = all(a.tensor not in kernel.outputs for a in accesses_in(*later))
    before = before and r.target.feature not in index_variables(*later)
    return before and kind(r) == kind(first) and r.target.aggregation == "sum" and r.unrolled is None


def _with_joined(targets: Sequence[Reduced], own: Sequence[Reduced], whole: Statement) -> tuple[Reduced, ...]:
    """The targets with these as one: factors that are not common stay with their products, and what is multiplied by
    the same operand is added up first."""
    outer = list(own[0].outer)
    for r in own:
        outer = shared_factors(outer, r.outer)
    products: list[Reduced] = []
    for r in own:
        inner = [*r.inner, *without_factors(r.outer, outer)]
        place = next((k for k, p in enumerate(products) if p.feature == r.feature), None)
        shared = [] if place is None else shared_factors(products[place].inner, inner)
        rescaled = r.anchor is None or any(a.tensor == r.anchor for f in shared for a in accesses_in(f.value))
        if place is None or not rescaled:
            target = replace(r.target, statement=whole)
            products.append(replace(r, target=target, inner=tuple(inner), outer=tuple(outer), joined=bool(products)))
            continue
        p = products[place]
        sums = [(False, quotient_of(without_factors(x, shared))) for x in (p.inner, inner)]
        target = replace(p.target, body=p.target.body + r.target.body)
        products[place] = replace(p, target=target, inner=(*shared, Factor(added(sums), False)))
    return tuple(x for r in targets for x in (products if r is own[-1] else () if r in own else (r,)))


def joined_sides(kernels: Sequence[ChainKernel], depends: Mapping[str, set[str]]) -> list[ChainKernel]:
    """The kernels, sums over rows in the kernel of sums over columns where a program has all of both: matrices are made
    and their operands read once for all, as for the gradients of attention within small windows. `depends`: the targets
    that each name depends on."""
    found = list(kernels)
    for k in kernels:
        for o in kernels:
            if k in found and o in found and _joins(k, o) and _independent(k, o, depends):
                both = replace(k, targets=(*k.targets, *o.targets), inners={**k.inners, **o.inners})
                found[found.index(k)] = replace(both, extent={**k.extent, **o.extent})
                found.remove(o)
    return found


def _joins(k: ChainKernel, o: ChainKernel) -> bool:
    """Whether the sums of one go over what programs of the other have blocks of, and blocks and sums have room in
    registers."""
    if len(k.blocked) != 1 or k.looped is None or (o.blocked, o.looped) != ((k.looped,), k.blocked[0]):
        return False
    if k.batch != o.batch or k.walked or o.walked or k.elementwise or o.elementwise:
        return False
    if any(k.extent[v] != n for v, n in o.extent.items() if v in k.extent):
        return False
    if any(i.left is None or i.dtype not in NARROW for i in (*k.inners.values(), *o.inners.values())):
        return False
    targets = [r.target for r in (*k.targets, *o.targets)]
    if any(r.unrolled or r.anchor or r.target.aggregation != "sum" for r in (*k.targets, *o.targets)):
        return False
    sides = (k.blocked[0], k.looped)
    if any(t.conditions or any(abs(f.coefficient(v)) > 1 for f in t.bounds for v in sides) for t in targets):
        return False
    rows, columns = (feature_block(k.extent[v]) for v in sides)
    features = [(k.extent.get(r.target.feature or "", 1), rows) for r in k.targets]
    features += [(o.extent.get(r.target.feature or "", 1), columns) for r in o.targets]
    sums = sum(n * feature_block(f) for f, n in features)
    return BOTH_SIDES_MATRICES * rows * columns + sums <= BOTH_SIDES_REGISTERS


def feature_block(extent: int) -> int:
    """The length of the block that holds so many."""
    return max(16, 1 << (extent - 1).bit_length())


def _independent(k: ChainKernel, o: ChainKernel, depends: Mapping[str, set[str]]) -> bool:
    """Whether neither kernel needs what the other one stores."""

    def needed(x: ChainKernel) -> set[str]:
        return set[str]().union(*(depends.get(n, set()) for n in x.reads))

    return needed(k).isdisjoint(o.outputs) and needed(o).isdisjoint(k.outputs)


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
