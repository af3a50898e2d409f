"""Statistics of chains, and logarithms of sums, in float32.

What a row of a matrix is reduced to stands for all of its 16-bit values, and gradients take the exponential of its
difference from them: rounded to 16 bits it would cost all of their accuracy. So it is held in float32 where it is small
or such an exponential is taken; types of products' operands and of outputs stay what they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.recognise import chained
from tilec.backends.common.chains.values import plain_index, rebuilt, reduction_variables
from tilec.ir.functions import COMPARISONS, call
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    index_variables,
    map_values,
    reads,
    reads_itself,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, promote
from tilec.transforms.util.factors import Factor, factors_of, quotient_of
from tilec.transforms.util.naming import Names

_MANY = 4  # elements of a tensor that is read to one of the result: a float32 costs little beside them


def widen_statistics(program: Program, inputs: Types) -> Program:
    """The flat program with statistics that its chains read or make in float32. `inputs`: types of the inputs."""
    types = infer(program, inputs)
    if not any(t.dtype in NARROW for t in types.values()):
        return program
    chains = _statistics(program, types)
    rows = _row_statistics(program, types) - chains
    return _widened(program, inputs, types, chains, rows) if chains or rows else program


def _row_statistics(program: Program, types: Types) -> set[str]:
    """Where there are extrema of computed values: those, sums over such rows, and what a pass makes of sums in float32
    to be one of 16 bits. Their own kernel has the extremum as it was computed, and exponentials of differences from it
    sums that belong to it: a gradient that reads it rounded is off by one factor in all elements of a row."""
    extrema: set[str] = set()
    made = {s.output: s for s in program.statements}
    read = {n for s in program.statements for n in reads(s)}
    found: set[str] = set()
    for name, s in made.items():
        if types[name].dtype not in NARROW or name not in read or name in program.outputs or not plain_index(s):
            continue
        if s.aggregation in ("sum", "mean", "max", "min"):
            exact = isinstance(s.body, Access) and s.aggregation in ("max", "min") and s.body.tensor not in made
            if _of_one_tensor(s) and not exact and _is_small(s, types):
                found.add(name)
                extrema |= {name} if s.aggregation in ("max", "min") else set()
        elif isinstance(s.body, Call) and s.body.function == types[name].dtype and s.body.span is None:
            totals = [made[n] for n in reads(s) if n in made and types[n].dtype == "float32"]
            if any(t.aggregation == "sum" and _is_small(t, types) for t in totals):
                found.add(name)
    return found if extrema else set()


def _statistics(program: Program, types: Types) -> set[str]:
    """Statements of 16 bits that are no matrix values and that chains read as values of rows or columns, chains' own
    statistics, and logarithms of sums: small ones, and those that an exponential reads. What products multiply and
    matrices that are read are as large as inputs: they stay as they are."""
    kernels = chained(program, types).kernels.values()
    read = {n for k in kernels for n in k.reads} - {n for k in kernels for n in _large(k)}
    made = {r.target.output for k in kernels for r in k.targets if r.target.feature is None and k.looped}
    stated = {s.output for s in program.statements}
    features = {r.target.output for k in kernels for r in k.targets if r.target.feature is not None}
    found = {n for n in (read | made) & stated - features if plain_index(_of(program, n))}
    logs = {s.output: s for s in program.statements if _is_logarithm(s)}
    small = {n for n, s in logs.items() if s.aggregation == "logsumexp" and _is_small(s, types)}
    found |= small & {n for s in program.statements for n in reads(s)}
    every = (e for s in program.statements for e in walk(*expressions(s)))
    exponents = (e for e in every if isinstance(e, Call) and e.function == "exp")
    found |= logs.keys() - features & {a.tensor for e in exponents for a in accesses_in(e)}
    return {n for n in found if types[n].dtype in NARROW}


def _large(kernel: ChainKernel) -> set[str]:
    """Names of what a kernel reads along the axis of a product, and for each row and each column."""
    found: set[str] = set()
    for i in kernel.inners.values():
        found |= {a.tensor for a in accesses_in(i.body) if i.axis in index_variables(a)}
    for row in kernel.rows:
        found |= {a.tensor for a in accesses_in(row.statement.body) if row.feature in index_variables(a)}
    for r in kernel.targets:
        t = r.target
        for a in accesses_in(t.body, *t.conditions):
            used = set(index_variables(a))
            if t.feature in used or {t.row, t.column} <= used:
                found.add(a.tensor)
    return {*found, *kernel.tensors(found)}


def _is_logarithm(s: Statement) -> bool:
    """Of a sum of exponentials."""
    if reads_itself(s) or s.index is None:
        return False
    body = s.body
    while isinstance(body, Call) and body.function in NARROW and len(body.args) == 1:
        (body,) = body.args
    return (
        s.aggregation == "logsumexp"
        or s.aggregation == "assign"
        and isinstance(body, Call)
        and body.function == "logaddexp"
    )


def _is_small(s: Statement, types: Types) -> bool:
    read = (math.prod(types[a.tensor].shape) for a in accesses_in(s.body))
    return _MANY * math.prod(types[s.output].shape) <= max(read, default=0)


def _of_one_tensor(s: Statement) -> bool:
    """Whether a statement has one point for each element of a tensor that it reads; a product of matrices has more."""
    return any(set(variables_of(s)) <= set(index_variables(a)) for a in accesses_in(s.body))


def _of(program: Program, name: str) -> Statement:
    return next(s for s in program.statements if s.output == name)


def _widened(program: Program, inputs: Types, types: Types, chains: Collection[str], rows: Collection[str]) -> Program:
    """The program with these tensors, and what is made of them, in float32. Of what `rows` make so operands of
    products and sides of comparisons keep 16 bits, which `chains` say for themselves."""
    names = {*chains, *rows}
    fresh = Names.of(program)
    renamed = {n: fresh.fresh(f"{n}_wide") for n in names if n in program.outputs}
    known: dict[str, TensorType] = dict(inputs)
    before = {**types, **{new: types[n] for n, new in renamed.items()}}
    products = [s for s in program.statements if reduction_variables(s) and not _of_one_tensor(s)]
    operands = {a.tensor for s in products for a in accesses_in(s.body)}
    by_rows: set[str] = set()  # what is in float32 by `rows` alone
    done: list[Statement] = []

    def add(s: Statement) -> None:
        known[s.output] = statement_type(s, known)
        done.append(s)

    for s in program.statements:
        old = types[s.output].dtype
        narrow = s.output
        s = _reading(s, renamed)
        if not by_rows.isdisjoint(reads(s)):
            s = _as_narrow(s, by_rows, before) if reads_itself(s) else s
            s = map_values(s, lambda e: _comparing(e, before, known))
        if narrow in names:
            body = s.body
            if isinstance(body, Call) and body.function == old:
                (body,) = body.args
            s = replace(s, output=renamed.get(narrow, narrow), body=call("float32", body))
            add(s)
            by_rows |= {s.output} & {renamed.get(n, n) for n in rows}
            if narrow in renamed:
                whole = tuple(Index(f"i{d}") for d in range(len(types[narrow].shape)))
                sizes = tuple(map(Int, types[narrow].shape))
                add(Statement(narrow, whole, sizes, call(old, Access(s.output, whole)), span=s.span))
            continue
        assigned = reads_itself(s) and s.aggregation == "assign"
        if old in NARROW and assigned and (s.output in program.outputs or reduction_variables(s)):
            s = _as_narrow(s, _widened_reads(s, before, known), before)
        if old in NARROW and statement_type(s, known).dtype != old:
            widened = _widened_reads(s, before, known)
            of_rows = by_rows.issuperset(widened)
            own = {**known, s.output: types[s.output]} if reads_itself(s) else known
            s = _with_operands(s, types, own, renamed, of_rows or s.output in program.outputs)
            if of_rows and s.output not in program.outputs and statement_type(s, known).dtype != old:
                if s.output in operands and not reduction_variables(s):
                    s = replace(s, body=call(old, s.body))
                else:
                    by_rows.add(s.output)
            if s.output in program.outputs and statement_type(s, known).dtype != old:
                if reads_itself(s) and s.aggregation != "assign":
                    return program  # whose gradient finds the extrema of what it stored
                if reduction_variables(s):
                    float32_name = fresh.fresh(f"{s.output}_wide")
                    whole = tuple(Index(v) for v in plain_index(s) or ())
                    if not whole and s.index:
                        return program
                    add(replace(s, output=float32_name))
                    s = replace(
                        s, body=call(old, Access(float32_name, whole)), aggregation="assign", guard=None, constraints=()
                    )
                else:
                    s = replace(s, body=call(old, s.body))
        add(s)
    made = replace(program, statements=tuple(done))
    return _rounded_where_made(made, types, known)


def _widened_reads(s: Statement, before: Types, known: Types) -> list[str]:
    """Tensors that a statement reads, other than its own, and that have another type than before."""
    others = [n for n in reads(s) if n != s.output]
    return [n for n in others if known[n].dtype != before.get(n, known[n]).dtype]


def _rounded_where_made(program: Program, types: Types, known: Types) -> Program:
    """The program with values that all readers round to the type that they had rounded where they are made: stored,
    they take half the room, and products read them as they are. Of what is written to computed places, which is stored
    in any case, others may add up what had that type."""
    read = Counter(a.tensor for s in program.statements for a in accesses_in(*expressions(s)))
    every = (e for s in program.statements for e in walk(*expressions(s)))
    rounded = Counter(
        (e.function, e.args[0].tensor)
        for e in every
        if isinstance(e, Call) and e.function in (*NARROW, "float32") and isinstance(e.args[0], Access)
    )

    def fits(s: Statement) -> bool:
        times = rounded[types[s.output].dtype, s.output]
        others = 0 if plain_index(s) else rounded["float32", s.output]
        return times > 0 and read[s.output] == times + others

    chosen = {
        s.output: types[s.output].dtype
        for s in program.statements
        if s.output in types and types[s.output].dtype in NARROW and known[s.output].dtype == "float32" and fits(s)
        if s.output not in program.outputs and not reads_itself(s) and not reduction_variables(s)
    }

    def visit(e: Expr) -> Expr:
        match e:
            case Call(function, (Access(tensor) as a,)) if tensor in chosen and function in NARROW:
                return a
        return e if not children(e) or isinstance(e, Inside) else rebuild(e, visit)

    def changed(s: Statement) -> Statement:
        s = map_values(s, visit)
        return replace(s, body=call(chosen[s.output], s.body)) if s.output in chosen else s

    return replace(program, statements=tuple(map(changed, program.statements))) if chosen else program


def _as_narrow(s: Statement, names: Collection[str], before: Types) -> Statement:
    """A recurrence, whose states keep their type, with these tensors read as they were."""

    def visit(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in names:
            return call(before[e.tensor].dtype, e)
        return e if isinstance(e, Inside) else rebuild(e, visit)

    return replace(map_values(s, visit), init=None if s.init is None else visit(s.init))


def _comparing(e: Expr, before: Types, known: Types) -> Expr:
    """The expression with comparisons of 16-bit values as they were, so that an extremum is found again."""
    e = rebuild(e, lambda x: _comparing(x, before, known))
    if not isinstance(e, Call) or e.function not in COMPARISONS:
        return e
    old = promote(*(expression_type(a, before) for a in e.args)).dtype
    if old not in NARROW or promote(*(expression_type(a, known) for a in e.args)).dtype == old:
        return e
    return replace(e, args=tuple(call(old, a) if expression_type(a, known).dtype == "float32" else a for a in e.args))


def _reading(s: Statement, renamed: Mapping[str, str]) -> Statement:
    def read(a: Access) -> Access:
        return replace(a, tensor=renamed.get(a.tensor, a.tensor))

    return map_values(s, lambda e: rebuilt(e, read)) if renamed else s


def _with_operands(s: Statement, types: Types, known: Types, renamed: Mapping[str, str], outer: bool) -> Statement:
    """A sum of products with operands of the types that they had. `outer`: factors outside of the sum too."""
    summed = set(reduction_variables(s))
    if s.aggregation != "sum" or not summed:
        return s
    before = {**types, **{new: types[old] for old, new in renamed.items()}}
    old = types[s.output].dtype
    same: list[Factor] = []
    changed: list[Factor] = []
    for f in factors_of(s.body, before):
        alike = expression_type(f.value, before).dtype == expression_type(f.value, known).dtype
        (same if alike else changed).append(f)
    if not changed or not (outer or summed & set(index_variables(*(f.value for f in changed)))):
        return s
    return replace(s, body=quotient_of([*same, *(Factor(call(old, x), False) for x in _by_operand(changed))]))


def _by_operand(factors: Sequence[Factor]) -> list[Expr]:
    """Products of the factors of each operand: what has the variables of another factor goes with it."""
    sets = [set(index_variables(f.value)) for f in factors]
    widest = [v for k, v in enumerate(sets) if not any(v < w for w in sets) and v not in sets[:k]]
    operands: list[list[Factor]] = [[] for _ in widest]
    for f, own in zip(factors, sets, strict=True):
        operands[next(k for k, w in enumerate(widest) if own <= w)].append(f)
    return [quotient_of(o) for o in operands]
