"""What a program is made of once it is planned for given layouts: allocations, launches, calls of torch, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilec.backends.triton.plan.device_info import PLANNED_FOR, DeviceInfo
from tilec.backends.triton.plan.source import KernelFile
from tilec.cost import size_in_bytes
from tilec.ir.program import Program, Statement
from tilec.ir.types import TensorType
from tilec.transforms.util.tiled import Combine, Slice, TiledCall, Whole


def owner(tensor: str) -> str:
    """The statement's output that a workspace belongs to: `O.parts` is O's."""
    return tensor.split(".")[0]


@dataclass(frozen=True)
class Setting:
    """What a plan depends on beside types and strides. `precision`: torch.get_float32_matmul_precision(). `library`:
    may torch's own products and convolutions serve where they are exact? `device`: what runs it. `misaligned`: inputs
    whose first element is not at a multiple of 16 bytes. `known`: says what tuning found for a product. `exact`:
    recurrences are computed in their own order. `margins`: of positions by which scatters share a sort, by output.
    `fixed`: outputs of scatters that are added in fixed point. `padded`: tensors of the plan whose rows have room
    behind them, up to whole vectors."""

    precision: str = "highest"
    library: bool = False
    device: DeviceInfo = PLANNED_FOR
    misaligned: tuple[str, ...] = ()
    known: Callable[..., Mapping[str, int | str] | None] | None = None
    exact: bool = False
    margins: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict, hash=False)
    fixed: frozenset[str] = frozenset()
    padded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Descriptor:
    """A TMA tensor map over a view of a tensor: `offset` elements from its first one, `shape`, `strides` in elements
    (the last is 1), boxes of `block`; `layout` is the text of the Gluon layout, empty for kernels of Triton
    proper."""

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class Pointer:
    """The address of a tensor's first element."""

    tensor: str


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `file`: files of equal text are compiled once, so sizes are arguments. `arguments` and then
    `constants` (tl.constexpr) are the parameters in the order of the signature. `fusion`: may a product and a sum be
    rounded once? `cooperative`: all programs run at once, as they wait for each other. `horizontal`: one launch with
    its neighbours is wanted, where none needs another (horizontal fusion). `block`: makes the lines of the block
    program that the text is written from, where there is one, each with the output that it serves. `registers`: of a
    thread, at most; 0 where that is the compiler's choice."""

    file: KernelFile
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, object], ...]
    constants: tuple[tuple[str, object], ...]
    warps: int
    stages: int
    statements: tuple[str, ...]
    fusion: bool = True
    cooperative: bool = False
    horizontal: bool = False
    block: Callable[[], list[tuple[str, str]]] | None = field(default=None, compare=False, repr=False)
    registers: int = 0

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.file.kernel.name

    @property
    def text(self) -> str:
        return self.file.text

    @property
    def contracts(self) -> bool:
        """May a product and a sum be rounded once?"""
        return self.fusion and self.file.kernel.contracts

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that it is given, each once."""
        return tuple(dict.fromkeys([v.tensor for _, v in self.arguments if isinstance(v, Pointer | Descriptor)]))

    @cached_property
    def maps(self) -> bool:
        """Is it given tensor maps?"""
        return Descriptor in [type(v) for _, v in self.arguments]

    def given(self, others: Mapping[str, str]) -> Launch:
        """The launch, given other tensors in the place of these."""

        def other(value: object) -> object:
            if isinstance(value, Pointer | Descriptor) and value.tensor in others:
                return replace(value, tensor=others[value.tensor])
            return value

        return replace(self, arguments=tuple((name, other(v)) for name, v in self.arguments))


@dataclass(frozen=True)
class Repeat:
    """Kernels launched in turn, `count` times: the argument of each that `counters` names is 0, 1, ..., count - 1."""

    launches: tuple[Launch, ...]
    counters: tuple[str, ...]
    count: int

    @property
    def statements(self) -> tuple[str, ...]:
        return self.launches[-1].statements

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the kernels are given, each once."""
        return tuple(dict.fromkeys(name for launch in self.launches for name in launch.tensors))


@dataclass(frozen=True)
class Allocate:
    """A new contiguous tensor; `fill` is what it holds first: nothing known (None), a number, or the elements of the
    tensor of that name."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    fill: float | int | bool | str | None = None


@dataclass(frozen=True)
class Table:
    """A constant tensor of integers, made once a plan."""

    tensor: str
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TorchLines:
    """Python lines over torch: `reads` and `writes` name the tensors, which are local variables of the lines as are
    `device` and `numbers`, sizes that are left open; `dtypes`: of `writes`; `statements`: outputs of those carried out.
    `own_precision`: they run with cuDNN in the precision of matrix products, which torch keeps for all; `gradient`: the
    convolution's call that they are, which another may be part of."""

    lines: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    statements: tuple[str, ...]
    dtypes: tuple[str, ...]
    numbers: tuple[tuple[str, int], ...] = ()
    own_precision: bool = False
    gradient: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Release:
    """These intermediates are read no more."""

    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """A tensor that a statement's kernel reads beside inputs. Others may ask for the same, or for one over the same
    points, so how it is made is said when all steps are there (`materialize.py`): none is left in a plan. `alone`:
    steps that make it by itself; types and strides are those of the views that its statement indexes."""

    statement: Statement
    types: Mapping[str, TensorType]
    strides: Mapping[str, tuple[int, ...]]
    int64_index: bool
    alone: Callable[[], Sequence[Step]]


