"""A lowered program as one Python function over torch, and the executable that holds it."""

from __future__ import annotations

import itertools
import linecache
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import CodeType, MappingProxyType
from typing import Any

import torch

from tilec.backends.base import KernelSource, Lowering, Options
from tilec.backends.common.code import FreshNames, indented, python_name
from tilec.backends.common.memory import FAILED, TensorMemory, with_memory_handler
from tilec.backends.common.tiled_program import RESERVED_NAMES
from tilec.backends.torch.axis_tiling import TiledStep, in_slabs, slab_lines
from tilec.backends.torch.expr.digits import digits_apart
from tilec.backends.torch.expr.pieces import with_branches_taken
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.library.calls import LibraryCall, Part, call_lines, library_parts
from tilec.backends.torch.library.cast_inputs import with_cast_inputs
from tilec.backends.torch.matmul.biased import adds_bias
from tilec.backends.torch.rules import MOST_TOGETHER, lines_of_first
from tilec.backends.torch.sharing import reuse
from tilec.ir.at_sizes import NAMESPACE
from tilec.ir.infer import infer
from tilec.ir.program import Access, Program, Statement, reads
from tilec.ir.types import NARROW, Types
from tilec.language.show import show_statement
from tilec.late import leave_untraced
from tilec.transforms.autodiff.biased_sums import with_biased_sums
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce

RESERVED_IN_TORCH = (*RESERVED_NAMES, "np", "rt", "part", "min", "float", "True", "False", "None")
TORCH_IMPORTS = "import torch\n\nimport tilec.backends.torch.runtime as rt\n"
FREED = 31 * 2**20  # bytes: glibc's allocator learns its thresholds from freed blocks of up to 32 MiB
_count = 0


