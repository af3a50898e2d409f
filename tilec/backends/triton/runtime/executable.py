"""Plans that run: tensors are allocated, kernels launched, torch called; a repeated call does nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tilec.backends.base import KernelSource
from tilec.backends.common.memory import FAILED, TensorMemory
from tilec.backends.common.tiled_program import Tensors
from tilec.backends.triton.plan.device_info import DEVICES, PLANNED_FOR
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Plan,
    Repeat,
    Setting,
    SubPlan,
    TiledLoop,
    made_by,
    repeated_bytes,
    temporary_bytes,
)
from tilec.backends.triton.plan.served import kernel_source
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime.bound import BoundPlan, operation_of
from tilec.backends.triton.runtime.compiled import check_device, compile_for, device_info, interpreting, own_storage
from tilec.backends.triton.runtime.front_end import leaving
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.native_plan import native_plan
from tilec.backends.triton.runtime.open_plans import OpenPlans, placed_as
from tilec.backends.triton.runtime.parallel import in_parallel
from tilec.backends.triton.runtime.wrapper import Wrapper, wrapper
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.ir.at_sizes import with_numbers
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.late import let_others_begin, puts_off_collection
from tilec.native import native

precision = torch.get_float32_matmul_precision
KernelAction = Callable[[Launched, Mapping[str, torch.Tensor]], None]
Jobs = dict[tuple, list[Callable[[], object]]]


class PlannedCall:
    """One plan on one device."""

    def __init__(
        self,
        plan: Plan | None,
        names: Sequence[str],
        device: torch.device,
        filled_in: Any | None = None,
        write: Callable[[Plan], Wrapper] | None = None,
    ):
        """`filled_in`: the plan as the library's, which needs no other. `write`: makes the text of the call."""
        self._names = tuple(names)
        self._cuda, self._index = device.type == "cuda", device.index or 0
        self._device = device
        self._bound: BoundPlan | None = None
        if plan is not None:
            self._bound = BoundPlan(plan, write(plan) if write else wrapper("program", names, plan, {}), device)
            self._text = self._bound.run if names else partial(self._bound.run, device=device)
        self._native = filled_in
        self._first = filled_in is None
        self._run: Callable[..., tuple[torch.Tensor, ...]] = filled_in or self._compiling

    @property
    def bound(self) -> BoundPlan:
        assert self._bound is not None
        return self._bound

    @property
    def plan(self) -> Plan:
        return self.bound.plan

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if not self._cuda:
            return self._text(*[own_storage(t) for t in inputs])
        index = self._index
        if torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index):
                return self._run(*inputs)
        return self._run(*inputs)

    def _compiling(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The first call on a device."""
        self._compile(inputs)
        self._first = not all(self.bound.of(s).ready for s in self.plan.steps if isinstance(s, Launch))
        if self.native is not None:
            return self._run(*inputs)
        outputs = self._text(*inputs)
        self._first, self._run = False, self._text
        self.native  # noqa: B018  it runs from now on
        return outputs

    @property
    def native(self) -> Any | None:
        """The plan as the library's, once it has run."""
        if self._native is None and not self._first:
            self._native = native_plan(self.plan, self._names, self.bound.operations, self._device)
            self._run = self._native or self._run
        return self._native

    @puts_off_collection
    def _compile(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compile the plan's kernels at once, each once, over stand-ins for what they are given. What fails here is
        left to the launch itself."""
        jobs = self._of_kernels(dict(zip(self._names, inputs, strict=True)), Launched.compile)
        for _, *others in jobs.values():  # launches of a kernel that is there by now
            for job in others:
                job()

    def assemble(self, types: Mapping[str, TensorType]) -> None:
        """The same for aligned inputs of these types, without a word to the device."""
        if self._cuda:
            self._of_kernels({n: _stand_in(types[n].dtype, types[n].shape) for n in self._names}, Launched.assemble)

    def _of_kernels(self, given: dict[str, torch.Tensor], action: KernelAction) -> Jobs:
        """The action for the first launch of each kernel; for all launches, by kernel."""
        jobs: Jobs = {}
        self._find_kernels(self.plan, given, action, jobs)
        longest_first = sorted(jobs, key=lambda key: -len(key[0]))
        left = iter(range(len(jobs) - 1))

        def go(job: Callable[[], object]) -> None:
            with leaving(lambda: let_others_begin() if next(left, None) is None else None):
                job()

        in_parallel([partial(go, jobs[key][0]) for key in longest_first])
        return jobs

    def _find_kernels(self, plan: Plan, known: dict[str, torch.Tensor], action: KernelAction, jobs: Jobs) -> None:
        """The action for each launch of a plan and its parts. Parts are given rows of tensors, whose addresses are
        taken for aligned ones. `known`: the plan's inputs, by name."""
        for step in plan.steps:
            for tensor, dtype in made_by(step).items():
                known[tensor] = _stand_in(dtype, step.shape if isinstance(step, Allocate) else (1,))
            for part in (step,) if isinstance(step, SubPlan) else step.parts if isinstance(step, TiledLoop) else ():
                given = {name: _stand_in(part.types[name].dtype, part.types[name].shape) for name in part.inputs}
                self._find_kernels(part.plan, given, action, jobs)
            if isinstance(step, SubPlan):
                types = step.types
                known |= {n: _stand_in(types[n].dtype, types[n].shape) for n in step.plan.outputs}
            launches = step.launches if isinstance(step, Repeat) else (step,) if isinstance(step, Launch) else ()
            for launch in launches:
                launched = self.bound.of(launch)
                if all(name in known for name in launch.tensors) and not launched.known(known):
                    job = partial(self._here, action, launched, dict(known))
                    jobs.setdefault(launched.compiled_for(known), []).append(job)

    def _here(self, action: KernelAction, launched: Launched, tensors: Tensors) -> None:
        with torch.cuda.device(self._index), contextlib.suppress(TileError):
            action(launched, tensors)


class TritonProgram:
    """The executable of a lowered program. Plans are made for the strides and alignment that a call brings."""

    def __init__(
        self,
        make_plan: Callable[..., Plan],
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        types: Mapping[str, TensorType],
        write: Callable[[Plan], Wrapper],
        target: str | None,
        memory: TensorMemory,
        grouped: tuple[Program, Mapping[str, TensorType]] | None = None,
        opened: OpenPlans | None = None,
    ):
        """`opened`: where sizes are left open."""
        self.grouped = grouped
        self._opened = opened
        self._make_plan = make_plan
        self._names, self._shapes, self._types = tuple(names), tuple(shapes), types
        self._write, self._target, self._memory = write, target, memory
        self._sizes: Mapping[str, int] = {}
        self._open_plans: OpenPlans | None = None  # which this is one of, at its sizes
        self._calls: dict[object, PlannedCall] = {}
        self._shown: dict[Setting, Plan] = {}

    def at(self, sizes: Mapping[str, int]) -> TritonProgram:
        """The program for sizes that it leaves open."""
        assert self._opened is not None
        plan = partial(self._opened.plan, sizes)
        made = TritonProgram(plan, self._names, self._shapes, self._types, self._write, self._target, self._memory)
        made._sizes, made._open_plans = sizes, self._opened
        return made

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        key = _key(inputs)
        try:
            call = self._calls.get(key)
            if call is None:
                call = self._prepare(key, inputs)
            return call(inputs)
        except FAILED as error:
            self._memory.explain(error, self._sizes)
            raise

    @puts_off_collection
    def assemble(self, device: torch.device, strides: Sequence[tuple[int, ...]]) -> None:
        """Plan for aligned inputs of these strides, which are not there yet, and compile the plan's kernels."""
        key = (precision(), *[(s, 0, device) for s in strides])
        if self._open_plans is None and key not in self._calls:
            plan = self._make_plan(strides, _setting(device))
            call = PlannedCall(plan, self._names, device, None, self._write)
            call.assemble(self._types)
            self._calls[key] = call

    def native(self, inputs: Sequence[torch.Tensor]) -> Any | None:
        """What ran for inputs like these as a plan of the library's, if it can be one."""
        call = self._calls.get(_key(inputs))
        return None if call is None else call.native

    def open_run(self, inputs: Sequence[torch.Tensor]) -> Callable[..., Any] | None:
        """What gives the library's plan at sizes that it leaves open, for inputs on these devices and so aligned."""
        if self._opened is None or interpreting():
            return None
        setting = replace(_setting(inputs[0].device), misaligned=_misaligned(self._names, inputs))
        return partial(self._opened.filled_in, setting, placed_as(inputs))

    @puts_off_collection
    def _prepare(self, key: tuple, inputs: Sequence[torch.Tensor]) -> PlannedCall:
        device = (
            inputs[0].device
            if inputs
            else torch.device("cpu" if interpreting() or not torch.cuda.is_available() else "cuda")
        )
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        check_device(device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            hint = "call it once like this before the capture, its gradient too where that is captured"
            raise Unsupported("a call with new shapes, types or strides compiles, and cannot be captured", hint=hint)
        setting = replace(_setting(device), misaligned=_misaligned(self._names, inputs))
        filled_in, plan = self._filled_in(inputs, setting, device), None
        if filled_in is None:
            by_name = dict(zip(self._names, inputs, strict=True)) if device.type == "cuda" else None
            plan = self._make_plan([t.stride() for t in inputs], setting, by_name)
        call = self._calls[key] = PlannedCall(plan, self._names, device, filled_in, self._write)
        return call

    def _filled_in(self, inputs: Sequence[torch.Tensor], setting: Setting, device: torch.device) -> Any | None:
        """What a class of shapes runs, as the library's plan at these sizes; None where it has not run so yet."""
        if self._open_plans is None or interpreting() or native() is None:
            return None
        made = self._open_plans.find(self._sizes, [t.stride() for t in inputs], setting)
        by_name = dict(zip(self._names, inputs, strict=True))
        return made.filled_in(self._sizes, by_name, partial(operation_of, device=device)) if made is not None else None

    def _at_sizes(self, x: Any) -> Any:
        return with_numbers(x, self._sizes) if self._sizes else x

    @property
    @puts_off_collection
    def plan(self) -> Plan:
        """The plan for contiguous inputs."""
        setting = target_setting(self._target)
        if setting not in self._shown:
            shapes = self._at_sizes(self._shapes)
            self._shown[setting] = self._make_plan([contiguous(s) for s in shapes], setting)
        return self._shown[setting]

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        return tuple(map(kernel_source, self.plan.launches()))

    @property
    def temporary_bytes(self) -> int | None:
        return temporary_bytes(self.plan, self._at_sizes(self._types))

    @property
    def repeated_bytes(self) -> int:
        return repeated_bytes(self.plan)

    @property
    def call_text(self) -> str:
        """The functions that allocate and launch, for contiguous inputs."""
        return self._write(self.plan).text

    def source(self) -> str:
        return self._write(self.plan).file

    def asm(self, kind: str) -> str:
        target = self._target or _own_target()
        pieces = []
        for launch, dtypes in _typed(self.plan, self._at_sizes(self._types)):
            compiled = compile_for(launch, dtypes, target)
            piece = compiled.asm[kind]
            pieces.append(piece if isinstance(piece, str) else piece.hex())
        return "\n".join(pieces)


def _stand_in(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _key(inputs: Sequence[torch.Tensor]) -> tuple:
    """What a plan is made for."""
    return (precision(), *[(t.stride(), t.data_ptr() & 15, t.device) for t in inputs])


def _typed(plan: Plan, types: Mapping[str, TensorType]) -> Iterator[tuple[Launch, dict[str, str]]]:
    """Every launch with the element types of the tensors that it may read."""
    dtypes = {name: t.dtype for name, t in types.items()}
    for step in plan.steps:
        dtypes |= made_by(step)
        match step:
            case Launch():
                yield step, dtypes
            case Repeat(launches=launches):
                yield from ((launch, dtypes) for launch in launches)
            case SubPlan() | TiledLoop():
                for part in (step,) if isinstance(step, SubPlan) else step.parts:
                    yield from _typed(part.plan, part.types)


def _setting(device: torch.device) -> Setting:
    return Setting(precision(), device=device_info(device))


def target_setting(target: str | None) -> Setting:
    """What plans depend on for a target, or on the device here."""
    if target is None:
        here = torch.cuda.is_available() and not interpreting()
        return _setting(torch.device("cuda", torch.cuda.current_device()) if here else torch.device("cpu"))
    return Setting(precision(), device=DEVICES.get(target, PLANNED_FOR))


def _misaligned(names: Sequence[str], inputs: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return tuple(n for n, t in zip(names, inputs, strict=True) if t.data_ptr() % 16)


def _own_target() -> str:
    if not torch.cuda.is_available():
        raise InputMistake("there is no CUDA device to compile for", hint='name one: lower(..., target="sm_90")')
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