@dataclass(frozen=True)
class Once:
    """Steps that make the tensors `makes`, as others with an equal `key` would under names of their own. They are made
    once (`materialize.py`): none is left in a plan."""

    key: object
    makes: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class SubPlan:
    """A program of its own within a plan, whose tensors it alone knows: it is given `inputs` and makes its plan's
    outputs, both under the names that they have outside. `types` of what it names; `program`: the statements."""

    plan: Plan
    inputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    program: Program


@dataclass(frozen=True)
class TiledLoop:
    """Parts carried out for the rows of an axis, a slab after the other. Their inputs stand in the order of sources."""

    calls: tuple[TiledCall[SubPlan], ...]

    @property
    def parts(self) -> tuple[SubPlan, ...]:
        return tuple(call.program for call in self.calls)


Step = Allocate | Request | Once | Launch | Repeat | Table | TorchLines | Release | SubPlan | TiledLoop


def made_by(step: Step) -> dict[str, str]:
    """The tensors that a step makes, parts of plans aside, with their element types."""
    match step:
        case Allocate(tensor, _, dtype):
            return {tensor: dtype}
        case Table(tensor):
            return {tensor: "int32"}
        case TorchLines():
            return dict(zip(step.writes, step.dtypes, strict=True))
    return {}


@dataclass(frozen=True)
class Plan:
    """Steps in order, which make the outputs of these names."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    def parts(self) -> Iterator[SubPlan]:
        """The programs within the plan and within those, innermost first."""
        for s in self.steps:
            for part in (s,) if isinstance(s, SubPlan) else s.parts if isinstance(s, TiledLoop) else ():
                yield from part.plan.parts()
                yield part

    def launches(self) -> list[Launch]:
        """Every kernel, in order; one that is launched again and again stands once."""
        found: list[Launch] = []
        for s in self.steps:
            match s:
                case Launch():
                    found.append(s)
                case Repeat(launches=launches):
                    found += launches
                case SubPlan(plan=plan):
                    found += plan.launches()
                case TiledLoop():
                    found += [launch for part in s.parts for launch in part.plan.launches()]
        return found


def allocates(plan: Plan, name: str) -> bool:
    """Does a step only take memory for the tensor, and none makes it itself?"""
    taken = [s for s in plan.steps if isinstance(s, Allocate) and s.tensor == name]
    made = any(isinstance(s, TorchLines) and name in s.writes for s in plan.steps)
    return not made and len(taken) == 1 and taken[0].fill is None


def stored_bytes(plan: Plan, flat: Program, types: Mapping[str, TensorType]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each intermediate in memory, and of the workspaces of each statement, by output."""
    outputs = {s.output for s in flat.statements}
    own: dict[str, int] = {}
    work: dict[str, int] = {}
    for step in plan.steps:
        made = {}
        if isinstance(step, Allocate):
            made = {step.tensor: size_in_bytes(TensorType(step.shape, step.dtype))}
        elif isinstance(step, TorchLines):
            made = {n: size_in_bytes(types[n]) for n in step.writes if n in types}
        for name, size in made.items():
            if name in flat.outputs:
                continue
            if name in outputs:
                own[name] = size
            else:
                statement = owner(name)
                work[statement] = work.get(statement, 0) + size
    return own, work


def temporary_bytes(plan: Plan, types: Mapping[str, TensorType]) -> int:
    """The most bytes that intermediates and workspaces take at a time. `types` of what no step allocates."""
    alive: dict[str, int] = {}
    most = 0
    for step in plan.steps:
        inner = 0
        made: dict[str, int] = {}
        match step:
            case Allocate(tensor, shape, dtype):
                made = {tensor: size_in_bytes(TensorType(shape, dtype))}
            case TorchLines(writes=writes):
                made = {n: size_in_bytes(types[n]) for n in writes if n in types}
            case SubPlan(plan=own, types=known):
                inner = temporary_bytes(own, known)
                made = {n: size_in_bytes(known[n]) for n in own.outputs}
            case TiledLoop((call, *_)):
                own, known = call.program.plan, call.program.types
                given = zip(call.program.inputs, call.sources, strict=True)
                copies = sum(size_in_bytes(known[n]) for n, x in given if isinstance(x, Slice) and x.copied)
                inner = copies + temporary_bytes(Plan(own.steps, ()), known)
            case Release(tensors):
                for name in tensors:
                    alive.pop(name, None)
        alive |= {name: size for name, size in made.items() if name not in plan.outputs}
        most = max(most, sum(alive.values()) + inner)
    return most


def repeated_bytes(plan: Plan) -> int:
    """Bytes that slabs move and the whole would not: what each of them reads anew, and sums that it adds to."""
    total = 0
    for step in plan.steps:
        if isinstance(step, SubPlan):
            total += repeated_bytes(step.plan)
        elif isinstance(step, TiledLoop):
            part, count = step.parts[0], sum(call.count for call in step.calls)
            given = zip(part.inputs, step.calls[0].sources, strict=True)
            again = sum(size_in_bytes(part.types[n]) for n, x in given if isinstance(x, Whole))
            sinks = [(part.plan.outputs[k], x) for k, x in step.calls[0].sinks]
            added = sum(size_in_bytes(part.types[n]) for n, x in sinks if isinstance(x, Combine))
            total += (count - 1) * again + 3 * count * added + count * repeated_bytes(part.plan)
    return total