class TorchProgram:
    """The executable: `kernels` has one entry, the whole function."""

    grouped = None
    temporary_bytes = None
    repeated_bytes = 0

    def __init__(
        self,
        name: str,
        text: str,
        statements: tuple[str, ...],
        memory: TensorMemory,
        code: CodeType | None = None,
        sizes: Mapping[str, int] = MappingProxyType({}),
    ):
        """`memory`: what is to be said where it runs out; `code`: the compiled text, if at hand; `sizes`: numbers for
        names that the text leaves open."""
        self._text, self._memory = text, memory
        self.kernels = (KernelSource(name, text, statements),)
        self._code = code or _compiled(name, text)
        scope: dict[str, Any] = {"_explain": partial(memory.explain, sizes=sizes), "_FAILED": FAILED}
        scope |= {**NAMESPACE, **sizes} if sizes else {}
        exec(self._code, scope)
        self.direct = scope[name]  # of the inputs one by one, where nothing is recorded anyway

    def at(self, sizes: Mapping[str, int]) -> TorchProgram:
        """The program for sizes that it leaves open."""
        ((name, text, statements),) = [(k.name, k.source, k.statements) for k in self.kernels]
        return TorchProgram(name, text, statements, self._memory, self._code, sizes)

    def open_run(self, inputs: Sequence[torch.Tensor]) -> Callable[..., Callable[..., tuple]]:
        """What gives the function of the inputs at sizes that it leaves open."""
        return lambda sizes, tensors: self.at(sizes).direct

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self.direct(*inputs)

    def unrecorded(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same where nothing is recorded anyway."""
        return self.direct(*inputs)

    def source(self) -> str:
        return self._text

    def asm(self, kind: str) -> str:
        """No assembly: torch's own kernels do the work."""
        return ""


def _compiled(name: str, text: str) -> CodeType:
    """The text as code; tracebacks show its lines."""
    global _count
    _count += 1
    filename = f"<tilec {name} {_count}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    code = compile(with_memory_handler(text, name, filename), filename, "exec")
    for function in code.co_consts:
        if isinstance(function, CodeType):
            leave_untraced(function)
    return code


@cache
def _let_memory_stay() -> None:
    """A block is taken and freed untouched: from then on glibc keeps what is freed, where it would give temporaries of
    a few hundred KB back at every call and fault their pages in again."""
    torch.empty(FREED, dtype=torch.uint8)


def build_program(lowering: Lowering, options: Options) -> TorchProgram:
    _let_memory_stay()
    lowering = _reusing(lowering)
    lowering, cast = with_cast_inputs(lowering) if options.library else (lowering, ())
    flat = lowering.stages["flat"]
    name = python_name(flat.name) if flat.name and flat.name not in RESERVED_IN_TORCH else "program"
    functions = _functions(name, lowering, options, cast=cast)
    body = "\n\n\n".join(functions)
    text = ("import numpy as np\n" if "np." in body else "") + TORCH_IMPORTS + "\n\n" + body + "\n"
    return TorchProgram(name, text, tuple(s.output for s in flat.statements), TensorMemory(flat, lowering.types))


def _reusing(lowering: Lowering) -> Lowering:
    """With an axis for each digit of an index, what statements store read where others would compute it again, and
    biases added to products first."""
    before = lowering.stages["flat"]
    inputs = {name: lowering.types[name] for name in before.input_names()}
    apart = digits_apart(before, lowering.types)
    types = lowering.types if apart is before else infer(apart, inputs)
    flat = with_branches_taken(reuse(apart, types), types)
    if any(t.dtype in NARROW for t in lowering.types.values()):
        flat = with_biased_sums(flat, inputs, admits=adds_bias)
    if flat is before:
        return lowering
    reduced = reduce(flat)
    stages = {**lowering.stages, "flat": flat, "reduced": reduced, "defracted": defract(reduced)}
    return replace(lowering, stages=stages, types=infer(flat, inputs))


def _functions(
    name: str,
    lowering: Lowering,
    options: Options,
    taken: Sequence[str] = (),
    cast: Sequence[str] = (),
    placed: Sequence[int] = (),
) -> list[str]:
    """The text of a program as a function, after those of the slabs that it is cut into. `cast`: inputs that it casts
    to float32 first; `placed`: outputs whose memory it is given, and which it does not return."""
    flat, types = lowering.stages["flat"], lowering.types
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    names = FreshNames((*RESERVED_IN_TORCH, *taken, name, *lowering.symbols))
    local = {t: names.fresh(python_name(t)) for t in (*flat.input_names(), *(s.output for s in flat.statements))}
    body = [f"device = {local[flat.inputs[0].name]}.device" if flat.inputs else "device = torch.device('cpu')"]
    body += [f"{local[i]} = {local[i]}.to(torch.float32)" for i in cast]
    rooms = {o: names.fresh(f"{local[o]}_room") for n, o in enumerate(flat.outputs) if n in placed}
    functions: list[str] = []
    hidden: set[str] = set()  # what exists in slabs alone

    def slab(inner: Lowering, options: Options = options, placed: Sequence[int] = ()) -> str:
        made = names.fresh(f"{name}_slab")
        functions.extend(_functions(made, inner, options, (*taken, name, *lowering.symbols), placed=placed))
        return made

    def exact(inner: Lowering) -> str:
        return slab(inner, replace(options, library=False))

    @cache  # a statement is looked at for the sake of those before it too
    def task(output: str) -> Task:
        kept = output in flat.outputs or output in owned
        room = (output, types[output], rooms[output]) if output in rooms else None
        return Task(statements[output], defracted[output], types, local, names, options, kept, fresh, once, room)

    steps = _steps(flat, types, options)
    statements = {s.output: s for step in steps if isinstance(step, TiledStep) for s in step.members}
    readers = Counter(t for s in flat.statements for t in dict.fromkeys(reads(s)))
    given = {s.output for step in steps if isinstance(step, LibraryCall) for s in step.results}
    once = frozenset(t for t, n in readers.items() if n == 1 and t not in (*flat.outputs, *flat.input_names()))
    copied = {
        s.output: s.body.tensor for s in flat.statements if s.output in flat.outputs and isinstance(s.body, Access)
    }
    whole = {t for o, t in copied.items() if math.prod(types[t].shape) == math.prod(types[o].shape)}
    owned = {t for t in once & whole if t not in given}  # so that a view of all of it may be returned
    fresh = once & {*given, *owned}
    dead = _last_reads(replace(flat, statements=tuple(s for step in steps for s in step.members)))
    while steps:
        first = steps[0]
        if isinstance(first, LibraryCall):
            steps, group = steps[1:], first.results
            lines = call_lines(first, flat, types, local, names.fresh, exact)
        elif (cut := first.slab) is not None:
            steps = steps[1:]
            group = first.members
            lines = slab_lines(cut, types, local, names, slab)
            hidden |= {s.output for s in group} - set(cut.wanted)
        else:
            alone = list(itertools.takewhile(_alone, steps[:MOST_TOGETHER]))
            count, lines, unmade = lines_of_first([task(s.output) for step in alone for s in step.members])
            hidden |= unmade
            group, steps = tuple(s for step in steps[:count] for s in step.members), steps[count:]
        comments = [f"# {line}" for s in group for line in show_statement(s).splitlines()]
        body += ["", *comments, *lines]
        unused = [local[t] for s in group for t in dead.get(s.output, ()) if t not in hidden]
        if unused:
            body.append(f"del {', '.join(unused)}")
    body += [f"rt.put({local[o]}, {room})" for o, room in rooms.items()]
    results = [local[o] for o in flat.outputs if o not in rooms]
    body.append(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
    header = f"def {name}({', '.join([*(local[i] for i in flat.input_names()), *rooms.values()])}):"
    return [*functions, "\n".join([header, *indented(body)])]


def _steps(flat: Program, types: Types, options: Options) -> list[TiledStep | LibraryCall]:
    """Calls of torch's routines, and between them statements one by one and in runs."""
    parts = library_parts(flat, types) if options.library else [Part(flat.statements)]
    found: list[TiledStep | LibraryCall] = []
    read = {*flat.outputs}
    for part in reversed(parts):
        read.update(part.call.sources if part.call else ())
        kept = tuple(s.output for s in part.statements if s.output in read)
        own = in_slabs(replace(flat, outputs=kept, statements=part.statements), types, options)
        found = [*own, *([part.call] if part.call else []), *found]
        read.update(t for s in part.statements for t in reads(s))
    return found


def _alone(step: TiledStep | LibraryCall) -> bool:
    return isinstance(step, TiledStep) and step.slab is None


def _last_reads(program: Program) -> dict[str, list[str]]:
    """For each statement, by output, the intermediates that nothing reads after it."""
    last: dict[str, Statement] = {}
    for s in program.statements:
        last[s.output] = s
        last.update(dict.fromkeys(reads(s), s))
    result: dict[str, list[str]] = {}
    for s in program.statements:
        if s.output not in program.outputs:
            result.setdefault(last[s.output].output, []).append(s.output)
    return result
