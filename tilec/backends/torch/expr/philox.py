"""`rand` and `randn` in torch, on any device; `tilec.ir.philox` says what they are, bit by bit.

32-bit words are held in int64, whose products wrap modulo 2^64: their halves are the same as without a sign. Where a
statement draws a run of consecutive numbers, as nearly all do, each block of four is computed once. On the CPU the
rounds run in NumPy, piece by piece: its words have no sign, so that a shift needs no mask, and a piece stays in cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from tilec.ir.philox import MASK, MULTIPLIERS, ROUNDS, STREAMS, WEYL

Tensor = torch.Tensor
PIECE = 8192  # blocks of four whose rounds are computed together in NumPy


@dataclass(frozen=True)
class Counters:
    """`offset + sum(coefficient * values)`, each of the values consecutive integers along a dimension of its own."""

    offset: int
    terms: tuple[tuple[int, Tensor], ...]

    def tensor(self) -> Tensor:
        (coefficient, values), *others = self.terms
        total = coefficient * values + self.offset
        for coefficient, values in others:
            total = total + coefficient * values
        return total

    def run(self) -> tuple[Tensor, torch.Size] | None:
        """The first of them (of rank 0) and their shape, where they are consecutive in row-major order."""
        shape = torch.broadcast_shapes(*(values.shape for _, values in self.terms))
        by_dimension = {v.shape.index(v.numel()): (c, v) for c, v in self.terms if v.numel() > 1}
        first, count = self.offset, 1
        for d in reversed(range(len(shape))):
            if shape[d] > 1 and (d not in by_dimension or by_dimension[d][0] != count):
                return None
            count *= shape[d]
        starts = [c * v.reshape(-1)[0] for c, v in self.terms if v.numel()]
        return sum(starts, torch.full((), _wrapped(first), device=self.terms[0][1].device)), shape


def philox(even: Tensor, odd: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The words of blocks: `even` holds words 0 and 2 of the counter along its first axis, and of the result, `odd`
    words 1 and 3; `key` holds both words of the key. All are int64; `even` and `odd` are overwritten.

    Words 0 and 2 change places in each round, instead of being moved: after an even number of rounds they are back.
    """
    multiplier = _column(MULTIPLIERS, even)
    rounds = torch.arange(ROUNDS, device=key.device).view(-1, *[1] * key.dim())
    keys = (key + rounds * _column(WEYL, key)) & MASK
    other = torch.empty_like(odd)
    for step in range(ROUNDS):
        forward = step % 2 == 0
        even.mul_(multiplier if forward else multiplier.flip(0))
        torch.bitwise_and(even, MASK, out=other)
        even.bitwise_right_shift_(32).bitwise_and_(MASK)
        even[0].bitwise_xor_(odd[1])
        even[1].bitwise_xor_(odd[0])
        even.bitwise_xor_(keys[step].flip(0) if forward else keys[step])
        odd, other = other, odd
    return even, odd


def uniform(seed: Tensor, counter: Tensor | Counters) -> Tensor:
    """`rand(seed, counter)`: float32, of the broadcast shape. Both are int64."""
    return _drawn("rand", seed, counter)


def normal(seed: Tensor, counter: Tensor | Counters) -> Tensor:
    """`randn(seed, counter)`: float32, of the broadcast shape. Both are int64."""
    return _drawn("randn", seed, counter)


def _drawn(function: str, seed: Tensor, counter: Tensor | Counters) -> Tensor:
    if isinstance(counter, Counters):
        run = counter.run() if seed.numel() == 1 else None
        return _drawn(function, seed, counter.tensor()) if run is None else _run(function, seed, *run)
    if seed.numel() == 1 and seed.dim() <= counter.dim() and _consecutive(counter):
        return _run(function, seed, counter.reshape(-1)[0], counter.shape)
    seeds, counters = torch.broadcast_tensors(seed, counter)
    lanes = _four(function, seeds, counters >> 2)
    return lanes.gather(-1, (counters & 3).unsqueeze(-1)).squeeze(-1)


