"""What people pass to a Tile function, as torch tensors and types: tensors, NumPy arrays, Python numbers, specs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import SupportsIndex

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from tilec import refused
from tilec.errors import InputMistake, TypeMistake, listed
from tilec.errors.tracebacks import public
from tilec.ir.types import DTYPES, TensorType

DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES}
_SEEDS = (int, np.uint16, np.uint32, np.uint64, torch.Generator)
_WEAK = (Number, torch.SymInt, torch.SymFloat)
_NUMBERS = ((bool, torch.bool), (int, torch.int64), (float, torch.float64))


OPEN_SIZE = re.compile(r"([A-Za-z]\w*)(?::(\d+))?")  # a size by name, and what plans are made for


@dataclass(frozen=True)
class Spec:
    """Shape and type of an argument that need not exist yet; see `spec`."""

    shape: tuple[int, ...]  # for `tilec.build` names too
    dtype: str


@public
def spec(shape: Sequence[int | str], dtype: str | torch.dtype | np.dtype | type = "float32") -> Spec:
    """Describe an argument for `Function.lower` and others that need no data.

    >>> tilec.spec((64, 32), "bfloat16")
    Spec(shape=(64, 32), dtype='bfloat16')

    Args:
        shape: Elements along each dimension. For `tilec.build` names too: "N" is a size that calls of the package
            give, "N:1000" one whose kernels are chosen for 1000 (else 1024).
        dtype: The element type: a name, or torch's or NumPy's type.

    Returns:
        A Spec.

    Raises:
        TypeMistake: An element type that Tile does not have.
        InputMistake: A shape that is no sequence of integers and names, or holds a negative one.
    """
    if isinstance(dtype, int):
        hint = f"write tilec.spec(({shape}, {dtype}))"
        raise InputMistake(f"the second argument of a spec is an element type, not {dtype}", hint=hint)
    name = DTYPE_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else str(dtype)
    if name not in DTYPES:
        name = np.dtype(dtype).name if not isinstance(dtype, torch.dtype) and _is_numpy(dtype) else name
    if name not in DTYPES:
        raise TypeMistake(f"element type {dtype} is not supported", hint="one of " + ", ".join(DTYPES))
    if (
        isinstance(shape, str)
        or not isinstance(shape, Iterable)
        or not all(OPEN_SIZE.fullmatch(n) if isinstance(n, str) else isinstance(n, SupportsIndex) for n in shape)
    ):
        one = f", as in tilec.spec(({shape},))" if isinstance(shape, int) else ""
        raise InputMistake(
            f"a spec's shape is a sequence of integers, not {shape!r}", hint=f"one for each dimension{one}"
        )
    sizes = tuple(n if isinstance(n, str) else int(n) for n in shape)
    if any(n < 0 for n in sizes if not isinstance(n, str)):
        raise InputMistake(f"a spec of shape {sizes}: sizes cannot be negative", hint="a size is 0 or more")
    return Spec(sizes, name)  # type: ignore[arg-type]


def _is_numpy(dtype: object) -> bool:
    try:
        np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Arguments:
    """Arguments as tensors on one device. `weak` marks Python numbers; `numpy` says that arrays and no tensors came."""

    tensors: tuple[torch.Tensor, ...]
    weak: tuple[bool, ...]
    numpy: bool


def chosen_inputs(wrt: str | Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """The inputs that `wrt` asks for: one, several, or all. Raises InputMistake for what is no name."""
    if wrt is None:
        return tuple(names)
    chosen = tuple(wrt) if isinstance(wrt, Iterable) and not isinstance(wrt, str) else (wrt,)
    if wrong := [name for name in chosen if not isinstance(name, str)]:
        raise InputMistake(f"{wrong[0]!r} is no name of an input", hint=listed(wrong[0], names))
    return chosen


def by_name(names: Sequence[str], values: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
    """All arguments in order, of which the first few are given by position and others by name.

    Raises InputMistake for a name that is unknown, that is given twice or that nothing is given for.
    """
    unknown = [name for name in named if name not in names]
    if unknown:
        own = "a call makes its outputs: write out.copy_(f(...)); " if unknown[0] == "out" else ""
        raise InputMistake(f"no input is called {unknown[0]}", hint=own + listed(unknown[0], names))
    if len(values) > len(names):
        _check_count(names, values, more=len(named))
    twice = [name for name in names[: len(values)] if name in named]
    if twice:
        place = names.index(twice[0]) + 1
        hint = f"argument {place} by position is {twice[0]}; the inputs are {', '.join(names)}, in this order"
        raise InputMistake(f"{twice[0]} is given twice, by position and by name", hint=hint)
    missing = [name for name in names[len(values) :] if name not in named]
    if missing:
        hint = f"the function takes {', '.join(names)}; add {missing[0]}=..."
        raise InputMistake(f"nothing is given for {', '.join(missing)}", hint=hint)
    return (*values, *(named[name] for name in names[len(values) :]))


def to_tensors(
    names: Sequence[str], values: Sequence[object], seeds: Collection[str] = (), sizes: Sequence[str] = ()
) -> Arguments:
    """Tensors as they are, arrays shared where torch can, numbers as rank-0 tensors, all on the device of the largest.
    In the place of one of `seeds` a torch.Generator gives its next 64 bits, and a number may have 64 without a sign.
    `sizes` are the inputs that stand in sizes.

    Raises InputMistake for a wrong count, kind or device, TypeMistake for an element type that Tile does not have.
    """
    _check_count(names, values, sizes)
    if all(type(v) is torch.Tensor for v in values):
        tensors, weak, numpy = [v for v in values if isinstance(v, torch.Tensor)], (False,) * len(values), False
    else:
        given = zip(names, values, strict=True)
        tensors = [_seed(n, v) if n in seeds and isinstance(v, _SEEDS) else _to_tensor(n, v) for n, v in given]
        weak = tuple(isinstance(v, _WEAK) and not isinstance(v, np.generic) for v in values)
        arrays = any(isinstance(v, (np.ndarray, np.generic)) for v in values)
        numpy = arrays and not any(isinstance(v, torch.Tensor) for v in values)
    for name, t in zip(names, tensors, strict=True):
        if t.dtype not in DTYPE_NAMES:
            raise refused.type_mistake(name, str(t.dtype).removeprefix("torch."))
        refused.check_dense(name, t)
    return Arguments(_on_one_device(names, tensors, values), weak, numpy)


def to_array(name: str, t: torch.Tensor) -> np.ndarray:
    """A tensor's elements. Raises InputMistake where it has none that can be read."""
    try:
        return t.numpy(force=True)
    except (RuntimeError, ValueError):
        raise InputMistake(f"{name}: the elements of a {type(t).__name__} on {t.device} cannot be read") from None


