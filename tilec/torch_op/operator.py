"""`torch.ops.tilec.call`: a Tile function as an operator that torch does not look into.

Compilers, exporters, functionalization, fake and meta tensors see a call of it, whose gradient is another one. The
program is in its arguments, as Tile with a comment before it that says how it is to run, so that an exported graph is
complete and can be read.

torch.compile puts a whole call into its graph as one node first (`graphs/nodes.py`). What traces that graph afterwards
meets the node of autograd, the levels of torch.func and, below these, the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import finalize

import torch

from tilec.arguments import device_of
from tilec.late import untraced, when_imported
from tilec.native import native
from tilec.prepare.prepared import CACHED_CALLS, Bounded, Prepared
from tilec.specialise import Specialiser
from tilec.torch_op import symbolic
from tilec.torch_op.recorded import recorded_call, unrecorded
from tilec.torch_op.state import carrying_tangents, known_tangents, ordinary, recording
from tilec.torch_op.symbolic import empty_in_order, lies_in_order, named_strides, output_orders
from tilec.torch_op.text import function_of
from tilec.transforms.axis_orders import AxisOrder

SCHEMA = "call(str program, Tensor[] inputs, int[] numbers, SymInt[] sizes) -> Tensor[]"
TORCH_LIBRARY = torch.library.Library("tilec", "DEF")
TORCH_LIBRARY.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))

_OLD_LEVELS = 64  # as many as torch's has

TensorList = list[torch.Tensor]


@untraced
def _carried_out(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    """The outputs: tensors of their own, laid out as the fake ones are."""
    found = _like_before(program, inputs, numbers, sizes)
    return _computed(program, inputs, numbers, sizes) if found is None else found


def _computed(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    """The same of a call that is not like one before."""
    function, weak = function_of(program), weak_of(inputs, numbers)
    prepared = function.prepared(inputs, weak, tuple(sizes or ()))
    orders = _orders(function, inputs, weak, sizes)
    memory = {t.untyped_storage().data_ptr() for t in inputs}
    results = []
    with torch._C._AutoDispatchBelowAutograd():
        for r, order in zip(prepared(inputs), orders, strict=True):
            if r is None:
                continue
            storage = r.untyped_storage()
            shared = storage.data_ptr() in memory or storage.nbytes() != r.numel() * r.element_size()
            if shared or not lies_in_order(r, order):
                r = empty_in_order(r.shape, order, r.dtype, r.device).copy_(r)
            memory.add(r.untyped_storage().data_ptr())
            results.append(r)
    _remember(program, inputs, numbers, sizes, function, prepared, orders)
    return results


def _orders(
    function: Specialiser, inputs: TensorList, weak: tuple[bool, ...], sizes: Sequence[int]
) -> tuple[AxisOrder | None, ...]:
    if all([t.is_contiguous() for t in inputs]):
        return (None,) * len(function.outputs)
    return output_orders(function, named_strides(function, inputs), function.types(inputs, weak), sizes or ())


_calls_like_before: Bounded = Bounded()  # by program, or by that, numbers and sizes: the library's `Calls`


def _key(program: str, numbers: Sequence[int], sizes: Sequence[int]) -> object:
    """None where sizes are open."""
    if not numbers and not sizes:
        return program
    known = all([type(n) is int for n in sizes or ()])
    return (program, tuple(numbers or ()), tuple(sizes or ())) if known else None


def _like_before(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList | None:
    """What the library gives where such tensors were given before in such a state of torch."""
    calls = _calls_like_before.get(_key(program, numbers, sizes))
    if calls is None:
        return None
    found = calls(tuple(inputs))
    return None if found is calls else found


def _remember(
    program: str,
    inputs: TensorList,
    numbers: Sequence[int],
    sizes: Sequence[int],
    function: Specialiser,
    prepared: Prepared,
    orders: Sequence[AxisOrder | None],
) -> None:
    """Let the library do calls like this one, if there is one and they are as usual."""
    library, devices = native(), {t.device for t in inputs}
    if library is None or not prepared.plain or len(devices) != 1 or len(inputs) > library.MOST or not ordinary(inputs):
        return
    key = _key(program, numbers, sizes)
    calls = _calls_like_before.get(key)
    if calls is None:
        calls = _calls_like_before[key] = library.Calls(strides=True)
        finalize(function, _calls_like_before.pop, key, None).atexit = False
    if len(calls) < CACHED_CALLS:
        calls.add(tuple(inputs), prepared.native(inputs), None, len(orders), [], [o or () for o in orders])


def weak_of(inputs: TensorList, numbers: Sequence[int] | None) -> tuple[bool, ...]:
    return tuple([place in (numbers or ()) for place in range(len(inputs))])


@untraced
def _fake(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    """Tensors of the outputs' shapes and types."""
    function, weak = function_of(program), weak_of(inputs, numbers)
    device = device_of(function.inputs, inputs)
    if symbolic.is_open(inputs, sizes):
        types = symbolic.example_types(function, inputs, weak)
        results = symbolic.result_types(function, inputs, weak, sizes)
    else:
        types = function.types(inputs, weak)
        results = function.results(types, dict(zip(function.sizes, sizes, strict=True)))
    orders = output_orders(function, named_strides(function, inputs), types, sizes)
    found = zip(results, orders, strict=True)
    return [empty_in_order(t.shape, o, getattr(torch, t.dtype), device) for t, o in found if t is not None]


