"""Which products have elementwise statements computed on their sums, in Hopper's kernels, before these are stored.

Otherwise the product is stored and read again by another kernel. That is one pass over memory more, but its
instructions are hidden by memory, and a library may multiply: estimates of both times decide.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.backends.triton.emit.epilogue import epilogue_over
from tilec.backends.triton.fusion.invariants import costly_instructions
from tilec.backends.triton.iteration.coalesce import coalesce
from tilec.backends.triton.matmul.blocks import short_block
from tilec.backends.triton.matmul.dot import LAUNCH_SECONDS, MEMORY_BYTES, MatrixProduct, product_over, short_sums_pay
from tilec.backends.triton.matmul.hopper.epilogue import Epilogue
from tilec.backends.triton.matmul.hopper.steps import timed_steps
from tilec.backends.triton.matmul.steps import dot_steps
from tilec.backends.triton.plan.plan import Step
from tilec.backends.triton.schedule.problem import Problem
from tilec.cost import size_in_bytes
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Call, Expr, Statement, accesses_in, children, walk

# of the time of Hopper's kernels, what a library takes for a product of matrices
LIBRARY_SHARE = {"bfloat16": 0.95, "float16": 0.95, "float32": 0.87}
DRAW_INSTRUCTIONS = 100  # instructions of a random number
# instructions of functions that take fewer or more than others of their kind
OWN_INSTRUCTIONS = {"silu": 12, "sigmoid": 10, "tanh": 80}
LOADED = 3  # instructions that bring an element of a tensor as large as the product


def on_sums(p: Problem, by_library: bool, stored: bool = False) -> list[Step] | None:
    """Steps that compute a product and its epilogue in one launch; None where two take less time, or there is none.
    `by_library`: whether a library would multiply otherwise. `stored`: the product is stored as well."""
    if p.product is None or not p.epilogue:
        return None
    product, statements = _coalesced(p, p.product)
    epilogue = replace(_epilogue(p, product, statements), stored=stored)
    # programs of a library share boxes, so that it hardly matters there where rows begin
    found, plain = (
        timed_steps(product, p.setting, epilogue=e, in_lines=not e and by_library) for e in (epilogue, None)
    )
    if found is None or plain is None:
        return None
    moved = sum(size_in_bytes(p.types[name]) for name in (p.flat.output, epilogue.output)) + epilogue.bytes_read
    apart = 1e6 * (LAUNCH_SECONDS + moved / MEMORY_BYTES)
    if found[0] >= plain[0] * (LIBRARY_SHARE[product.dot.dtype] if by_library else 1) + apart:
        return None
    return found[1]


def in_one_launch(p: Problem, by_library: bool) -> list[Step] | None:
    """The same, or in the kernels that read through pointers, for products of few terms."""
    fused = on_sums(p, by_library)
    if fused is not None or p.product is None or not p.epilogue or not short_sums_pay(p.product, p.epilogue):
        return fused
    return dot_steps(p.product, p.flat, p.setting, p.epilogue, short_block(p.product))


def _coalesced(p: Problem, product: MatrixProduct) -> tuple[MatrixProduct, tuple[Statement, ...]]:
    """The product and its epilogue with all variables merged that every tensor of both walks as one."""
    index = tuple(form.to_expr() for form in product.space.rows)
    after = epilogue_over(product.space, p.epilogue)
    body = product.view.statement.body
    for s in after:
        body = Call("add", (body, Call("add", (s.body, Access(s.output, index)))))
    joint = coalesce(replace(product.view, statement=replace(product.view.statement, body=body)))
    if joint.statement.index == product.view.statement.index:
        return product, tuple(after)
    body, merged = joint.statement.body, list[Statement]()
    for s in reversed(after):
        body, with_place = children(body)
        own = children(with_place)[0]
        merged.append(replace(s, index=joint.statement.index, sizes=joint.statement.sizes, body=own))
    found = product_over(replace(joint, statement=replace(joint.statement, body=body)))
    return (product, tuple(after)) if found is None else (found, tuple(reversed(merged)))


def _epilogue(p: Problem, product: MatrixProduct, statements: tuple[Statement, ...]) -> Epilogue:
    made = {p.flat.output, *(s.output for s in p.epilogue)}
    elements = p.types[p.flat.output].numel
    read = {a for s in p.epilogue for a in accesses_in(s.body) if a.tensor not in made}
    instructions = sum(_instructions(x, p) for s in p.epilogue for x in {*walk(s.body)})
    instructions += LOADED * sum(p.types[a.tensor].numel >= elements for a in read)
    bytes_read = sum(size_in_bytes(p.types[name]) for name in {a.tensor for a in read})
    told = (p.flat, *p.epilogue)
    return Epilogue(product.space, statements, product.view, told, instructions, bytes_read)


def _instructions(e: Expr, p: Problem) -> float:
    if not isinstance(e, Call):
        return 0
    if FUNCTIONS[e.function].result == "random":
        return DRAW_INSTRUCTIONS
    return OWN_INSTRUCTIONS.get(e.function, max(costly_instructions(e, p.types), 1))