def types_of(
    names: Sequence[str], values: Sequence[object], seeds: Collection[str] = (), sizes: Sequence[str] = ()
) -> dict[str, TensorType]:
    """Type of each argument; specs stand for themselves. Raises as `to_tensors` does."""
    _check_count(names, values, sizes)
    types = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, Spec):
            if named := [n for n in value.shape if type(n) is str]:
                raise InputMistake(
                    f"the size {named[0]} of {name} is a name", hint="tilec.build alone leaves sizes open"
                )
            types[name] = TensorType(value.shape, value.dtype)
        elif name in seeds and isinstance(value, torch.Generator):  # which draws nothing: no value is asked for
            types[name] = TensorType((), "int64")
        elif isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value):
            shape = str(tuple(value))
            hint = f'write tilec.spec({shape}), or tilec.spec({shape}, "float16") for a type other than float32'
            raise InputMistake(f"{name}: got {shape}, which is no argument; is it a shape?", hint=hint)
        else:
            (tensor,), (weak,) = (a := to_tensors((name,), (value,), seeds)).tensors, a.weak
            types[name] = TensorType(tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], weak)
    return types


def size_value(name: str, value: object) -> int:
    """The integer that a rank-0 input gives to a size. Raises InputMistake where it is none."""
    if isinstance(value, Spec):
        raise InputMistake(f"{name} is used in a size, so its value is needed", hint=f"pass an integer for {name}")
    tensor = value if isinstance(value, torch.Tensor) else _to_tensor(name, value)
    if tensor.ndim or tensor.is_floating_point() or tensor.is_complex():
        what = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        hint = f"pass an int, such as {name}=int(...)"
        raise InputMistake(f"{name} is used in a size, so it must be one integer; got {what}", hint=hint)
    try:
        return int(tensor)
    except RuntimeError:  # of what has no value yet, or many
        what = f"{name} is used in a size, so its value is needed before the call, and this tensor has none yet"
        raise InputMistake(what, hint=f"pass an int for {name}; a tensor's value cannot be asked for here") from None


