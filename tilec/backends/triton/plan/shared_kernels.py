"""Kernels that differ in names alone are one: steps of an unrolled iteration, layers of one form, sums of parts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tilec.backends.triton.plan.check_lines import given_names
from tilec.backends.triton.plan.lines import with_names
from tilec.backends.triton.plan.plan import Descriptor, Launch, Plan, Repeat, Step, SubPlan, TiledLoop
from tilec.backends.triton.plan.source import KernelFile, KernelFunction

SomeStep = TypeVar("SomeStep", bound=Step)


def share_kernels(plan: Plan) -> Plan:
    """The plan with each kernel that another one is up to names replaced by the first such, parts included: it is
    printed once, and compiled once for arguments of one kind."""
    files = {launch.text: launch.file for launch in plan.launches()}
    alike: dict[object, dict[str, KernelFile]] = defaultdict(dict)
    for text, file in files.items():
        alike[len(file.kernel.parameters), len(file.kernel.constants), len(file.kernel.body)][text] = file
    shared: dict[str, KernelFile] = {}
    for several in alike.values():
        first: dict[object, KernelFile] = {}
        for text, file in several.items() if len(several) > 1 else ():
            same = first.setdefault(_form(file), file)
            shared |= {text: same} if same is not file else {}
    return _Sharing(shared).plan(plan) if shared else plan


def _form(file: KernelFile) -> object:
    """What files have in common that differ in the names of parameters, of values and of own functions alone."""
    functions = (*file.own, file.kernel)
    own = {f.name: f"${number}" for number, f in enumerate(functions)}
    return file.imports, file.shared, *[_function_form(f, own) for f in functions]


def _function_form(f: KernelFunction, own: dict[str, str]) -> object:
    places = {name: f"${place}_" for place, name in enumerate(dict.fromkeys((*_parameters(f), *given_names(f.body))))}
    plain = tuple(f.parameters.index(name) for name in f.unspecialized)
    counts = len(f.parameters), len(f.constants)
    return f.dialect, f.contracts, counts, plain, with_names("\n".join(f.lines), {**own, **places})


def _parameters(f: KernelFunction) -> tuple[str, ...]:
    return (*f.parameters, *f.constants)


@dataclass
class _Sharing:
    """`files`: by the text of each, the one in its place. `made`: by the number of an object, what is in its place."""

    files: dict[str, KernelFile]
    made: dict[int, Any] = field(default_factory=dict)

    def plan(self, plan: Plan) -> Plan:
        return replace(plan, steps=tuple(map(self.step, plan.steps)))

    def step(self, step: SomeStep) -> SomeStep:
        """What is in a step's place: one object where that step is."""
        if id(step) not in self.made:
            self.made[id(step)] = self._step(step)
        return self.made[id(step)]

    def _step(self, step: Step) -> Step:
        match step:
            case Launch():
                return self._launch(step)
            case Repeat(launches, counters, count):
                given = tuple(map(self.step, launches))
                names = [_names(old.file, new.file)[c] for old, new, c in zip(launches, given, counters, strict=True)]
                return Repeat(given, tuple(names), count)
            case SubPlan(plan=plan):
                return replace(step, plan=self.plan(plan))
            case TiledLoop(calls):
                return TiledLoop(tuple(replace(call, program=self.step(call.program)) for call in calls))
        return step

    def _launch(self, launch: Launch) -> Launch:
        """The launch of the kernel in its kernel's place, unless that would give a tensor map another name: names say
        which maps are written."""
        file = self.files.get(launch.text, launch.file)
        names = _names(launch.file, file)
        maps = [name for name, v in launch.arguments if isinstance(v, Descriptor)]
        if file is launch.file or any(names[name] != name for name in maps):
            return launch
        arguments, constants = (
            tuple((names[name], v) for name, v in values) for values in (launch.arguments, launch.constants)
        )
        return replace(launch, file=file, arguments=arguments, constants=constants)


def _names(old: KernelFile, new: KernelFile) -> dict[str, str]:
    """The parameters of one kernel by those of another of one form."""
    return dict(zip(_parameters(old.kernel), _parameters(new.kernel), strict=True))
