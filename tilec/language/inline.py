"""Calls of the source's own functions: the callee's statements go before the caller's, under fresh names."""

from __future__ import annotations

from dataclasses import replace

from tilec.errors import AggregationMistake, ArityMistake, NameMistake, RankMistake, SizeMistake, Span
from tilec.ir.functions import STRUCTURAL, counts_positions
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Input,
    Int,
    Name,
    Program,
    Statement,
    map_expressions,
    node_count,
    rebuild,
    walk,
)
from tilec.language.scope import FunctionScope
from tilec.language.syntax import CallSyntax, plural
from tilec.language.values import Expansion, Region, Values, append_statement

# beside indices a call is replaced by the function's expression, which repeats an argument wherever it is used
LARGEST_EXPANSION = 10_000


def inliner(program: Program) -> Expansion:
    """What a call of this function expands to: its statements, and the name of its output."""
    ranks = {i.name: _rank(i, program) for i in program.inputs}
    sizes = _used_as_sizes(program)

    def expand(values: Values, e: CallSyntax, region: Region) -> Expr:
        _check_call(program, e)
        if region.indexed:
            return _substituted(program, values, e, region)
        names: dict[str, Expr] = {}
        for i, arg in zip(program.inputs, e.args, strict=True):
            tensor = _argument(values, e, arg, region)
            _check_argument(values.scope, e, i, arg, tensor, ranks[i.name], i.name in sizes)
            names[i.name] = tensor
        prefix = e.function[0].upper() + e.function[1:]
        _dimensions(program, values, e, names, prefix)
        for s in program.statements:
            names[s.output] = Name(values.scope.fresh(f"{prefix}_{s.output}"))
            append_statement(_renamed(s, names), values.scope)
        result = names[program.outputs[0]]
        assert isinstance(result, Name)
        return Name(result.name, span=e.span)

    return expand


def _check_call(program: Program, e: CallSyntax) -> None:
    if len(program.outputs) != 1:
        count = plural(len(program.outputs), "output", "outputs")
        raise ArityMistake(
            f"`{e.function}` returns {count}, and a call is one value", e.name_span, hint="call functions of one output"
        )
    if len(e.args) != len(program.inputs):
        wanted = plural(len(program.inputs), "argument", "arguments")
        names = ", ".join(program.input_names())
        raise ArityMistake(f"`{e.function}` takes {wanted}, not {len(e.args)}", e.span, hint=f"its inputs: {names}")


def _substituted(program: Program, values: Values, e: CallSyntax, region: Region) -> Expr:
    """A call beside indices: of a function of single values, whose expression takes the call's place."""
    nodes = [node for s in program.statements for node in walk(s.body)]
    scalar = all(s.index is None for s in program.statements) and not any(i.dims for i in program.inputs)
    if not scalar or not all(map(_is_scalar, nodes)):
        raise AggregationMistake(
            f"`{e.function}` works on whole tensors and cannot stand beside indices",
            e.name_span,
            hint="assign it in a statement of its own, and read that tensor here",
        )
    known: dict[str, Expr] = {}
    weights: dict[str, int] = {}
    for i, arg in zip(program.inputs, e.args, strict=True):
        known[i.name] = values.value(arg, region)
        weights[i.name] = node_count(known[i.name])

    def visit(x: Expr) -> Expr:
        return known[x.name] if isinstance(x, Name) else rebuild(x, visit)

    for s in program.statements:
        weights[s.output] = sum(weights[x.name] if isinstance(x, Name) else 1 for x in walk(s.body))
        if weights[s.output] > LARGEST_EXPANSION:
            raise AggregationMistake(
                f"`{e.function}` expands to more than {LARGEST_EXPANSION} operations here",
                e.name_span,
                hint="assign it in a statement of its own, and read that tensor here",
            )
        known[s.output] = visit(s.body)
    return known[program.outputs[0]]


def _is_scalar(e: Expr) -> bool:
    if isinstance(e, Call):
        return not counts_positions(e) and e.function not in (*STRUCTURAL, "shape", "index", "as_type")
    return isinstance(e, (Int, Float, Name))


def _argument(values: Values, e: CallSyntax, arg: Expr, region: Region) -> Name:
    """The argument by name: a dimension stays one, any other expression gets a statement."""
    value = values.value(arg, replace(region, root=None))
    return value if isinstance(value, Name) else values.emit("Argument", value)


def _check_argument(
    scope: FunctionScope, e: CallSyntax, i: Input, arg: Expr, tensor: Name, needed: int | None, used_as_size: bool
) -> None:
    symbol = scope.symbols[tensor.name]
    rank = 0 if symbol.kind == "dimension" else symbol.rank
    if needed is not None and rank is not None and rank != needed:
        raise RankMistake(
            f"`{e.function}` takes `{i.name}` of rank {needed}, and this has rank {rank}",
            arg.span,
            hint=scope.rank_reason(symbol) if isinstance(arg, Name) and symbol.kind != "dimension" else None,
        )
    if needed is not None and symbol.rank is None:
        symbol.rank, symbol.rank_span = needed, arg.span
    if used_as_size and not symbol.size:
        hint = "give a dimension, an integer or an input of rank 0"
        raise NameMistake(f"`{e.function}` uses `{i.name}` as a size, and this is a tensor", arg.span, hint=hint)


