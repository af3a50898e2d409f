"""Block programs as readable text, and which output each line of it serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.backends.common.blocks.ir import (
    Apply,
    BlockProgram,
    Cast,
    CumulativeSum,
    DotOp,
    Full,
    Load,
    Loop,
    MaskWhere,
    Number,
    Op,
    Positions,
    ProgramId,
    Reduce,
    SizeArgument,
    Store,
    Value,
    every_operation,
    operands,
    results,
)


def served_lines(kernel: BlockProgram) -> list[tuple[str, str]]:
    """The kernel as text, one operation a line, each with the output that it serves, empty for those that serve none
    alone."""
    axes = ", ".join(f"{a} = {n}" for a, n in kernel.axes.items())
    tensors = ", ".join(f"{'out ' if t.written else ''}{t.name}: {t.dtype}" for t in kernel.tensors)
    heading = f"kernel {kernel.name}({tensors})  axes {axes}  grid {kernel.grid}"
    return [(heading, ""), *_lines(kernel.body, 1, served_outputs(kernel))]


def _lines(ops: Sequence[Op], level: int, served: Mapping[Value, str]) -> Iterator[tuple[str, str]]:
    indent = "  " * level
    for op in ops:
        if isinstance(op, Loop):
            pairs = ", ".join(f"{c} = {i}" for c, i in zip(op.carried, op.initial, strict=True))
            yield f"{indent}for {op.counter} in {op.start} to {op.stop} by {op.step} carrying {pairs or 'nothing'}:", ""
            yield from _lines(op.body, level + 1, served)
            yield f"{indent}  next {_listed(op.yielded)}", ""
            yield f"{indent}-> {_listed(op.results)}", ""
        elif isinstance(op, Store):
            when = "" if op.condition is None else f" where {op.condition}"
            yield f"{indent}store {op.tensor}[{_listed(op.index)}] = {op.value}{when}", op.tensor
        else:
            yield f"{indent}{op.out}: {op.out.type} = {_right(op)}", served.get(op.out, "")


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(map(str, values))


def _right(op: Op) -> str:
    match op:
        case Number(_, value):
            return repr(value)
        case SizeArgument(_, name):
            return f"size {name}"
        case ProgramId():
            return "program"
        case Positions(out):
            return f"positions {out.type.axes[0]}"
        case Full(_, value):
            return f"fill {value!r}"
        case Apply(_, function, args):
            return f"{function}({_listed(args)})"
        case MaskWhere(_, test, mask, value, other):
            return f"{value} where {mask} else {other}, if {test}"
        case Cast(out, value):
            return f"cast {value} to {out.type.dtype}"
        case Load(_, tensor, index, condition, other):
            return f"load {tensor}[{_listed(index)}]" + (f" where {condition} else {other}" if condition else "")
        case Reduce(_, aggregation, axis, value, _):
            return f"{aggregation} of {value} over {axis}"
        case CumulativeSum(_, axis, value):
            return f"running sum of {value} along {axis}"
        case DotOp(_, axis, left, right, accumulator, precision):
            added = f"{accumulator} + " if accumulator is not None else ""
            return f"{added}dot({left}, {right}) over {axis}" + (f" in {precision}" if precision else "")
    raise AssertionError(f"no operation: {op!r}")


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
