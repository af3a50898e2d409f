"""Results lie in memory as what they are made of does."""

import pytest
import torch

import tilec
from tilec.transforms.axis_orders import axis_order, axis_orders, counted_orders
from tilec.transforms.bind.bind import bind

LAST, LAST_3D, GROUPS = (0, 2, 3, 1), (0, 2, 3, 4, 1), (0, 3, 4, 1, 2)
OF_IMAGES = {  # statements that make Y of channels-last images X, and the order that it gets
    "Y = exp(X);": LAST,
    "Y[n, c, y, x : N, C, H / 2, W / 2] = >(X[n, c, 2*y + j, 2*x + i]), j < 2, i < 2;": LAST,
    "Y[n, c, 2*y + j, 2*x + i : N, C, 2*H, 2*W] = X[n, c, y, x], j < 2, i < 2;": LAST,
    "Z = reshape(X, N, 2, C / 2, H, W); Y = reshape(exp(Z), N, C, H, W);": LAST,
    "Y = reshape(X, N, 2, C / 2, H, W);": GROUPS,
    "Z = exp(X); Y[n, c, y, x] = Z[n, c, y, x] * c;": LAST,
    "Y[n, c, y, k : N, C, H, 7] = +(X[n, c, y, x] * x * k);": None,  # as attention's results of scores are
    "Y[n, y, x, c : N, H, W, C] = X[n, c, y, x];": None,
    "Y[n, c, x, y : N, C, W, H] = X[n, c, y, x];": None,
    "Y[n, y, x : N, H, W] = +(X[n, c, y, x]);": None,
    "Y[n, c, y, x : N, C, H, W] = X[n, c, y, x] + Y[n, c, y, x - 1] init 0;": None,
}
OF_SEVERAL = {  # the first input's order, and the output's
    "X[N, C, H, W], Z[N, C, H, W]": ("Y = Z + X;", LAST),
    "X[N, C, H, W], K[O, C, 3, 3]": ("Y[n, o, y, x : N, O, H, W] = +(X[n, c, y + j, x + i] * K[o, c, j, i]);", LAST),
    "X[N, C, H, W], D[N, O, H, W]": ("Y[o, c, j, i : O, C, 3, 3] = +(X[n, c, y + j, x + i] * D[n, o, y, x]);", LAST),
    "X[N, C, D, H, W]": ("Y[n, c, z, y, x : N, C, D, H, W] = X[n, c, D - 1 - z, y, x];", LAST_3D),
}
SIZES = {"N": 2, "C": 4, "D": 10, "H": 6, "W": 8, "O": 3, 3: 3}


def order_of_y(head: str, text: str, given: dict) -> tuple[int, ...] | None:
    how = tilec.compile(f"function ({head}) -> (Y) {{ {text} }}")._specialiser
    inputs = [torch.empty([SIZES[d] for d in i.dims]) for i in how.program.inputs]
    return axis_orders(bind(how.program, how.types(inputs, [False] * len(inputs)), {}), given).get("Y")


@pytest.mark.parametrize("text", OF_IMAGES)
def test_what_is_made_of_images(text):
    assert order_of_y("X[N, C, H, W]", text, {"X": LAST}) == OF_IMAGES[text]
    assert order_of_y("X[N, C, H, W]", text, {}) is None


@pytest.mark.parametrize("head", OF_SEVERAL)
def test_what_is_made_of_several(head):
    text, wanted = OF_SEVERAL[head]
    assert order_of_y(head, text, {"X": wanted}) == wanted


def test_orders_are_told_by_strides():
    x = torch.empty(2, 3, 4, 5)
    last = x.to(memory_format=torch.channels_last)
    groups = torch.empty(2, 6, 4, 5).to(memory_format=torch.channels_last).unflatten(1, (2, 3))
    for t in (last, last[:, :2, 1:], last[:1]):
        assert axis_order(t.shape, t.stride()) == LAST
    assert axis_order(groups.shape, groups.stride()) == GROUPS
    rows = (
        x,
        last[:, :1],
        last[:, :, :1, :1],
        x[:, :1].expand(2, 3, 4, 5),
        x.mT,
        x.permute(2, 0, 3, 1),
        x[0].mT,
        x[:0],
    )
    for t in rows:
        assert axis_order(t.shape, t.stride()) is None
    assert counted_orders(3) == () and counted_orders(4) == (LAST,) and LAST_3D in counted_orders(5)
