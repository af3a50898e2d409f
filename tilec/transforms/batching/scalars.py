"""Which tensors and values of a program promote as tensors of rank 0, as far as it is known before a call."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    index_variables,
    walk,
)
from tilec.ir.types import CASTS
from tilec.transforms.batching.ranks import Ranks
from tilec.transforms.util.extents import Extent


class Scalars:
    """The rules of `ir/infer.py` for `scalar` and `weak`, without types. A rank-0 name of a value that counts like a
    tensor with dimensions (an element of one, a cast literal) is none."""

    def __init__(self, program: Program, ranks: Ranks):
        self.ranks = ranks
        self._strong: set[str] = set()
        self._weak: set[str] = set()
        self._tensors = {i.name for i in program.inputs}
        for s in program.statements:
            self.add(s)

    def add(self, s: Statement) -> None:
        self._tensors.add(s.output)
        if s.aggregation == "assign" and not self.is_scalar(s.body):
            self._strong.add(s.output)
        if self.is_weak(s.body) and (s.init is None or self.is_weak(s.init)) and s.default is None:
            self._weak.add(s.output)

    def holds(self, tensor: str) -> bool:
        known = tensor in self._tensors and self.ranks.known(tensor)
        return known and self.ranks.of(tensor) == 0 and tensor not in self._strong

    def meet_others(self, s: Statement, known: Mapping[str, Extent], batched: Container[str]) -> bool:
        """Do batched tensors of rank 0 meet anything in a statement that would promote otherwise?"""
        found = [e for root in (s.guard, s.body, s.init) if root is not None for e in walk(root)]
        if any(isinstance(e, Aggregate) or isinstance(e, Call) and e.function in (*CASTS, *RANDOM) for e in found):
            return True
        read = {e.tensor if isinstance(e, Access) else e.name for e in found if isinstance(e, (Access, Name))}
        tensors = {name for name in read if name in known}
        if any(known[name] == () and name not in batched for name in tensors):
            for name in tensors:
                if name in batched:
                    self.ranks.of(name)  # of rank 0 it is as strong as they are
        return not all(name in batched and self.holds(name) for name in tensors)

    def is_weak(self, e: Expr) -> bool:
        match e:
            case Name(name):
                return name not in self._tensors or name in self._weak
            case Access(tensor):
                return tensor in self._weak
            case Aggregate():
                return self.is_weak(e.body)
            case Pad(access, value):
                return self.is_weak(access) and self.is_weak(value)
            case Call("index" | "shape"):
                return True
            case Call("as_type", (value, Name(like))):
                return like in self._weak and self.is_weak(value)
            case Call(function, args):
                if function in (*CASTS, "bool", "uint16", "uint32", *RANDOM):
                    return False
                return all(map(self.is_weak, args[function == "select" :]))
        return True

    def is_scalar(self, e: Expr) -> bool:
        match e:
            case Name(name):
                return name not in self._tensors or self.holds(name)
            case Access(tensor):
                return self.holds(tensor)
            case Aggregate():
                return not index_variables(e)
            case Pad(access, value):
                return self.is_scalar(access) and self.is_scalar(value)
            case Index():
                return False
            case Call("as_scalar" | "scatter"):
                return True
            case Call("simple_reduce", (Name(tensor), _)):  # a sum, but of a number a copy
                return not self.ranks.known(tensor) or self.ranks.of(tensor) > 0 or self.holds(tensor)
            case Call("index"):
                return False
            case Call("shape", args):
                return len(args) == 2
            case Call("as_type", (value, Name(like))):
                return self.is_scalar(value) and (like in self._weak or not self.is_weak(value))
            case Call(function, (value, *_)) if function in (*CASTS, "bool", "uint16", "uint32"):
                return self.is_scalar(value) and not self.is_weak(value)
            case Call(function) if function in RANDOM:
                return False
            case Call(function, args):
                own = args[:1] if function in (*STRUCTURAL, "reverse_grad") else args
                return all(map(self.is_scalar, own))
        return isinstance(e, (Int, Float, Inside))


def never_outside(value: Expr, other: Expr) -> Expr:
    """`pad(A[], other)` with a value in place of A[]: of the type of both, at the points that `other` has."""
    always: Expr = Int(1)
    if any(isinstance(e, (Access, Inside)) for e in walk(other)):  # in a branch alone these would not constrain
        always = Call("or", (Call("eq", (other, other)), Call("ne", (other, other))))
    return Call("select", (always, value, other))
