"""What torch is about when a function is called: does it record, transform, trace, or simply run?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

PLAIN = (torch.Tensor, torch.nn.Parameter)
DEVICE_TYPES = ("cpu", "cuda")
_VMAP_MODE = torch._C._dispatch_key_parse("VmapMode")
_OLD_BATCH = torch._C._dispatch_key_parse("Batched")
_PRE_DISPATCH = torch._C._dispatch_key_parse("PreDispatch")
_TRACER = torch._C._dispatch_key_parse("Tracer")

transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active  # is a torch.func transform under way?

autocasting: Callable[[], bool] = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack
_traced = torch._C._get_tracing_state
included = torch._C._dispatch_tls_is_dispatch_key_included


def exporting() -> bool:
    """Does a trace want to see calls before transforms and autograd do, as torch.export's and torch.jit's do?"""
    return included(_PRE_DISPATCH) or (
        _traced() is not None and not torch._C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    )


def untouched() -> bool:
    """Are plain tensors computed with as they are: does torch neither transform, batch, trace nor watch calls, carry
    tangents or cast?"""
    return not autocasting() and untouched_once_cast()


def untouched_once_cast() -> bool:
    """The same of tensors in the types that autocast wants."""
    batching = transforming() or included(_VMAP_MODE)
    return not (batching or _modes() or forward_ad._current_level >= 0 or _traced() is not None)


def grad_mode() -> bool:
    """Does torch record in this thread? In inference mode it never does, whatever is enabled inside of it."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def recording(tensors: Sequence[torch.Tensor]) -> bool:
    """Does torch record what is done with these, outside torch.func's transforms?"""
    return (
        grad_mode()
        and any([t.requires_grad for t in tensors])
        or (forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled())
    )


@contextmanager
def known_tangents(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let Python know of tangents at a level that an exported graph enters by itself, and of a batch of them."""
    before = forward_ad._current_level
    with ExitStack() as stack:
        stack.callback(setattr, forward_ad, "_current_level", before)
        if before < 0 and torch._C._is_fwd_grad_enabled():
            found = [d for d in map(_tangent, tensors) if d is not None]
            if found:
                forward_ad._current_level = 0  # the only level that torch has
            if any(torch._C._dispatch_keys(d).has(_OLD_BATCH) for d in found):
                stack.enter_context(torch._C._IncludeDispatchKeyGuard(_VMAP_MODE))
        yield


def carrying_tangents(tensors: Sequence[torch.Tensor]) -> bool:
    """Has one of these a tangent, at whichever level?"""
    if forward_ad._current_level >= 0:
        return True
    return torch._C._is_fwd_grad_enabled() and any([_tangent(t) is not None for t in tensors])


def _tangent(t: torch.Tensor) -> torch.Tensor | None:
    return torch._VF._unpack_dual(t, level=0)[1]  # type: ignore[attr-defined]


def asking(tensors: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Which of these any derivative may be asked of, at whichever level of torch.func's transforms: a wrapper answers
    for its own level alone."""
    return tuple([_asks(t) for t in tensors]) if transforming() else tuple([t.requires_grad for t in tensors])


def _asks(t: torch.Tensor) -> bool:
    while not t.requires_grad and _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return t.requires_grad


def batched(t: torch.Tensor) -> bool:
    """Is this one of a batch that torch.vmap goes over?"""
    while _functorch.is_functorch_wrapped_tensor(t):
        if _functorch.is_batchedtensor(t):
            return True
        t = _functorch.get_unwrapped(t)
    return False


def watched() -> bool:
    """Does torch want to see calls, instead of having them done: a mode, a trace, or the vmap of batched gradients?"""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or included(_VMAP_MODE)
        or included(_PRE_DISPATCH)
        or torch._C._get_tracing_state() is not None
    )


def ordinary(tensors: Sequence[torch.Tensor]) -> bool:
    """Are these tensors whose memory can be read, in a call that may be done?"""
    return not watched() and all([_readable(t) for t in tensors])


def _readable(t: torch.Tensor) -> bool:
    stored = type(t) in PLAIN and t.layout is torch.strided and t.device.type in DEVICE_TYPES
    return stored and not t.is_neg() and not t._is_zerotensor()
