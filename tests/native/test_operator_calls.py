"""Repeated calls of the operator, as compiled graphs make them: the library does those that are like one before."""

from __future__ import annotations

import gc

import pytest
import torch
from support.fresh import run_fresh
from support.tiers import slow_but
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

import tilec
from tilec.torch_op import operator
from tilec.torch_op.text import text_of

CALL = torch.ops.tilec.call.default
TWICE = tilec.compile("function (X[N, D]) -> (Y, Z, U) { Y = X; Z = X; U = X == X; }")
TURNED = tilec.compile("function (X[N, D]) -> (Y) { Y[j, i : D, N] = X[i, j]; }")
HALVED = tilec.compile("function (X[N, C, H, W]) -> (Y) { Y[n, c, y, x : N, C, H, W] = X[n, c, y, x] / 2; }")
SHIFTED = tilec.compile("function (X[N], A, K) -> (Y) { Y[i : N - K] = X[i + K] * A; }")
CUBE = tilec.compile("Y = X * X * X;")


def call(function, inputs, numbers=(), sizes=()):
    return CALL(text_of(function.specialiser), list(inputs), list(numbers), list(sizes))


def known(function) -> int:
    """Calls that the library does, whatever numbers and sizes they have."""
    text = text_of(function.specialiser)
    found = operator._calls_like_before.items()
    return sum(len(calls) for key, calls in found if key == text or isinstance(key, tuple) and key[0] == text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_outputs_are_tensors_of_their_own(way: str, device: str, dtype: torch.dtype) -> None:
    for shape in ((3, 5), (0, 5), (1, 1)):
        for _ in range(3):
            x = torch.ones(shape, device=device).to(dtype)
            results = call(TWICE, [x])
            tensors = [t for t in (x, *results) if t.numel()]
            assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
            assert torch.equal(results[0], x) and torch.equal(results[1], x) and isinstance(results, list)
            for r in results:
                assert r.is_contiguous() and r.untyped_storage().nbytes() == r.numel() * r.element_size()


def test_views_become_tensors(way: str, device: str) -> None:
    """A transposition is no view of the input, and what is one of a larger tensor is not kept with it."""
    x = torch.arange(12.0, device=device).reshape(3, 4)
    for given in (x, x, x.T.contiguous().T, x[:, 1:3], x[:, 1:3], x.expand(3, 4)):
        (y,) = call(TURNED, [given])
        assert y.is_contiguous() and torch.equal(y, given.T)
        assert y.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_memory_formats_take_turns(way: str, device: str) -> None:
    x = torch.randn(2, 3, 4, 5, device=device)
    for k in range(6):
        given = x.to(memory_format=torch.channels_last if k % 2 else torch.contiguous_format)
        (y,) = call(HALVED, [given])
        assert y.stride() == given.stride() and torch.equal(y, x / 2)


def test_numbers_and_sizes(way: str, device: str) -> None:
    x = torch.arange(10.0, device=device)
    for k in (2, 3, 2, 3):
        for a in (2.0, 3.0, 2.0):
            number, size = torch.tensor(a, dtype=torch.float64), torch.tensor(k)
            (y,) = call(SHIFTED, [x, number.to(device), size.to(device)], [1, 2], [k])
            assert y.dtype == torch.float32 and torch.equal(y, x[k:] * a)


def test_states_of_torch(way: str, device: str) -> None:
    """What ran without a gradient does not run where one, or a tangent, is asked for."""
    x = torch.randn(4, device=device, dtype=torch.float64, requires_grad=True)
    plain = x.detach()
    for _ in range(3):
        with torch.no_grad():
            (y,) = call(CUBE, [x])
        assert not y.requires_grad
        (y,) = call(CUBE, [x])
        (g,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(g, 3 * plain**2)
        (y,) = call(CUBE, [plain])
        assert not y.requires_grad
        with torch.inference_mode():
            assert call(CUBE, [plain])[0].is_inference()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(plain, torch.ones_like(plain))
            tangent = forward_ad.unpack_dual(call(CUBE, [dual])[0]).tangent
        torch.testing.assert_close(tangent, 3 * plain**2)
        batched = torch.func.vmap(lambda t: call(CUBE, [t])[0])(plain[:, None])
        torch.testing.assert_close(batched, plain[:, None] ** 3)
        with FakeTensorMode() as fake:
            assert type(call(CUBE, [fake.from_tensor(plain)])[0]) is FakeTensor


def test_the_library_does_them(library, device: str) -> None:
    """A call for each kind of tensors, and none for those that a gradient is asked of."""
    function = tilec.compile("Y = X * X + 1.25;")
    x = torch.randn(4, 6, device=device)
    for given in (x, x, x[:, :3], x[:, :3], x.T, x.double(), x.double()):
        torch.testing.assert_close(call(function, [given])[0], given * given + 1.25)
    assert known(function) == 4
    call(function, [x.requires_grad_()])
    assert known(function) == 4
    with torch.no_grad():
        call(function, [x])
    assert known(function) == 5


def test_they_go_with_their_function(library) -> None:
    function = tilec.compile("Y = X * X + 2.25;")
    text = text_of(function.specialiser)
    call(function, [torch.ones(3)]), call(function, [torch.ones(3)])
    assert text in operator._calls_like_before
    del function
    gc.collect()
    assert text not in operator._calls_like_before
    assert CALL(text, [torch.ones(3)], [], [])[0].tolist() == [3.25] * 3, "a graph may still call it"


@pytest.mark.parametrize(
    "first", slow_but(("tilec.torch_op.neighbours", "torch._inductor.config", "tilec"), ("torch._inductor.config",))
)
def test_passes_are_there_whatever_is_imported_first(first: str) -> None:
    text = (
        f"import {first}, tilec; from torch._inductor import config; from tilec.torch_op import neighbours\n"
        "assert isinstance(config.post_grad_custom_pre_pass, neighbours.FuseNeighbours)\n"
        "assert config.post_grad_custom_pre_pass.before is None and config.joint_custom_post_pass is not None\n"
    )
    done = run_fresh(text)
    assert done.returncode == 0, done.stderr
