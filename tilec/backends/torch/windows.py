"""Rule: a few values an element (a window, a short sum), one after the other into the output, each for the part of it
that has them.

torch reduces overlapping or strided views one element at a time. A pass for each value of the summed variables is a
sequence of fast ones, needs no tensor of all values, and none of padding: where a value is read outside, the part is
smaller.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.code import assignable
from tilec.backends.common.domain import Domain, boxed, build_domain
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.choices import choice_text
from tilec.backends.torch.expr.general import Loops, block_limit, blocks
from tilec.backends.torch.expr.parts import part_read, part_slices
from tilec.backends.torch.expr.pointwise import multiply_add, routine_of, tested_bit, tests_by_numbers
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.sharing import EXACT
from tilec.ir.functions import draws
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Input,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    index_variables,
    reads,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, is_floating
from tilec.transforms.lower.defract import defract
from tilec.transforms.lower.reduce import reduce
from tilec.transforms.util.naming import unlike

_MOST_VALUES = 32  # of all classes together: each has lines of its own
_MOST_BROADCAST = 4  # where nothing is gained but that no tensor of all values is made
_FEWEST_SHARED = 2  # functions of what is computed once for several values
_FEWEST_ELEMENTS = 64  # of the output for one of these values
_COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_TOGETHER = ("sum", "max", "min")
_IN_LIBRARY = ("float32", "float64", "bfloat16")


def tested_one_by_one(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """The same for terms that count where a test of values says so: no product, though tests are factors too."""
    guard = task.flat.guard
    return one_by_one(task, lines_for) if guard is not None and [*accesses_in(guard)] else None


def one_by_one(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute the output; `lines_for` carries out a statement of what all values have in common."""
    s = task.flat
    if s.aggregation not in (*_COMBINED, "assign") or not task.classes or s.default is not None:
        return None
    # one value for each element is no sum
    single = s.guard is None and task.covered and all(d.extent[v] == 1 for d in task.classes for v in d.reductions())
    exact = single or accumulation_dtype(s.aggregation, task.type.dtype) == task.type.dtype
    return _values_of_elements(task, lines_for, in_one_call=False) if exact else _rounded(task, lines_for)


def _values_of_elements(task: Task, lines_for: Callable[[Task], list[str]], in_one_call: bool) -> list[str] | None:
    """The same in the output's type. `in_one_call`: or not at all."""
    s = task.flat
    assert task.classes is not None
    values = sum(math.prod(d.extent[v] for v in d.reductions()) for d in task.classes)
    most = min(map(_most_values, task.classes)) if any(d.reductions() for d in task.classes) else 0
    if s.aggregation == "assign" and any(math.prod(d.extent[v] for v in d.reductions()) > 1 for d in task.classes):
        return None
    if not values <= most or task.elements < _FEWEST_ELEMENTS * values:
        return None
    parts = [list(_parts(task, d)) for d in task.classes]
    if any(p is None for one in parts for p in one):
        return None
    covered = task.covered and all(_same_box(d, one[0]) for d, one in zip(task.classes, parts, strict=True))
    made = _computed_once(task) if values > 1 else None
    if made is not None:
        before, rest = made
        lines = _values_of_elements(rest, lines_for, in_one_call) or (None if in_one_call else lines_for(rest))
        return lines and [*(line for t in before for line in lines_for(t)), *lines]
    lines = [f"{task.out} = {task.allocation(filled=not covered)}"]
    found = [(d, [p for p in one if p is not None]) for d, one in zip(task.classes, parts, strict=True)]
    together = _one_call(task, found, covered)
    if together is not None or in_one_call:
        return together and [*lines, *together]
    for d, own in found:
        lines += _class_lines(task, d, own, covered)
    return lines


