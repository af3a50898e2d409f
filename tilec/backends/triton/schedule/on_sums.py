"""Which products have elementwise statements computed on their sums, in Hopper's kernels, before these are stored.

Otherwise the product is stored and read again by another kernel. That is one pass over memory more, but its
instructions are hidden by memory, and a library may multiply: estimates of both times decide.
"""

from __future__ import annotations

import math

from tilec.backends.triton.fusion.invariants import costly_instructions
from tilec.backends.triton.matmul.dot import LAUNCH_SECONDS, MEMORY_BYTES, MatrixProduct
from tilec.backends.triton.matmul.hopper.epilogue import Epilogue
from tilec.backends.triton.matmul.hopper.steps import hopper_steps, product_time
from tilec.backends.triton.plan.plan import Step
from tilec.backends.triton.schedule.problem import Problem
from tilec.cost import size_in_bytes
from tilec.ir.program import Access, Call, Expr, accesses_in, walk

LIBRARY = 0.95  # of the time of Hopper's kernels, what a library takes for a product of matrices
LOADED = 3  # instructions that bring an element of a tensor as large as the product


def on_sums(p: Problem, product: MatrixProduct | None) -> list[Step] | None:
    """Steps that compute a product and its epilogue in one launch; None where two take less time, or there is none."""
    if product is None or not p.epilogue:
        return None
    epilogue = _epilogue(p)
    steps = hopper_steps(product, p.setting, epilogue=epilogue)
    if steps is None:
        return None
    own, plain = product_time(product, p.setting, epilogue), product_time(product, p.setting)
    stored = sum(size_in_bytes(p.types[name]) for name in (p.flat.output, epilogue.output))
    apart = 1e6 * (LAUNCH_SECONDS + (stored + epilogue.bytes_read) / MEMORY_BYTES)
    return steps if own < plain * (LIBRARY if p.setting.library else 1) + apart else None


def _epilogue(p: Problem) -> Epilogue:
    made = {p.flat.output, *(s.output for s in p.epilogue)}
    elements = math.prod(p.types[p.flat.output].shape)
    read = {a for s in p.epilogue for a in accesses_in(s.body) if a.tensor not in made}
    instructions = sum(_instructions(x, p) for s in p.epilogue for x in {*walk(s.body)})
    instructions += LOADED * sum(math.prod(p.types[a.tensor].shape) >= elements for a in read)
    bytes_read = sum(size_in_bytes(p.types[name]) for name in {a.tensor for a in read})
    return Epilogue(p.space, p.epilogue, p.types, p.strides, p.int64_index, instructions, bytes_read)


def _instructions(e: Expr, p: Problem) -> float:
    return max(costly_instructions(e, p.types), 1) if isinstance(e, Call) else 0
