"""What no call takes, and what to pass in its place: data whose meaning would be lost, and types that Tile lacks."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch.masked import MaskedTensor

from tilec.errors import InputMistake, TypeMistake, Unsupported
from tilec.ir.types import DTYPES

_TYPES = (  # element types by name, and what to pass in the place of a tensor and of an array of them
    (r"qu?int.*", "{0}.dequantize()", ""),
    (r"uint\d+", "{0}.to(torch.int64)", '{0}.astype("int64")'),
    (r"complex.*", "torch.view_as_real({0}), with a last dimension of size 2", "{0}.real and {0}.imag"),
    (r"float8.*", "{0}.to(torch.float16)", ""),
    (r"float\d+", "", '{0}.astype("float64")'),
    (r"object", "", '{0}.astype("float64")'),
)
_MEMBERS = (  # what objects of other libraries have; the first that there is
    ("toarray", "{0}.toarray()"),  # a sparse matrix of SciPy
    ("to_numpy", "{0}.to_numpy()"),  # a table of pandas or polars
    ("__dlpack__", "torch.from_dlpack({0})"),  # an array of JAX or CuPy
    ("__array__", "numpy.asarray({0})"),
    ("__float__", "float({0})"),  # a Decimal, a number of SymPy
)
_PROXIES = "torch.fx.symbolic_trace knows torch's own functions alone; trace with torch.export or make_fx"
_LISTS = "a list becomes a tensor with torch.tensor(...)"
_TAKEN = "pass a torch tensor, a NumPy array or a Python number"


def type_mistake(name: str, dtype: str, array: bool = False) -> TypeMistake:
    """The mistake of a tensor or array of a type that Tile does not have."""
    written = next((a if array else t for pattern, t, a in _TYPES if re.fullmatch(pattern, dtype)), "")
    types = ", ".join(DTYPES)
    hint = f"pass {written.format(name)}; the types are {types}" if written else f"one of {types}"
    return TypeMistake(f"{name}: element type {dtype} is not supported", hint=hint)


def kind_mistake(name: str, value: object) -> InputMistake:
    """The mistake of an argument that is no tensor, array or number."""
    hint = _TAKEN
    if isinstance(value, (list, tuple)):
        hint += f"; {_LISTS}"
    elif value is None:
        hint += "; an input that is not needed is left out of the text"
    elif type(value).__module__ == "torch.fx.proxy":
        hint = _PROXIES
    elif not isinstance(value, type) and not hasattr(value, "a member that nothing has"):
        made = next((text for member, text in _MEMBERS if hasattr(value, member)), None)
        hint = f"pass {made.format(name)}" if made else hint
    return InputMistake(f"{name}: got {type(value).__name__}", hint=hint)


def subclass_mistake(name: str, what: str) -> Unsupported:
    """The mistake of a tensor whose class does not take the operator of a call."""
    hint = f"pass the plain tensor that {name} holds, or let its __torch_dispatch__ take torch.ops.tilec.call"
    return Unsupported(f"{name} is a {what}, which does not say what a call of tilec does with it", hint=hint)


def check_dense(name: str, t: torch.Tensor) -> None:
    """Raises InputMistake for sparse, compressed, mkldnn, nested and masked tensors."""
    if t.is_nested:
        raise _not_dense(name, "nested tensor", f"{name}.to_padded_tensor(0.0)")
    if t.layout is not torch.strided:
        layout = str(t.layout).removeprefix("torch._").removeprefix("torch.")
        raise _not_dense(name, f"{layout} tensor", f"{name}.to_dense()")
    if isinstance(t, MaskedTensor):
        raise _not_dense(name, "masked tensor", f"{name}.to_tensor(0.0), {_with_mask(f'{name}.get_mask()')}")


def check_array(name: str, array: np.ndarray | np.generic) -> None:
    """Raises InputMistake for masked arrays, and for subclasses (of units, say) with an arithmetic of their own."""
    if isinstance(array, np.ma.MaskedArray):
        raise _not_dense(name, "masked array", f"{name}.filled(0), {_with_mask(f'numpy.ma.getmaskarray({name})')}")
    own = type(array)
    if issubclass(own, np.ndarray) and (
        own.__array_ufunc__ is not np.ndarray.__array_ufunc__
        or own.__array_function__ is not np.ndarray.__array_function__
    ):
        what = f"{name} is a {own.__name__}, an array with an arithmetic of its own, of which a call knows nothing"
        raise InputMistake(what, hint=f"pass numpy.asarray({name}), the bare numbers")


def _not_dense(name: str, what: str, instead: str) -> InputMistake:
    return InputMistake(f"{name} is a {what}; Tile reads dense ones alone", hint=f"pass {instead}")


def _with_mask(mask: str) -> str:
    return f"and {mask} as an input of its own where the text has to choose"