def _rounded(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Sums of 16-bit elements of tensors, in the type that they are accumulated in, and rounded at the end."""
    dtype = accumulation_dtype(task.flat.aggregation, task.type.dtype)
    name, t = task.names.fresh(f"{task.out}_sum"), TensorType(task.type.shape, dtype)
    types, local = {**task.types, task.flat.output: t}, {**task.local, task.flat.output: name}
    lines = _values_of_elements(replace(task, types=types, local=local, returned=False), lines_for, in_one_call=True)
    return lines and [*lines, f"{task.out} = {name}.to(torch.{task.type.dtype})", f"del {name}"]


def _computed_once(task: Task) -> tuple[list[Task], Task] | None:
    """Statements of what is the same for several values of an element, and the rest, which reads them."""
    s, domain = task.flat, task.flat_domain
    if domain is None or any(domain.low.values()):
        return None
    points = math.prod(domain.extent.values())
    found: list[Expr] = []
    stack = [s.body]
    while stack:
        e = stack.pop()
        if isinstance(e, Access) or not children(e):
            continue
        own = index_variables(e)
        few = 2 * math.prod(domain.extent[v] for v in own) <= points
        dtype = expression_type(e, task.types).dtype
        rounded = dtype != task.type.dtype == accumulation_dtype("sum", dtype)  # no statement of this type
        costly = sum(isinstance(x, Call) for x in walk(e)) + rounded >= _FEWEST_SHARED
        inside = all(isinstance(x, Access | Call | Int | Float | Index) for x in walk(e))
        inside = inside and all(domain.inside(x, task.types) for x in accesses_in(e)) and not draws(e)
        if few and costly and own and inside and (dtype in EXACT or rounded):
            found.append(e)
        else:
            stack += _operands_of_call(e)
    tasks: list[Task] = []
    known: dict[Expr, Expr] = {}
    types = dict(task.types)
    local = dict(task.local)
    for e in dict.fromkeys(found):
        own = index_variables(e)
        sizes = tuple(domain.extent[v] for v in own)
        name = unlike(task.flat.output + "_shared", types)
        made = Statement(name, tuple(map(Index, own)), tuple(map(Int, sizes)), e, span=s.span)
        dtype = accumulation_dtype("sum", expression_type(e, task.types).dtype)
        part = task.before(made, TensorType(sizes, dtype), "_shared")
        types[name], local[name] = part.types[name], part.local[name]
        tasks.append(part)
        known[e] = Access(name, made.index or ())
    if not tasks:
        return None

    def visit(e: Expr) -> Expr:
        return known[e] if e in known else rebuild(e, visit) if children(e) and not isinstance(e, Access) else e

    rest = replace(s, body=visit(s.body))
    inputs = tuple(Input(t, types[t].shape) for t in dict.fromkeys(reads(rest)))
    (defracted,) = defract(reduce(Program(None, inputs, (s.output,), (rest,)))).statements
    return tasks, replace(task, flat=rest, defracted=defracted, types=types, local=local)


def _operands_of_call(e: Expr) -> Iterable[Expr]:
    """What the call takes that computes an expression: a part of what is rounded once is not computed before."""
    routine, added = routine_of(e), multiply_add(e)
    return routine.tensors.values() if routine else (added.added, *added.factors) if added else children(e)


def _most_values(d: Domain) -> int:
    """Of how many values torch's reduction is slower: a summed variable moves a tensor's index together with another,
    or no operand has all of the points."""
    summed = set(d.reductions())
    if not summed:
        return _MOST_VALUES if d.statement.guard is None else 0
    found = set(accesses_in(d.statement.body))
    forms = [linear(e) for a in found for e in a.index]
    if not all(f.is_affine and f.is_integral for f in forms):
        return 0
    window = any(len(f.variables()) > 1 and summed & set(f.variables()) for f in forms)
    varying = {v for v, n in d.extent.items() if n > 1}
    broadcast = all(not varying <= {v for e in a.index for v in linear(e).variables()} for a in found)
    return _MOST_VALUES if window else _MOST_BROADCAST if broadcast else 0


def _parts(task: Task, d: Domain) -> Iterator[Domain | None]:
    """The points of each value of the summed variables as boxes, the largest first; None for one that is none."""
    summed = d.reductions()
    found: list[Domain | None] = []
    for values in itertools.product(*(range(d.low[v], d.low[v] + d.extent[v]) for v in summed)):
        s = substitute_affine(d.statement, {v: Affine.of((), n) for v, n in zip(summed, values, strict=True)})
        part = build_domain(s, task.types)
        if part is None:
            continue
        ends = {v: (max(a, d.low[v]), min(a + part.extent[v], d.low[v] + d.extent[v]) - 1) for v, a in part.low.items()}
        if any(a > b for a, b in ends.values()):
            continue
        part = boxed(part.statement, ends, task.types)  # a piece of the points is asked for by its box alone
        same = part.target is not None and part.output_variables() == d.output_variables()
        if part.conditions or not same or part.reductions():
            return iter([None])
        found.append(part)
    return iter(sorted(found, key=lambda p: -math.prod(p.extent.values()) if p else 0) or [None])


def _same_box(a: Domain, b: Domain | None) -> bool:
    return b is not None and all(b.low[v] == a.low[v] and b.extent[v] == a.extent[v] for v in a.output_variables())


def _class_lines(task: Task, d: Domain, parts: list[Domain], covered: bool) -> list[str]:
    """Blocks of leading variables that all parts share go through all of them."""
    order = d.output_variables()
    shared = list(itertools.takewhile(lambda v: len({(p.low[v], p.extent[v]) for p in (d, *parts)}) == 1, order))
    inner = math.prod(d.extent[v] for v in order if v not in shared)
    limit = max(1, block_limit(task, d) // 2 // inner)
    loops = Loops(task, d, shared, blocks([(v, d.extent[v]) for v in shared], limit))
    prologue: list[str] = []
    lines: list[str] = []
    moving = {v for v in order if d.extent[v] > 1}
    first = ""  # the value that the next one is combined with, where no element has one yet
    for n, part in enumerate(parts):
        frame = TensorFrame(part, order, task.types, task.local, task.names, loops.ends)
        evaluator = TorchScalars(frame, *part.statement.roots)
        value = evaluator.value(part.statement.body)
        code = evaluator.tensor(value, task.type.dtype)
        whole = moving <= value.variables and bool(value.variables or not order)
        write = value.call if value.compute_dtype == task.type.dtype and part.statement.guard is None else None
        bit = _bit(task, part)
        written = task.part(part)
        if loops.headers and written != task.out:
            name = task.names.fresh("part")
            prologue.append(f"{name} = {written}")
            written = name
        target = loops.part(written, order)
        if bit is not None:
            bits = evaluator.tensor(evaluator.value(bit[0]), evaluator.value(bit[0]).type.dtype)
            prologue += frame.prologue
            lines += [
                *frame.lines,
                f"rt.add_where_bits({n == 0 and covered}, ({target}, ((), {bit[1]}, {bits}, {code})))",
            ]
            continue
        if part.statement.guard is not None:
            test = evaluator.condition(evaluator.value(part.statement.guard))
            code = choice_text(test, code, task.identity)
            write = f"{code[:-1]}, out={{0}})"
        prologue += frame.prologue
        lines += frame.lines
        combine = f"torch.{_COMBINED.get(task.flat.aggregation)}"
        if n == 0 and (covered or task.flat.aggregation == "assign"):
            if len(parts) > 1 and whole and _same_box(part, parts[1]):  # torch makes `out` smaller where both are
                first = code
                continue
            lines.append(write.format(target) if write and whole else f"{assignable(target)} = {code}")
        else:
            lines.append(f"{combine}({first or target}, {code}, out={target})")
            first = ""
        lines += [f"del {', '.join(frame.temporaries)}"] if frame.temporaries else []
    return [*prologue, *loops.wrap(lines)]


def _bit(task: Task, part: Domain) -> tuple[Expr, int] | None:
    """The integers whose bit says whether a point counts, and the number that has this bit."""
    guard = part.statement.guard
    asked = guard is not None and task.flat.aggregation == "sum" and is_floating(task.type.dtype)
    return tested_bit(guard, task.types) if asked and guard is not None else None


def _dtype(task: Task, e: Expr) -> str | None:
    return task.types[e.tensor].dtype if isinstance(e, Access) else None


def _summed_in(task: Task, e: Expr) -> str | None:
    """The type that sums of an element are accumulated in."""
    dtype = _dtype(task, e) if task.flat.aggregation == "sum" else None
    return dtype and accumulation_dtype("sum", dtype)


def _combination(task: Task, part: Domain) -> tuple[str, int, list[Expr]] | None:
    """The call that combines a part, the number of the part in it, and the operands, which are elements of tensors."""
    s, bit, own = part.statement, _bit(task, part), task.type.dtype
    floating = s.aggregation == "sum" and is_floating(own)
    match s.guard, s.body:
        case _, body if bit is not None:
            name, number, operands = "add_where_bits(", bit[1], [bit[0], body]
        case Call("eq", (x, y)), body if floating and _dtype(task, x) == _dtype(task, y):
            name, number, operands = "add_where_equal(", 0, [x, y, body]
        case None, Call(cast, (Call("eq", (x, y)),)) if floating and cast == own and _dtype(task, x) == _dtype(task, y):
            name, number, operands = "count_equal(", 1, [x, y]
        case None, body if s.aggregation in _TOGETHER:
            name, number, operands = f"combine_slices(torch.{_COMBINED[s.aggregation]}, ", 0, [body]
        case _:
            return None
    match operands[-1]:
        case Call(cast, (Access() as x,)) if cast == own and _summed_in(task, x) == own:
            operands[-1] = x  # which is converted as it is added
    if not all(isinstance(e, Access) for e in operands):
        return None
    known = name == "count_equal(" or own in (_dtype(task, operands[-1]), _summed_in(task, operands[-1]))
    return (name, number, operands) if known else None


def _one_call(task: Task, found: Sequence[tuple[Domain, Sequence[Domain]]], covered: bool) -> list[str] | None:
    """All parts of all classes at once, where their values are elements of tensors."""
    if all(len(parts) < 2 and d.statement.guard is None for d, parts in found):
        return None  # copies
    names: set[str] = set()
    prologue: list[str] = []
    classes: list[str] = []
    for d, parts in found:
        texts = [task.part(d)]
        for part in parts:
            frame = TensorFrame(part, d.output_variables(), task.types, task.local, task.names)
            combination = _combination(task, part)
            text = None if combination is None else _part_text(d, frame, *combination[1:])
            if combination is None or text is None:
                return None
            names.add(combination[0])
            texts.append(text)
            prologue += frame.prologue
        classes.append(f"({', '.join(texts)})")
    return [*prologue, f"rt.{names.pop()}{covered}, {', '.join(classes)})"] if len(names) == 1 else None


def _part_text(d: Domain, frame: TensorFrame, number: int, operands: Sequence[Expr]) -> str | None:
    """A part with its number and operands; None where these are not at places that slices say."""
    read = [part_read(frame, e) if isinstance(e, Access) else None for e in operands]
    texts = [part_slices(d, frame.domain, frame.order), str(number), *map(str, read)]
    return None if None in read else f"({', '.join(texts)})"


def extremum_with_places(tasks: Sequence[Task]) -> list[str] | None:
    """Lines of an extremum over windows and of the sum of the numbers of the elements that equal it, in one call."""
    task, then = tasks[0], tasks[1]
    s = task.flat
    if task.type.dtype not in _IN_LIBRARY:
        return None  # block by block
    numbers = _numbers(s, then.flat) if s.aggregation in ("max", "min") and s.guard is None else None
    if numbers is None or then.type.shape != task.type.shape or one_by_one(task, lambda _: []) is None:
        return None
    (d, *more) = task.classes or ()
    if more or task.part(d) != task.out:
        return None
    parts = [p for p in _parts(task, d) if p is not None]
    frames = [TensorFrame(p, d.output_variables(), task.types, task.local, task.names) for p in parts]
    if not task.covered or not frames or not _same_box(d, parts[0]):
        return None
    places = [_place(part.statement.body) for part in parts]
    if not numbers.keys() >= {*places} or _dtype(task, s.body) != task.type.dtype:
        return None
    texts = [
        _part_text(d, frame, numbers[place], [frame.domain.statement.body])
        for frame, place in zip(frames, places, strict=True)
    ]
    if None in texts:
        return None
    combine = f"torch.{_COMBINED[s.aggregation]}"
    return [
        *(line for frame in frames for line in frame.prologue),
        *(f"{t.out} = {t.allocation(filled=False)}" for t in (task, then)),
        f"rt.extremum_and_places({', '.join([combine, task.out, then.out, *map(str, texts)])})",
    ]


def _place(e: Expr) -> tuple[Affine, ...]:
    return tuple(map(linear, e.index)) if isinstance(e, Access) else ()


def _numbers(s: Statement, then: Statement) -> Mapping[tuple[Affine, ...], int] | None:
    """The number that each element counts as where it equals a statement's result, in another statement's sum."""
    tests = tests_by_numbers(then.body)
    plain = then.aggregation == "assign" and then.guard is None and not then.constraints and then.default is None
    if tests is None or not plain or then.index != s.index or not isinstance(s.body, Access):
        return None
    found: dict[tuple[Affine, ...], int] = {}
    for test, n in tests:
        element, result = test.args
        if isinstance(element, Pad) and isinstance(element.value, Float) and math.isnan(element.value.value):
            element = element.access
        own = isinstance(element, Access) and element.tensor == s.body.tensor
        if test.function != "eq" or not own or result != Access(s.output, s.index or ()):
            return None
        found[_place(element)] = n
    return found if len(found) == len(tests) else None
