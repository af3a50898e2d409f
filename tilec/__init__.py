"""tilec: a compiler for tensor expressions with automatic differentiation.

    f = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")
    c = f(a, b)                 # torch tensors, NumPy arrays, Python numbers; torch.autograd works through it
    da, db = f.grad()(a, b, dc) # the gradient, a Function like any other
    print(f.grad())             # ... which is a Tile program

`load` compiles a file, `interpret` is the slow exact meaning (the oracle), `spec` stands for an argument in
`Function.lower`. Everything that can be wrong is a subclass of `TileError` and points at its place in the source.
"""

from __future__ import annotations

from tilec import errors
from tilec.api import compile, interpret, load
from tilec.arguments import Spec, spec
from tilec.errors import (
    AffineMistake,
    AggregationMistake,
    ArityMistake,
    AssignmentMistake,
    InputMistake,
    InternalMistake,
    NameMistake,
    NoSchedule,
    RankMistake,
    SizeMistake,
    SyntaxMistake,
    TileError,
    TypeMistake,
    UnboundIndex,
    Unsupported,
    WriteConflict,
)
from tilec.function import Function, Lowered

__version__ = "0.1.0"

__all__ = [
    "AffineMistake",
    "AggregationMistake",
    "ArityMistake",
    "AssignmentMistake",
    "Function",
    "InputMistake",
    "InternalMistake",
    "Lowered",
    "NameMistake",
    "NoSchedule",
    "RankMistake",
    "SizeMistake",
    "Spec",
    "SyntaxMistake",
    "TileError",
    "TypeMistake",
    "UnboundIndex",
    "Unsupported",
    "WriteConflict",
    "compile",
    "errors",
    "interpret",
    "load",
    "spec",
]
