"""Values of block programs have operators."""

from __future__ import annotations

import numpy as np
import pytest
from support.block_interpreter import run_kernel

from tilec.backends.common.blocks.builder import INDEX_TYPE, INT64, Builder
from tilec.backends.common.blocks.ir import Apply, BlockProgram, Number, Tensor, every_operation, operands
from tilec.backends.common.blocks.verify import verify_kernel


def test_operators_compute_what_they_say_in_the_longer_type() -> None:
    b = Builder({"x": 8})
    x = b.positions("x")
    wide = b.cast(x, INT64)
    values = {
        "sum": x + wide,
        "turned": 7 - x,
        "mixed": (x * 3 + 1) // 2 % 5,
        "chosen": b.cast((x > 2) & (x.differs(5)) | x.equals(0), INDEX_TYPE),
    }
    assert [v.type.dtype for v in values.values()] == [INT64, *(INDEX_TYPE,) * 3]
    for name, v in values.items():
        b.store(name, [x], v)
    tensors = tuple(Tensor(name, v.type.dtype, 1, True) for name, v in values.items())
    program = verify_kernel(BlockProgram("k", b.axes, tensors, {}, 1, b.body))
    n = np.arange(8)
    found = run_kernel(program, {name: np.zeros(8, v.type.dtype) for name, v in values.items()})
    chosen = (n > 2) & (n != 5) | (n == 0)
    for name, wanted in {"sum": 2 * n, "turned": 7 - n, "mixed": (3 * n + 1) // 2 % 5, "chosen": chosen}.items():
        assert (found[name] == wanted).all(), name


@pytest.mark.parametrize("dtype", ["float32", INT64, INDEX_TYPE])
def test_numbers_take_the_type_of_the_value_beside_them(dtype: str) -> None:
    b = Builder({"x": 4})
    v = b.load("X", dtype, [b.positions("x")]) * 2
    b.store("O", [b.positions("x")], v)
    numbers = [op for op in every_operation(b.body) if isinstance(op, Number)]
    (product,) = (op for op in every_operation(b.body) if isinstance(op, Apply))
    assert [n.out.type.dtype for n in numbers] == [dtype] and list(operands(product)) == [*product.args]