@untraced
def _recorded(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    """A call by torch itself, as an exported graph makes it, under autograd."""
    if (found := _like_before(program, inputs, numbers, sizes)) is not None:  # as compiled graphs call
        return found
    if ordinary(inputs) and not carrying_tangents(inputs) and not recording(inputs):
        return _computed(program, inputs, numbers, sizes)
    with known_tangents(inputs):
        if recording(inputs):
            return _called(program, inputs, numbers, sizes)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.tilec.call(program, inputs, numbers or [], sizes or [])  # a package has None for empty


@untraced
def _called(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    return [
        r
        for r in recorded_call(function_of(program), inputs, weak_of(inputs, numbers), tuple(sizes or ()))
        if r is not None
    ]


@untraced
def _in_old_vmap(program: str, inputs: TensorList, numbers: Sequence[int], sizes: Sequence[int]) -> TensorList:
    """Under the vmap that batched gradients and `torch.autograd.functional` use, which has levels of its own."""
    with torch._C._PreserveDispatchKeyGuard():  # a device's thread counts no level, and would leave it
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
    for k in range(level or _OLD_LEVELS, 0, -1):  # an exported graph makes batches without entering a level
        moved = [torch._remove_batch_dim(t, k, 1, 0) for t in inputs]  # those without a batch get one of one element
        inputs = [t if t.shape[0] != 1 else t[0] for t in moved]
        dims = [0 if t.shape[0] != 1 else None for t in moved]
        if any(d is not None for d in dims):
            one = [t if d is None else t.select(d, 0) for t, d in zip(inputs, dims, strict=True)]
            call = unrecorded(function_of(program), one, weak_of(inputs, numbers), tuple(sizes or ()))
            results = call.over_batch("same", dims, inputs)
            return [torch._add_batch_dim(r, 0, k) for r in results if r is not None]
    return torch.ops.tilec.call(program, inputs, numbers, sizes)


for device in ("CPU", "CUDA"):
    TORCH_LIBRARY.impl("call", _carried_out, device)
TORCH_LIBRARY.impl("call", _recorded, "Autograd")
TORCH_LIBRARY.impl("call", _in_old_vmap, "Batched")
TORCH_LIBRARY.impl("call", _called, "FuncTorchDynamicLayerFrontMode")
torch.library.register_fake("tilec::call", _fake, lib=TORCH_LIBRARY)


def _fuse_neighbours() -> None:
    import tilec.torch_op.neighbours  # noqa: F401  # which has Inductor run its passes


when_imported("torch._inductor.config", _fuse_neighbours)
