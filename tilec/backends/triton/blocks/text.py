"""Block programs as Triton kernels: the one place that knows how a block operation is written there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

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
)
from tilec.backends.common.code import literal, python_name
from tilec.backends.triton.blocks.boxes import BoxLoad
from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, StoreLine, assign
from tilec.backends.triton.plan.source import PROGRAM, KernelFile, KernelFunction
from tilec.ir.functions import FUNCTIONS

TRITON_FUNCTIONS: Mapping[str, str] = {
    "quotient": "({0} / {1})",
    "reciprocal": "(tl.rsqrt({0}) * tl.rsqrt({0}))",  # two instructions, where a division is four
    "exp2": "tl.exp2({0})",
    "log2": "tl.log2({0})",
    "floordiv": "({0} // {1})",
    "rest": "({0} % {1})",
    "larger": "tl.maximum({0}, {1})",
    "smaller": "tl.minimum({0}, {1})",
}
TRITON_REDUCTIONS: Mapping[tuple[str, bool], str] = {
    ("sum", False): "tl.sum({0}, {1})",
    ("max", False): "tl.max({0}, {1})",
    ("max", True): "tl.reduce({0}, {1}, maximum_)",
    ("min", False): "tl.min({0}, {1})",
    ("min", True): "tl.reduce({0}, {1}, minimum_)",
}


@cache
def template_of(function: str, language: str) -> str:
    """The text of a function of blocks in Triton (`tl`) or Gluon (`gl`), with places for its operands."""
    template = TRITON_FUNCTIONS.get(function) or FUNCTIONS[function].triton
    assert template is not None, function
    return template.replace("tl.", f"{language}.")


def stride_name(tensor: str, dimension: int) -> str:
    """The kernel's argument that is the distance of neighbours along a dimension of a tensor, in elements."""
    return f"{python_name(tensor)}_s{dimension}"


def print_kernel(
    kernel: BlockProgram,
    int64_tensors: Sequence[str],
    heading: Sequence[str],
    loads: Mapping[Value, BoxLoad],
    factors: Mapping[tuple[str, int], int],
    at_distances: bool = False,
) -> KernelFile:
    """The file of a kernel. Its arguments are tensor maps, the tensors, the sizes, and the strides of each tensor.
    `int64_tensors`: those whose positions need 64 bits. `heading`: comments. `loads`: what maps bring, by value.
    `factors`: of strides by tensor and axis; the argument is the stride without it. `at_distances`: where a row of
    elements begins is a term of its own: what a thread reads of it lies at distances from its first element that do not
    change then, where 32-bit sums take an address each."""
    arguments = list(dict.fromkeys(box.parameter for box in loads.values()))
    arguments += [python_name(t.name) for t in kernel.tensors]
    arguments += list(kernel.sizes)
    arguments += [stride_name(t.name, d) for t in kernel.tensors for d in range(t.rank)]
    writer = BlockText(kernel, frozenset(int64_tensors), set(arguments), loads, factors, at_distances)
    body = tuple(writer.lines(kernel.body))
    return kernel_file(KernelFunction(kernel.name, tuple(arguments), (), body, heading=tuple(heading)))


