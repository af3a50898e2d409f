"""Recurrences whose lanes turn round, on the CPU: rows are turned as they are read, and lie together."""

from __future__ import annotations

import pytest
import torch
from support.agreement import agree, run, tensors

TURNS = {
    "one place": ("relu(B[n, t, i] + H[n, t - 1, (i - 1) % 7]) init H0[n, i]", True),
    "the other way": ("tanh(B[n, t, i] + H[n, t - 1, (i + 3) % 7]) init H0[n, i]", True),
    "two steps back": ("B[n, t, i] + 0.5 * H[n, t - 2, (i - 2) % 7] init H0[n, i]", True),
    "zeros before": ("B[n, t, i] + 0.5 * H[n, t - 1, (i + 1) % 7]", True),
    "another lane": ("B[n, t, i] + 0.5 * H[(n + 1) % 3, t - 1, i] init H0[n, i]", True),
    "beside what lies still, further back": (
        "B[n, t, i] * H[n, t - 1, (i + 1) % 7] - H[n, t - 2, i] init H0[n, i]",
        True,
    ),
    "twice alike": ("H[n, t - 1, (i + 1) % 7] * B[n, t, i] + sin(H[n, t - 1, (i + 8) % 7])", False),  # no sine here
    "one row in two ways": ("B[n, t, i] + H[n, t - 1, (i + 1) % 7] - H[n, t - 1, i] init H0[n, i]", False),
    "both lanes": ("B[n, t, i] + 0.5 * H[(n + 1) % 3, t - 1, (i + 1) % 7] init H0[n, i]", False),
    "a whole round": ("B[n, t, i] + 0.5 * H[n, t - 1, (i + 7) % 7] init H0[n, i]", False),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TURNS)
def test_turning_lanes(name: str) -> None:
    body, turned = TURNS[name]
    inputs = "B[N, T, D], H0[N, D]" if "H0" in body else "B[N, T, D]"
    source = f"function ({inputs}) -> (H) {{ H[n, t, i : N, T, D] = {body}; }}"
    given = tensors(*([(3, 5, 7), (3, 7)] if "H0" in body else [(3, 5, 7)]))
    agree(source, *given, tolerance=1e-12)
    _, text = run(source, given)
    assert ("place" in text) is turned


def test_a_part_of_a_turning_row() -> None:
    """Steps that write a part of the lane, since what they read is shorter, still read all of it."""
    for size in range(5):
        (d,) = tensors((size,))
        agree("function (D[N]) -> (V) { V[t, n : 3, 4] = 0.5 * V[t - 1, (n + 1) % 4] + D[n] init n + 1; }", d)


def test_a_turning_row_has_no_margin() -> None:
    body, _ = TURNS["one place"]
    source = f"function (B[N, T, D], H0[N, D]) -> (H) {{ H[n, t, i : N, T, D] = {body}; }}"
    b, h = tensors((3, 5, 7), (3, 7), dtype=torch.float32)
    (states,), _ = run(source, [b, h])
    assert states.untyped_storage().nbytes() == 4 * 3 * 6 * 7
    for t in range(5):
        h = torch.relu(b[:, t] + torch.roll(h, 1, -1))
        assert torch.equal(states[:, t], h)
