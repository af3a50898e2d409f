"""Calls that stand for something else: casts by width, `in` and `pad`, whole-tensor functions, tuples."""

from __future__ import annotations

from dataclasses import replace

from tilec.errors import AggregationMistake, ArityMistake, NameMistake, RankMistake, TypeMistake
from tilec.ir.functions import FUNCTIONS, STRUCTURAL, call
from tilec.ir.program import Access, Call, Expr, Float, Index, Inside, Int, Name, Pad
from tilec.language import indices
from tilec.language.ranks import rank_of
from tilec.language.syntax import CallSyntax, check_arity
from tilec.language.values import Expansion, Region, Values

WIDTHS = {
    "as_float": {16: "float16", 32: "float32", 64: "float64"},
    "as_int": {8: "int8", 16: "int16", 32: "int32", 64: "int64"},
    "as_uint": {8: "uint8", 16: "uint16", 32: "uint32"},
}
ALIASES = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "neg": "neg",
    "cmp_eq": "eq", "cmp_ne": "ne", "cmp_lt": "lt", "cmp_gt": "gt", "cmp_le": "le", "cmp_ge": "ge",
    "bit_and": "and", "bit_or": "or", "bit_xor": "xor", "bit_not": "not", "bit_left": "shl", "bit_right": "shr",
    "cond": "select",
}  # fmt: skip


def _whole_only(values: Values, e: CallSyntax, region: Region) -> None:
    if region.indexed:
        raise AggregationMistake(
            f"`{e.function}` works on whole tensors and cannot stand beside indices",
            e.name_span,
            hint="assign it in a statement of its own, and read that tensor here",
        )


def operand(values: Values, e: Expr, region: Region, base: str) -> Name:
    """A whole tensor by name; any other expression gets a statement of its own first."""
    value = values.value(e, replace(region, root=None))
    if isinstance(value, Name) and values.scope.symbols[value.name].kind != "dimension":
        return value
    return values.emit(base, value)


def _alias(values: Values, e: CallSyntax, region: Region) -> Expr:
    function = ALIASES[e.function]
    count = 3 if function == "select" else 1 if function in ("neg", "not") else 2
    check_arity(e, count, count)
    if function == "select":
        return values.select(e.args, region, e.span)
    args = []
    for arg in e.args:
        args.append(values.value(arg, region))
    return Call(function, tuple(args), span=e.span)


def _cast(values: Values, e: CallSyntax, region: Region) -> Expr:
    if e.function == "as_bool":
        check_arity(e, 1, 2)
        return Call("bool", (values.value(e.args[0], region),), span=e.span)
    check_arity(e, 2, 2)
    widths, bits = WIDTHS[e.function], e.args[1]
    if not isinstance(bits, Int) or bits.value not in widths:
        known = ", ".join(map(str, widths))
        raise TypeMistake(f"`{e.function}` takes a width of {known} bits", bits.span, hint="write it as a literal")
    return Call(widths[bits.value], (values.value(e.args[0], region),), span=e.span)


def _access(values: Values, e: CallSyntax, arg: Expr) -> Access | Inside:
    if isinstance(arg, Access):
        return indices.access(arg, values.scope)
    if e.function == "pad" and isinstance(arg, CallSyntax) and arg.function == "in":
        return _inside(values, arg, None)
    raise AggregationMistake(
        f"`{e.function}` takes a tensor's element, such as A[i, j]",
        arg.span,
        hint="an expression is assigned to a tensor first",
    )


def _inside(values: Values, e: CallSyntax, region: Region | None) -> Inside:
    check_arity(e, 1, 1)
    access = _access(values, e, e.args[0])
    assert isinstance(access, Access)
    return Inside(access, span=e.span)


def _pad(values: Values, e: CallSyntax, region: Region) -> Expr:
    check_arity(e, 2, 2)
    return Pad(_access(values, e, e.args[0]), values.value(e.args[1], region), span=e.span)


def _shape(values: Values, e: CallSyntax, region: Region) -> Expr:
    check_arity(e, 1, 2)
    if len(e.args) == 2:
        return indices.size(e, values.scope)
    _whole_only(values, e, region)
    node = Call("shape", (operand(values, e.args[0], region, "Operand"),), span=e.span)
    return node if region.root is e else values.emit("Shape", node)


def _index(values: Values, e: CallSyntax, region: Region) -> Expr:
    _whole_only(values, e, region)
    check_arity(e, 2, 2)
    tensor = operand(values, e.args[0], region, "Operand")
    return Call(
        "index", (tensor, indices.dimension_argument(Call("index", (tensor,)), e.args[1], values.scope)), span=e.span
    )


def _structural(values: Values, e: CallSyntax, region: Region) -> Expr:
    _whole_only(values, e, region)
    check_arity(e, *FUNCTIONS[e.function].arity)
    tensors = e.args[:1] if e.function == "reshape" else e.args
    args: list[Expr] = [operand(values, arg, region, "Operand") for arg in tensors]
    if e.function == "reshape":
        args += _new_shape(values, e, region)
    node = Call(e.function, tuple(args), span=e.span)
    return node if region.root is e else values.emit(e.function.title().replace("_", ""), node)


def _new_shape(values: Values, e: CallSyntax, region: Region) -> list[Expr]:
    sizes = e.args[1:]
    if (
        len(sizes) == 1
        and isinstance(sizes[0], CallSyntax)
        and sizes[0].function == "shape"
        and len(sizes[0].args) == 1
    ):
        return [Call("shape", (operand(values, sizes[0].args[0], region, "Operand"),), span=sizes[0].span)]
    return [indices.size(size, values.scope) for size in sizes]