class BlockText:
    language = "tl"

    def __init__(
        self,
        kernel: BlockProgram,
        int64_tensors: frozenset[str],
        taken: set[str],
        loads: Mapping[Value, BoxLoad],
        factors: Mapping[tuple[str, int], int] | None = None,
        at_distances: bool = False,
    ):
        self.kernel, self.int64_tensors, self.loads, self.factors = kernel, int64_tensors, loads, factors or {}
        self.taken = taken | {"tl", "triton", "libdevice", "range", "float"}
        self.counts: Counter[str] = Counter()  # numbers from which names are free, by stem
        self.names: dict[Value, str] = {}
        self.numbers: dict[Value, float | int | bool] = {}
        every = every_operation(kernel.body) if at_distances else ()
        self.moved = {op.out: op.args for op in every if isinstance(op, Apply) and _is_moved(op)}

    def lines(self, ops: Sequence[Op], yielded: Sequence[Value] = ()) -> list[CodeLine]:
        """The lines of operations, of a loop where it yields values."""
        found: list[CodeLine] = []
        masks = [op for op in ops if isinstance(op, MaskWhere)]
        alone = _of_masks_alone(ops, yielded) if masks else {}
        for op in ops:
            match op:
                case Apply(out) if out in alone:
                    continue
                case MaskWhere():
                    found += self._masked(op, masks, alone)
                case Number(out, value):
                    self.names[out] = literal(value)
                    self.numbers[out] = value
                case SizeArgument(out, name):
                    self.names[out] = name
                case Loop():
                    found += self._loop(op)
                case Store(tensor, index, value, condition):
                    axes = [a for a in self.kernel.axes if any(a in v.type.axes for v in index)]
                    place = self.place(tensor, index, axes)
                    mask = None if condition is None else self.spread(condition, axes)
                    found.append(StoreLine(place, self.spread(value, axes), mask))
                case _:
                    text = self.right_side(op)
                    found.append(assign(self.named(op.out), text))
        return found

    def _masked(self, op: MaskWhere, masks: Sequence[MaskWhere], alone: Mapping[Value, Apply]) -> list[CodeLine]:
        """The lines of this operation and of all later ones under its test whose operands are there."""
        if op.out in self.names:
            return []
        there = [
            m
            for m in masks
            if m.test == op.test and m.out not in self.names and {m.value, m.other} <= self.names.keys()
        ]
        needed = {m.mask for m in there}
        for out, x in reversed([*alone.items()]):
            if out in needed:
                needed.update(x.args)
        found: list[CodeLine] = [assign(self.named(m.out), self.names[m.value]) for m in there]
        inner: list[CodeLine] = []
        for out, x in alone.items():
            if out in needed:
                text = self.right_side(x)
                inner.append(assign(self.named(out), text))
        for m in there:
            shown = self.names[m.out]
            mask = self.spread(m.mask, m.value.type.axes)
            other = f"{self.language}.full((), {self.names[m.other]}, {self.type_text(m.other.type.dtype)})"
            inner.append(assign(shown, f"{self.language}.where({mask}, {shown}, {other})"))
        return [*found, If(self.names[op.test], tuple(inner))]

    def type_text(self, dtype: str) -> str:
        return f"{self.language}.{'int1' if dtype == 'bool' else dtype}"

    def named(self, v: Value) -> str:
        base = python_name(v.hint).lower() or "t"
        count = self.counts[base]
        while (name := f"{base}_{count}" if count else base) in self.taken:
            count += 1
        self.counts[base] = count + 1
        self.taken.add(name)
        self.names[v] = name
        return name

    def carried(self, op: Loop) -> list[CodeLine]:
        """Lines that give what a loop carries its first values."""
        found: list[CodeLine] = []
        for carried, initial, result in zip(op.carried, op.initial, op.results, strict=True):
            found.append(assign(self.named(carried), self.names[initial]))
            self.names[result] = self.names[carried]
        return found

    def _loop(self, op: Loop) -> list[CodeLine]:
        found = self.carried(op)
        head = f"{self.names[op.start]}, {self.names[op.stop]}, {op.step}"
        counter = self.named(op.counter)
        inner = self.lines(op.body, op.yielded)
        ready = {*op.carried}
        for carried, value in zip(op.carried, op.yielded, strict=True):
            assert value == carried or value not in ready, "carried values that change places"
            if value != carried:
                inner.append(assign(self.names[carried], self.names[value]))
        return found if not inner else [*found, ForLoop(counter, f"{self.language}.range({head})", tuple(inner))]

    def spread(self, v: Value, axes: Sequence[str]) -> str:
        """The value with dimensions for all of these axes, or a scalar."""
        name = self.names[v]
        if not v.type.axes or list(v.type.axes) == list(axes):
            return name
        return f"{name}[{', '.join(':' if a in v.type.axes else 'None' for a in axes)}]"

    def place(self, tensor: str, index: Sequence[Value], axes: Sequence[str]) -> str:
        terms = []
        moved = self.moved if len(axes) == 1 else {}
        parts = ((d, part) for d, place in enumerate(index) for part in moved.get(place, (place,)))
        for d, v in parts:
            if self.numbers.get(v) == 0 and not isinstance(self.numbers[v], bool):
                continue
            text = self.spread(v, axes)
            if tensor in self.int64_tensors and v not in self.numbers:
                text = f"{text}.to({self.language}.int64)"
            factor = self.factors.get((tensor, d))
            stride = stride_name(tensor, d) if factor is None else f"({stride_name(tensor, d)} * {factor})"
            terms.append((len(v.type.axes), f"{text} * {stride}"))
        terms.sort(key=lambda t: t[0])
        return " + ".join([python_name(tensor), *(t for _, t in terms)])

    def right_side(self, op: Op) -> str:
        match op:
            case ProgramId():
                return PROGRAM[0]
            case Positions(out):
                return f"{self.language}.arange(0, {self.kernel.axes[out.type.axes[0]]})"
            case Full(out, value):
                shape = ", ".join(str(self.kernel.axes[a]) for a in out.type.axes)
                comma = "," if len(out.type.axes) == 1 else ""
                shape = f"({shape}{comma})"
                return f"{self.language}.full({shape}, {literal(value)}, {self.type_text(out.type.dtype)})"
            case Apply():
                return self._apply(op)
            case Cast(out, value):
                if value in self.numbers:
                    return f"{self.language}.full((), {self.names[value]}, {self.type_text(out.type.dtype)})"
                return f"{self.names[value]}.to({self.type_text(out.type.dtype)})"
            case Load(out) if out in self.loads:
                return self._boxed(out, self.loads[out])
            case Load(out, tensor, index, condition, other):
                axes = out.type.axes
                place = self.place(tensor, index, axes)
                if condition is None:
                    return f"{self.language}.load({place})"
                mask = self.spread(condition, axes)
                return f"{self.language}.load({place}, mask={mask}, other={literal(other)})"
            case Reduce(_, aggregation, axis, value, careful):
                template = TRITON_REDUCTIONS[aggregation, careful and aggregation != "sum"]
                template = template.replace("tl.", f"{self.language}.")
                return template.format(self.names[value], value.type.axes.index(axis))
            case CumulativeSum(_, axis, value):
                return f"{self.language}.cumsum({self.names[value]}, {value.type.axes.index(axis)})"
            case DotOp(out, axis, left, right, accumulator, precision):
                a, b = self.names[left], self.names[right]
                a = a if left.type.axes[1] == axis else f"{self.language}.trans({a})"
                b = b if right.type.axes[0] == axis else f"{self.language}.trans({b})"
                added = "" if accumulator is None else f", acc={self.names[accumulator]}"
                how = "" if precision is None else f', input_precision="{precision}"'
                return f"{self.language}.dot({a}, {b}{added}{how})"
        raise AssertionError(f"no operation: {op!r}")

    def _boxed(self, out: Value, box: BoxLoad) -> str:
        offsets = ", ".join("0" if v is None else self.names[v] for v in box.offsets)
        shape = ", ".join(str(self.kernel.axes[a]) for a in box.axes)
        text = f"{box.parameter}.load([{offsets}])"
        text = text if len(box.axes) == len(box.offsets) else f"{text}.reshape({shape})"
        return text if box.axes == out.type.axes else f"{self.language}.trans({text})"

    def _apply(self, op: Apply) -> str:
        template = template_of(op.function, self.language)
        axes = op.out.type.axes
        plain = template.startswith("({0}") or op.function in ("larger", "smaller")
        all_numbers = all(v in self.numbers for v in op.args)
        texts = []
        for v in op.args:
            text = self.spread(v, axes)
            is_literal = v in self.numbers
            if is_literal and (not plain or all_numbers):
                text = f"{self.language}.full((), {text}, {self.type_text(v.type.dtype)})"
            texts.append(text)
        if template.count("{0}") > 1 or template.startswith("(-"):
            texts[0] = f"({texts[0]})"
        return template.format(*texts)


def _is_moved(op: Apply) -> bool:
    """Whether positions along an axis are moved by one number."""
    return op.function == "add" and len(op.out.type.axes) == 1 and sorted(len(v.type.axes) for v in op.args) == [0, 1]


def _of_masks_alone(ops: Sequence[Op], yielded: Sequence[Value]) -> dict[Value, Apply]:
    """The operations that nothing needs but masks that hold under a test, by value, in order."""
    needed = {*yielded, *(v for op in ops if isinstance(op, Loop) for v in (*op.yielded, *_read_inside(op.body)))}
    found: list[Apply] = []
    for op in reversed(ops):
        if isinstance(op, MaskWhere):
            needed |= {op.test, op.value, op.other}
        elif isinstance(op, Apply) and op.out not in needed:
            found.append(op)
        else:
            needed.update(operands(op))
    return {op.out: op for op in reversed(found)}


def _read_inside(ops: Sequence[Op]) -> set[Value]:
    return {v for op in every_operation(ops) for v in operands(op)}
