"""Which output each operation of a block program serves: backward slices from its stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.backends.common.blocks.ir import BlockProgram, Loop, Op, Store, Value, every_operation, operands, results


def served_outputs(kernel: BlockProgram) -> dict[Value, str]:
    """Value -> the first tensor, in the order of the stores, that depends on the value. Values of a loop's body
    serve what the loop's results serve; those that only steer a loop serve what it carries."""
    needs = dict(_needs(kernel.body))
    found: dict[Value, str] = {}
    for store in (op for op in every_operation(kernel.body) if isinstance(op, Store)):
        waiting = [*operands(store)]
        while waiting:
            v = waiting.pop()
            if v not in found:
                found[v] = store.tensor
                waiting += needs.get(v, ())
    return found


def _needs(ops: Sequence[Op]) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """For each value the numbers of those that it is computed from."""
    for op in ops:
        if isinstance(op, Loop):
            yield from _needs(op.body)
            steering = op.start, op.stop
            yield op.counter, steering
            for carried, initial, value, result in zip(op.carried, op.initial, op.yielded, op.results, strict=True):
                yield carried, (initial, value, *steering)
                yield result, (carried,)
        else:
            for out in results(op):
                yield out, operands(op)