def _rank(i: Input, program: Program) -> int | None:
    """The rank an input must have: as declared, or as it is read."""
    if i.dims is not None:
        return len(i.dims)
    for s in program.statements:
        roots = [s.body, *(x for x in (s.guard, s.init) if x is not None), *(s.index or ())]
        nodes = list(walk(*roots))
        whole = {id(a) for e in nodes if isinstance(e, Call) and e.function in ("shape", "as_type") for a in e.args}
        for e in nodes:
            if isinstance(e, Access) and e.tensor == i.name:
                return len(e.index)
            if s.index is not None and e == Name(i.name) and id(e) not in whole:
                return 0
        if s.default == i.name and s.index is not None:
            return len(s.index)
    return None


def _used_as_sizes(program: Program) -> set[str]:
    """Names that stand in sizes, indices or constraints."""
    found: set[str] = set()
    for s in program.statements:
        roots = [*(s.index or ()), *(s.sizes or ()), *(x for c in s.constraints for x in (c.expr, c.bound))]
        for e in walk(s.body):
            if isinstance(e, Access):
                roots += e.index
            elif isinstance(e, Aggregate):
                roots += [x for c in e.constraints for x in (c.expr, c.bound)]
            elif isinstance(e, Call) and e.function == "reshape":
                roots += e.args[1:]
        for root in roots:
            asked = {id(e.args[0]) for e in walk(root) if isinstance(e, Call) and e.function == "shape"}
            found |= {e.name for e in walk(root) if isinstance(e, Name) and id(e) not in asked}
    return found


def _dimensions(program: Program, values: Values, e: CallSyntax, names: dict[str, Expr], prefix: str) -> None:
    """The callee's dimensions in terms of the arguments; sizes that must agree become a checked statement."""
    actual: dict[str, list[Expr]] = {}
    for i, arg in zip(program.inputs, e.args, strict=True):
        for k, d in enumerate(i.dims or ()):
            tensor = names[i.name]
            assert isinstance(tensor, Name)
            size = _size(values.scope, tensor, k)
            if isinstance(d, str):
                actual.setdefault(d, []).append(size)
            elif isinstance(size, Int) and size.value != d:
                raise SizeMistake(
                    f"`{e.function}` takes `{i.name}` of size {d} along dimension {k}, and this has {size.value}",
                    arg.span,
                    hint=f"a name in the place of the {d} takes any size",
                )
            elif not isinstance(size, Int):
                values.emit(f"{prefix}_{i.name}_{k}", Call("same", (size, Int(d)), span=arg.span))
    for d, sizes in actual.items():
        distinct = tuple(dict.fromkeys(sizes))
        agree = distinct[0] if len(distinct) == 1 else Call("same", distinct, span=e.span)
        names[d] = agree if len(distinct) == 1 else values.emit(f"{prefix}_{d}", agree)


def _size(scope: FunctionScope, tensor: Name, k: int) -> Expr:
    """Size of a tensor along a dimension: the declared one if there is one."""
    dims = scope.symbols[tensor.name].dims
    if dims is None:
        return Call("shape", (tensor, Int(k)), span=tensor.span)
    d = dims[k]
    return Int(d, span=tensor.span) if isinstance(d, int) else Name(d, span=tensor.span)


def _renamed(s: Statement, names: dict[str, Expr]) -> Statement:
    def tensor(name: str) -> str:
        new = names.get(name)
        assert isinstance(new, Name)
        return new.name

    def visit(e: Expr) -> Expr:
        if isinstance(e, Name):
            new = names[e.name]
            return Name(new.name, span=e.span) if isinstance(new, Name) else new
        e = rebuild(e, visit)
        return replace(e, tensor=tensor(e.tensor)) if isinstance(e, Access) else e

    result = map_expressions(s, visit)
    return replace(result, output=tensor(s.output), default=None if s.default is None else tensor(s.default))


def adopt(scope: FunctionScope, since: int, value: Expr, name: str, span: Span) -> Statement | None:
    """When a statement `name = value` only names the output of the statement just emitted, that statement under the
    name, taken off the scope; otherwise None."""
    if len(scope.statements) == since or not isinstance(value, Name):
        return None
    last = scope.statements[-1]
    if last.output != value.name:
        return None
    scope.statements.pop()
    del scope.symbols[last.output]

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        return replace(e, tensor=name) if isinstance(e, Access) and e.tensor == last.output else e

    return replace(map_expressions(last, visit), output=name, span=span)