def _check_count(names: Sequence[str], values: Sequence[object], sizes: Sequence[str] = (), more: int = 0) -> None:
    """`more` arguments have been given by name. Most inputs that stand in sizes were meant as the size of another."""
    if (count := len(values) + more) != len(names):
        takes = f"{len(names)} input{'s' * (len(names) != 1)}" + (f" ({', '.join(names)})" if names else "")
        hint = None
        if count < len(names) and not more:
            hint = f"nothing is given for {', '.join(names[count:])}; "
            if len(names) - count <= len(sizes) and (other := next((n for n in names if n not in sizes), None)):
                size = sizes[0]
                hint += f"{size} is an input, since no other one's shape declares it as in function ({other}[{size}])"
            else:
                hint += f"inputs may be given by name, {names[count]}=..."
        elif count > len(names):
            hint = "outputs and sizes are not arguments; a size that no input has is declared as one, such as M[]"
        raise InputMistake(f"the function takes {takes}; got {count}", hint=hint)


def _to_tensor(name: str, value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if is_lazy(value):
            raise InputMistake(f"{name}: the parameter is not initialized, so it has no shape yet")
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        refused.check_array(name, value)
        array = np.asarray(value)
        if array.dtype.name not in DTYPES:
            raise refused.type_mistake(name, str(array.dtype), array=True)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if any(s < 0 for s in array.strides) or not array.flags.writeable:
            array = array.copy()  # torch has neither negative strides nor read-only memory
        return torch.from_numpy(array) if array.ndim else torch.from_numpy(array.reshape(1)).reshape(())
    for python, dtype in _NUMBERS:
        if isinstance(value, python):
            try:
                return torch.tensor(value, dtype=dtype, device="cpu")  # whatever the default device is
            except (OverflowError, RuntimeError, ValueError):
                raise InputMistake(f"{name}: {value} does not fit into 64 bits", hint=f"pass float({name})") from None
    if isinstance(value, (torch.SymInt, torch.SymFloat)):  # a compiler's
        return number_on(torch.device("cpu"), value)
    if isinstance(value, complex):
        raise refused.type_mistake(name, "complex", array=True)
    if isinstance(value, torch.Generator):
        raise InputMistake(f"{name} is no seed, so no generator can take its place", hint="rand and randn take a seed")
    if isinstance(value, Spec):
        hint = "f.lower(...) takes specs; a call computes with a tensor, an array or a number"
        raise InputMistake(f"{name}: got a spec, which holds no data", hint=hint)
    raise refused.kind_mistake(name, value)


def _seed(name: str, value: int | np.unsignedinteger | torch.Generator) -> torch.Tensor:
    """The seed as an int64 tensor: the 64 bits that a generator draws next, a number modulo 2^64."""
    if isinstance(value, torch.Generator):
        empty = torch.empty((), dtype=torch.int64, device=value.device)
        return empty.random_(-(2**63), None, generator=value)
    number = value if isinstance(value, int) else int(value)
    return _to_tensor(name, number - 2**64 if 2**63 <= number < 2**64 else number)


def number_on(device: torch.device, number: bool | int | float | torch.SymInt | torch.SymFloat) -> torch.Tensor:
    """A Python number as a tensor of rank 0, filled in on its device: a transfer would have to be waited for."""
    if isinstance(number, torch.SymFloat):  # left open by products with tensors: `full` would ask for its value
        return torch.ones((), dtype=torch.float64, device=device) * number  # type: ignore[operator]
    whole = isinstance(number, (int, torch.SymInt))
    dtype = torch.bool if isinstance(number, bool) else torch.int64 if whole else torch.float64
    if isinstance(number, int) and 2**63 <= number < 2**64:  # a seed's
        number -= 2**64
    return torch.full((), number, dtype=dtype, device=device)  # type: ignore[arg-type]


def device_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> torch.device:
    """The device that a call of these is on, to which numbers of rank 0 on the CPU can be moved."""
    fixed = {t.device: name for name, t in zip(names, tensors, strict=True) if t.ndim or t.device.type != "cpu"}
    if len(fixed) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in fixed.items())
        raise InputMistake(f"inputs on different devices: {where}", hint="move them to one device with .to()")
    return next(iter(fixed), torch.device("cpu"))


def _on_one_device(
    names: Sequence[str], tensors: Sequence[torch.Tensor], values: Sequence[object]
) -> tuple[torch.Tensor, ...]:
    if len({t.device for t in tensors}) > 1:
        device = device_of(names, tensors)
        return tuple([_moved(t, v, device) for t, v in zip(tensors, values, strict=True)])
    return tuple(tensors)


def _moved(t: torch.Tensor, given: object, device: torch.device) -> torch.Tensor:
    if isinstance(given, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(given, np.generic):
        return number_on(device, given)
    return t.to(device, non_blocking=True)
