"""tilec: a compiler for tensor expressions with automatic differentiation.

    f = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")
    c = f(a, b)                 # torch tensors, NumPy arrays, Python numbers; torch.autograd works through it
    da, db = f.grad()(a, b, dc) # the gradient, a Function like any other
    print(f.grad())             # ... which is a Tile program

    compile, load   Tile text, or a file of it -> a Function: call it, differentiate it, look inside
    from_torch      a function or module of torch -> the same in Tile
    gallery         some 100 operations to start from
    nn.Tile         a torch.nn.Module some of whose inputs are parameters
    spec            shape and element type in the place of a tensor, for `Function.lower`, `tune` and `build`
    tune            measure kernels for given shapes, and keep the fastest
    build           compile kernels ahead of time into a package, which `package.load` opens
    interpret       the slow exact meaning, which everything else is tested against

Every mistake raises a subclass of `TileError`, which says what is wrong, where in the text, and what to do.
"""

from __future__ import annotations

from tilec.late import collection_put_off

with collection_put_off():  # importing makes many objects
    from tilec import errors, gallery, nn, package
    from tilec.api import build, compile, interpret, load, tune
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
        OutOfMemory,
        RankMistake,
        SizeMistake,
        SyntaxMistake,
        TileError,
        TileWarning,
        TypeMistake,
        UnboundIndex,
        Unsupported,
        WriteConflict,
    )
    from tilec.function import Function, Saved
    from tilec.lowered import Lowered
    from tilec.notebook.magic import load_ipython_extension
    from tilec.torch_import import from_torch
    from tilec.version import __version__

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
    "OutOfMemory",
    "RankMistake",
    "Saved",
    "SizeMistake",
    "Spec",
    "SyntaxMistake",
    "TileError",
    "TileWarning",
    "TypeMistake",
    "UnboundIndex",
    "Unsupported",
    "WriteConflict",
    "__version__",
    "build",
    "compile",
    "errors",
    "from_torch",
    "gallery",
    "interpret",
    "load",
    "load_ipython_extension",
    "nn",
    "package",
    "spec",
    "tune",
]


def __dir__() -> list[str]:
    """What people use, for editors and notebooks: modules inside are left out."""
    return sorted(__all__)
