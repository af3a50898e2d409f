"""Inputs taken in float32: a program that reads 16-bit tensors as they are and computes with their float32 values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import isfinite

from tilec.ir.functions import STRUCTURAL
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    map_expressions,
    rebuild,
)
from tilec.transforms.util.naming import Names

MOST_EXACT = 2**8  # integers up to this one are numbers of every floating type


def in_float32(program: Program, inputs: Collection[str]) -> Program:
    """The same of the float32 values of 16-bit `inputs`: `X[i]` becomes `float32(X[i])`, and gradients by X have its
    type.

    Where a whole tensor has to stand (a reshape's, a default, an output) and where a pad's value has a type of its own,
    a copy in float32 stands, which a statement of its own makes.
    """
    widening = _Widening(inputs, Names.of(program))
    statements = [widening.statement(s) for s in program.statements]
    outputs = tuple([widening.copy(o) if o in inputs else o for o in program.outputs])
    copies = [Statement(copy, None, None, Call("float32", (Name(name),))) for name, copy in widening.copies.items()]
    return replace(program, outputs=outputs, statements=(*copies, *statements))


class _Widening:
    def __init__(self, inputs: Collection[str], names: Names):
        self.inputs = inputs
        self.names = names
        self.copies: dict[str, str] = {}  # by the input's name

    def copy(self, name: str) -> str:
        if name not in self.copies:
            self.copies[name] = self.names.fresh(name)
        return self.copies[name]

    def statement(self, s: Statement) -> Statement:
        s = map_expressions(s, self.expression)
        return s if s.default is None or s.default not in self.inputs else replace(s, default=self.copy(s.default))

    def expression(self, e: Expr) -> Expr:
        match e:
            case Access(name) | Name(name) if name in self.inputs:
                return Call("float32", (self._place(e) if isinstance(e, Access) else e,), span=e.span)
            case Call("shape" | "index"):  # which read no element
                return e
            case Call("as_type", (x, Name(like))) if like in self.inputs:
                return Call("float32", (self.expression(x),), span=e.span)
            case Call(function, (Name(name), *others)) if function in STRUCTURAL:
                first = Name(self.copy(name)) if name in self.inputs else e.args[0]
                return replace(e, args=(first, *others))
            case Inside():
                return replace(e, access=self._place(e.access))
            case Pad(Access(name) as access, value) if name in self.inputs:
                if _in_every_type(value):
                    return Call("float32", (replace(e, access=self._place(access)),), span=e.span)
                access = replace(self._place(access), tensor=self.copy(name))
                return replace(e, access=access, value=self.expression(value))
            case Pad(Access() as access, value):
                return replace(e, access=self._place(access), value=self.expression(value))
        return rebuild(e, self.expression)

    def _place(self, a: Access) -> Access:
        return replace(a, index=tuple(map(self.expression, a.index)))


def _in_every_type(e: Expr) -> bool:
    """Is this a literal that each floating type holds as it is?"""
    match e:
        case Call("neg", (x,)):
            return _in_every_type(x)
        case Int(value):
            return value <= MOST_EXACT
        case Float(value):
            return not isfinite(value) or value.is_integer() and value <= MOST_EXACT
    return False