def _run(function: str, seed: Tensor, first: Tensor, shape: torch.Size) -> Tensor:
    """The draws of consecutive counters. A device other than the CPU is not asked which is the first."""
    count = math.prod(shape)
    if seed.device.type == "cpu":
        start = int(first)
        lanes = _lanes(function, int(seed.reshape(())), start >> 2, (start % 4 + count + 3) // 4)
        return lanes.view(-1)[start % 4 : start % 4 + count].view(shape)
    blocks = torch.arange((count + 6) // 4, device=seed.device) + (first >> 2)
    lanes = _four(function, seed.reshape(1), blocks)
    return lanes.view(-1)[torch.arange(count, device=seed.device) + (first & 3)].view(shape)


def _wrapped(number: int) -> int:
    """The number modulo 2^64, as int64 has it."""
    return (number + 2**63) % 2**64 - 2**63


def _consecutive(counter: Tensor) -> bool:
    count = counter.numel()
    if count < 2 or counter.device.type != "cpu":
        return False
    flat = counter.reshape(-1)
    first, last = int(flat[0]), int(flat[-1])
    return last - first == count - 1 and torch.equal(flat - first, torch.arange(count, device=flat.device))


def _four(function: str, seed: Tensor, block: Tensor) -> Tensor:
    """The draws of all four lanes of each block, along a last axis."""
    even = torch.stack((block & MASK, torch.full_like(block, STREAMS[function])))
    odd = torch.stack((_high(block), torch.zeros_like(block)))
    even, odd = philox(even, odd, torch.stack((seed & MASK, _high(seed))))
    return _distributed(function, even, odd)


def _distributed(function: str, even: Tensor, odd: Tensor) -> Tensor:
    """What the words of blocks, (2, blocks...), give: four float32 a block, along a last axis. Overwrites them."""
    shape = even.shape[1:]
    result = torch.empty(
        (*shape, 2, 2), dtype=torch.float32, device=even.device
    )  # of each pair, the even and the odd lane
    first, second = result[..., 0].movedim(-1, 0), result[..., 1].movedim(-1, 0)
    if function == "rand":
        first.copy_(even.bitwise_right_shift_(8))
        second.copy_(odd.bitwise_right_shift_(8))
        result.mul_(2.0**-24)
    else:
        r = even.add_(1).to(torch.float64).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        t = odd.to(torch.float64).mul_(2.0**-32).mul_(2 * math.pi)
        first.copy_(torch.cos(t).mul_(r))
        second.copy_(t.sin_().mul_(r))
    return result.view(*shape, 4)


def _lanes(function: str, seed: int, first: int, count: int) -> Tensor:
    """The draws of `count` consecutive blocks, (count, 4), in NumPy."""
    multipliers = np.array(MULTIPLIERS, np.uint64)[:, None]
    key = seed & MASK, seed >> 32 & MASK
    words = [[k + r * w & MASK for k, w in zip(key, WEYL, strict=True)] for r in range(ROUNDS)]
    keys = np.array(words, np.uint64)[:, :, None]
    mask, half, byte = np.uint64(MASK), np.uint64(32), np.uint64(8)
    result = torch.empty((count, 4), dtype=torch.float32, device="cpu")
    lanes = result.numpy().reshape(count, 2, 2)
    for start in range(0, count, PIECE):
        n = min(PIECE, count - start)
        counters = np.arange(n, dtype=np.uint64) + np.uint64((first + start) % 2**64)
        a, b = np.empty((2, n), np.uint64), np.zeros((2, n), np.uint64)
        np.bitwise_and(counters, mask, out=a[0])
        np.right_shift(counters, half, out=b[0])
        a[1] = STREAMS[function]
        c = np.empty_like(b)
        for step in range(ROUNDS):
            turn = 1 if step % 2 == 0 else -1
            np.multiply(a, multipliers[::turn], out=a)
            np.bitwise_and(a, mask, out=c)
            np.right_shift(a, half, out=a)
            np.bitwise_xor(a, b[::-1], out=a)
            np.bitwise_xor(a, keys[step][::-turn], out=a)
            b, c = c, b
        if function == "rand":
            part = lanes[start : start + n]
            part[:, :, 0] = np.right_shift(a, byte, out=a).T
            part[:, :, 1] = np.right_shift(b, byte, out=b).T
            part *= np.float32(2.0**-24)
        else:
            even, odd = (torch.from_numpy(x.view(np.int64)) for x in (a, b))
            result[start : start + n] = _distributed(function, even, odd)
    return result


def _high(word: Tensor) -> Tensor:
    return (word >> 32) & MASK


def _column(words: tuple[int, int], like: Tensor) -> Tensor:
    column = torch.stack([torch.full((), word, device=like.device) for word in words])
    return column.view(-1, *[1] * (like.dim() - 1))
