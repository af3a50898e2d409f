"""Outputs of interpreted kernels have memory of their own."""

import os

import pytest
from support.memory import PROGRAMS, SHAPES, called, drawn, owned
from torch import float64

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(3)
def test_outputs_share_no_memory(name):
    f = tilec.compile(PROGRAMS[name], backend="triton")
    for sizes in SHAPES:
        inputs = drawn(PROGRAMS[name], sizes, float64)
        owned(called(f, inputs), inputs)
