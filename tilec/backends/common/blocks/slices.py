"""Which output each operation of a block program serves: backward slices from its stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.backends.common.blocks.ir import BlockProgram, Loop, Op, Store, Value, every_operation, operands, results


def served_outputs(kernel: BlockProgram) -> dict[int, str]:
    """Value number -> the first tensor, in the order of the stores, that depends on the value. Values of a loop's body
    serve what the loop's results serve; those that only steer a loop serve what it carries."""
    needs = dict(_needs(kernel.body))
    found: dict[int, str] = {}
    for store in (op for op in every_operation(kernel.body) if isinstance(op, Store)):
        waiting = [v.number for v in operands(store)]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found[number] = store.tensor
                waiting += needs.get(number, ())
    return found


def _needs(ops: Sequence[Op]) -> Iterator[tuple[int, list[int]]]:
    """For each value the numbers of those that it is computed from."""
    for op in ops:
        if isinstance(op, Loop):
            yield from _needs(op.body)
            steering = _numbers((op.start, op.stop))
            yield op.counter.number, steering
            for carried, initial, value, result in zip(op.carried, op.initial, op.yielded, op.results, strict=True):
                yield carried.number, [*_numbers((initial, value)), *steering]
                yield result.number, [carried.number]
        else:
            for out in results(op):
                yield out.number, _numbers(tuple(operands(op)))


def _numbers(values: Sequence[Value]) -> list[int]:
    return [v.number for v in values]
