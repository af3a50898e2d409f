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

WIDE = "float32"
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
    copies = [Statement(copy, None, None, Call(WIDE, (Name(name),))) for name, copy in widening.copies.items()]
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
        default = self.copy(s.default) if s.default in self.inputs else s.default
        return replace(map_expressions(s, self.expression), default=default)

    def expression(self, e: Expr) -> Expr:
        match e:
            case Access(name) | Name(name) if name in self.inputs:
                return Call(WIDE, (rebuild(e, self.expression),), span=e.span)
            case Call("shape" | "index"):  # which read no element
                return e
            case Call("as_type", (x, Name(like))) if like in self.inputs:
                return Call(WIDE, (self.expression(x),), span=e.span)
            case Call(function, (Name(name), *others)) if function in STRUCTURAL:
                first = Name(self.copy(name)) if name in self.inputs else e.args[0]
                return replace(e, args=(first, *others))
            case Inside():
                return replace(e, access=rebuild(e.access, self.expression))
            case Pad(Access(name) as access, value) if name in self.inputs:
                access = rebuild(access, self.expression)
                if _in_every_type(value):
                    return Call(WIDE, (replace(e, access=access),), span=e.span)
                return replace(e, access=replace(access, tensor=self.copy(name)), value=self.expression(value))
            case Pad():
                return replace(e, access=rebuild(e.access, self.expression), value=self.expression(e.value))
        return rebuild(e, self.expression)


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
