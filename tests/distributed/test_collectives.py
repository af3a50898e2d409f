"""What simulated ranks exchange and reduce."""

from __future__ import annotations

import pytest
import torch
from support.ranks import Received, in_ranks

from tilec.torch_op.collectives import Exchange, all_reduce, exchange

NUMBERS = {
    0: [1.0, float("nan"), -0.0, float("-inf"), 3.0, 2.0],
    1: [2.0, 1.0, -1.0, float("-inf"), float("inf"), float("nan")],
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ("max", "min", "sum", "product"))
def test_reductions_of_floats(dtype, reduction):
    parts = torch.stack([torch.tensor(x, dtype=dtype) for x in NUMBERS.values()])
    expected = {"max": parts.amax(0), "min": parts.amin(0), "sum": parts.sum(0), "product": parts.prod(0)}[reduction]

    def body(mesh):
        return all_reduce(parts[mesh.get_local_rank()], reduction, 2, mesh.get_group())

    for found in in_ranks(2, body):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
def test_extrema_of_integers(dtype):
    parts = torch.tensor([[0, 1, 7, 0], [0, 0, 9, 1]]).to(dtype)

    def body(mesh):
        return [all_reduce(parts[mesh.get_local_rank()], how, 2, mesh.get_group()) for how in ("max", "min")]

    for most, least in in_ranks(2, body):
        assert most.dtype == least.dtype == dtype
        assert most.tolist() == parts.int().amax(0).to(dtype).tolist()
        assert least.tolist() == parts.int().amin(0).to(dtype).tolist()


def test_several_tensors_by_one_collective():
    """Boxes of tensors of other types, one of bytes that leave the next unaligned, and of nothing for some rank."""
    bits, numbers = torch.arange(5) % 2 == 0, torch.arange(40.0, dtype=torch.float64).reshape(4, 10)
    have = ((0, 2),), ((2, 4),), ((4, 5),)
    need = ((0, 3),), ((1, 4),), ((5, 5),)
    columns = tuple(((0, 4), ends) for ends in ((0, 4), (4, 8), (8, 10)))
    rows = tuple((ends, (0, 10)) for ends in ((0, 2), (0, 4), (3, 4)))

    def body(mesh):
        rank = mesh.get_local_rank()
        cut = [bits[slice(*have[rank][0])], numbers[:, slice(*columns[rank][1])]]
        Received.reset()
        found = exchange([Exchange(cut[0], have, need), Exchange(cut[1], columns, rows)], rank, mesh.get_group())
        return found, Received.bytes()

    with Received.counted():
        for rank, ((some, others), received) in enumerate(in_ranks(3, body)):
            assert some.tolist() == bits[slice(*need[rank][0])].tolist()
            assert torch.equal(others, numbers[slice(*rows[rank][0])])
            own = (columns[rank][1][1] - columns[rank][1][0]) * others.shape[0]
            assert received == (1, 1, 0)[rank] + 8 * (others.numel() - own)


def test_one_element_of_a_column():
    """A tensor of one element is contiguous whatever its stride."""
    held = ((0, 1),), ((1, 2),)

    def body(mesh):
        rank = mesh.get_local_rank()
        own = torch.tensor([[5.0, 6.0], [7.0, 8.0]], dtype=torch.float64)[rank : rank + 1, 1]
        assert own.stride() == (2,)
        swapped, all_of = (Exchange(own, held, need) for need in (held[::-1], (((0, 2),),) * 2))
        return torch.cat(exchange([swapped, all_of], rank, mesh.get_group())).tolist()

    assert in_ranks(2, body) == [[8, 6, 8], [6, 6, 8]]