def _as_type(values: Values, e: CallSyntax, region: Region) -> Expr:
    check_arity(e, 2, 2)
    like = e.args[1]
    if not isinstance(like, Name) or values.scope.whole(like).kind == "dimension":
        hint = "a cast to a type of its own is float32(X), int64(X) and the like"
        raise NameMistake("the second argument of `as_type` is the name of a tensor", like.span, hint=hint)
    return Call("as_type", (values.value(e.args[0], region), like), span=e.span)


def _random(values: Values, e: CallSyntax, region: Region) -> Expr:
    check_arity(e, 1, 2)
    if region.indexed and len(e.args) == 1:
        hint = f"{e.function}(S, e) with an integer expression of the index variables for each element's own number"
        raise ArityMistake(f"`{e.function}` beside indices takes a seed and a counter", e.span, hint=hint)
    node = Call(e.function, tuple([values.value(a, region) for a in e.args]), span=e.span)
    if not region.indexed:
        _one_seed(values, node)
    return node


def _one_seed(values: Values, e: Call) -> None:
    """Over whole tensors the seed is a single integer, which gives no shape."""
    seed = e.args[0]
    symbol = values.scope.symbols[seed.name] if isinstance(seed, Name) else None
    rank = rank_of(seed, values.scope)
    if rank:
        reason = values.scope.rank_reason(symbol) if symbol is not None else "take one element, or a literal such as 7"
        raise RankMistake(
            f"the seed of `{e.function}` is one integer, and this has rank {rank}", seed.span, hint=reason
        )
    if symbol is not None and symbol.rank is None and symbol.kind == "input":
        symbol.rank, symbol.rank_span = 0, seed.span


def _tuple(values: Values, e: CallSyntax, region: Region) -> Expr:
    raise TypeMistake(
        "a tuple is not a value", e.span, hint="a statement may assign it, T = tuple(A, B), and element(T, 0) reads it"
    )


def _element(values: Values, e: CallSyntax, region: Region) -> Expr:
    check_arity(e, 2, 2)
    source, position = e.args
    if not isinstance(position, Int):
        raise TypeMistake("the second argument of `element` is an integer literal, counted from 0", position.span)
    if isinstance(source, CallSyntax) and source.function == "tuple":
        count = len(source.args)
    elif isinstance(source, Name) and values.scope.find(source.name, source.span).kind == "tuple":
        count = len(values.scope.symbols[source.name].elements)
    else:
        raise TypeMistake("the first argument of `element` is a tuple", source.span, hint="T = tuple(A, B) makes one")
    if position.value >= count:
        raise TypeMistake(
            f"the tuple has no element {position.value}", position.span, hint=f"it has {count}, counted from 0"
        )
    if isinstance(source, CallSyntax):
        return values.value(source.args[position.value], region)
    assert isinstance(source, Name)
    return values.name(Name(values.scope.symbols[source.name].elements[position.value], span=e.span), region)


def _softmax(values: Values, e: CallSyntax, region: Region) -> Expr:
    """exp(X - M) / N, or X - (M + log(N)), with M and N the maximum and the sum over the second dimension."""
    _whole_only(values, e, region)
    check_arity(e, 3, 3)
    x = operand(values, e.args[0], region, "Operand")
    symbol = values.scope.symbols[x.name]
    if symbol.rank not in (None, 2):
        raise RankMistake(
            f"`{e.function}` takes a tensor of rank 2", e.args[0].span, hint=values.scope.rank_reason(symbol)
        )
    rows = indices.size(e.args[1], values.scope)
    indices.size(e.args[2], values.scope)
    i, j = Index("i"), Index("j")
    column = {"index": (i, Int(0)), "sizes": (rows, Int(1))}
    largest = values.emit("Maximum", Access(x.name, (i, j)), aggregation="max", **column)
    power = values.emit("Exponential", call("exp", x - largest))
    total = values.emit("Normalizer", Access(power.name, (i, j)), aggregation="sum", **column)
    return power / total if e.function == "builtin_softmax" else x - (largest + call("log", total))


def _crossentropy(values: Values, e: CallSyntax, region: Region) -> Expr:
    """-Y*log(X) - (1 - Y)*log(1 - X). Its gradient in X alone is divided by the scale, which reverse_grad states."""
    _whole_only(values, e, region)
    check_arity(e, 3, 3)
    x = operand(values, e.args[0], region, "Operand")
    y = operand(values, e.args[1], region, "Operand")
    scale = values.value(e.args[2], region)
    p = values.emit("Prediction", call("reverse_grad", x, -(Float(1.0) / scale)))
    return -y * call("log", p) - (Int(1) - y) * call("log", Int(1) - p)


EXPANSIONS: dict[str, Expansion] = {
    **dict.fromkeys(ALIASES, _alias),
    **dict.fromkeys((*WIDTHS, "as_bool"), _cast),
    "in": _inside,
    "pad": _pad,
    "shape": _shape,
    "index": _index,
    **dict.fromkeys(STRUCTURAL, _structural),
    "as_type": _as_type,
    **dict.fromkeys(("rand", "randn"), _random),
    "tuple": _tuple,
    "element": _element,
    **dict.fromkeys(("builtin_softmax", "builtin_logsoftmax"), _softmax),
    "builtin_binary_crossentropy": _crossentropy,
}
