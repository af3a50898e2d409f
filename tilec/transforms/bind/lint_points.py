"""Statements none of whose points can be valid at the sizes at hand, though no size is 0 or 1, or which a quotient in
an index leaves with gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from tilec.errors import SizeMistake, TileError
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import always, constraining, demands
from tilec.ir.index import Affine, linear
from tilec.ir.program import Expr, Int, Program, Statement, index_variables, reads, reads_itself
from tilec.language.show import show_expr
from tilec.lattice.questions import InRange
from tilec.lattice.sets import Shapes, bounds, bounds_of, domain, reaches, shapes_of


def pointless(program: Program) -> Iterator[SizeMistake]:
    """One for each such statement of a bound program that stands in the source."""
    shapes = shapes_of(program)
    for s in program.statements:
        if s.span is None or reads_itself(s) or 0 in shapes[s.output]:
            continue
        if any(0 in shapes[a.tensor] for a in constraining(s.guard, s.body)):
            continue
        try:
            empty = bounds(s, shapes) is None
        except TileError:
            continue
        if empty and not _too_short(s, shapes):
            identity = "the default's" if s.default is not None else f"{AGGREGATIONS[s.aggregation].identity}"
            yield SizeMistake(
                f"no point of this statement is valid at these sizes: every element of `{s.output}` is {identity}",
                s.span,
                hint=_outside(s, shapes)
                or "an access outside of its tensor at every point, or a constraint that never holds",
            )


def _too_short(s: Statement, shapes: Shapes) -> bool:
    """Would there be a point, were each dimension of 1 one of 2? A sequence of one element has none before it."""
    grown = {name: tuple([max(n, 2) for n in shape]) for name, shape in shapes.items()}
    try:
        return bounds(replace(s, sizes=tuple([Int(n) for n in grown[s.output]])), grown) is not None
    except TileError:
        return False


def _outside(s: Statement, shapes: Shapes) -> str | None:
    """A hint that names an access that is outside of its tensor at every point; None where no access alone is."""
    for access in always(demands(s.guard, s.body)):
        try:
            inside = bounds(replace(s, guard=None, body=access, constraints=()), shapes) is not None
        except TileError:  # alone it may leave variables unbounded
            continue
        if inside:
            continue
        written = show_expr(access, tight=True)
        if any(_never_integer(linear(e)) for e in access.index):
            zero = (
                "; 1/2 stands for `e % 0` too, which has no value"
                if Fraction(1, 2) in map(_value, access.index)
                else ""
            )
            return (
                f"an index of `{written}` is never an integer, since division in an index is exact{zero}; "
                "in a size statement it rounds: H = K / 2"
            )
        told = f"`{written}` is outside of {access.tensor}, whose shape is {shapes[access.tensor]}"
        if any(not (form := linear(e)).terms and form.constant < 0 for e in access.index):
            told += "; an index does not count from the end: the last of N elements is number N - 1"
        return told
    return None


def _value(e: Expr) -> Fraction | None:
    """That of an index without variables."""
    return None if (form := linear(e)).terms else form.constant


def _never_integer(form: Affine) -> bool:
    """Whatever integers the variables of an index are."""
    d = form.denominator
    return form.is_affine and int(form.constant * d) % math.gcd(d, *(int(c * d) for _, c in form.terms)) != 0


def gaps(program: Program) -> Iterator[SizeMistake]:
    """One for each access of a bound program whose index, a fraction of variables of the output, is no integer for
    elements that nothing else fills: not a default, and no reader that reads another tensor besides."""
    shapes = shapes_of(program)
    for s in program.statements:
        if s.span is None or s.default is not None or reads_itself(s) or not _read_alone(s.output, program):
            continue
        left = set(index_variables(*s.index or ()))
        for access in always(demands(s.guard, s.body)):
            forms = [(linear(e), n) for e, n in zip(access.index, shapes[access.tensor], strict=True)]
            fractions = [
                InRange(f, n) for f, n in forms if not f.is_integral and left >= set(index_variables(f.to_expr()))
            ]
            if fractions and _leaves_gaps(s, fractions, shapes):
                yield SizeMistake(
                    f"an index of this access is no integer for some elements of `{s.output}`, which nothing fills",
                    access.span or s.span,
                    hint="division in an index is exact: (i - i % 2)/2 rounds down, a `default` fills the rest",
                )
                break


def _read_alone(name: str, program: Program) -> bool:
    """Does every statement that reads the tensor read nothing else?"""
    return all(set(reads(s)) == {name} for s in program.readers(name))


def _leaves_gaps(s: Statement, fractions: Sequence[InRange], shapes: Shapes) -> bool:
    d = domain(s, shapes)
    if d.dependent or bounds_of(d) is None:
        return False
    whole = {c: InRange(c.form * c.form.denominator, c.bound * c.form.denominator) for c in fractions}
    return not reaches(d, replace(d, conditions=tuple(whole.get(c, c) for c in d.conditions)), s.index or ())
