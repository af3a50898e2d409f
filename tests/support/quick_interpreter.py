"""Triton's interpreter makes the types of blocks anew at each operation, and reads, rewrites and compiles each function
of each kernel's file once more, which takes most of its time. Here what follows from the name of a type is made once,
and a kernel's file is rewritten when it is loaded. What operations compute remains the interpreter's, but that with
every version `fma` rounds once and `~` takes unsigned types."""

from __future__ import annotations

import ast
import linecache
import re
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from types import CodeType
from typing import Any

import numpy as np
import triton.language as tl
from support import quick_operations
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

OWN_BLOCK, OWN_TENSOR, OWN_EQUAL = tl.block_type.__init__, tl.tensor.__init__, tl.dtype.__eq__
OWN_UNWRAP, OWN_NUMPY_TYPE = core._unwrap_if_constexpr, interpreter._get_np_dtype
OWN_BROADCAST, OWN_SEMANTIC_CAST = TritonSemantic.broadcast_impl_value, TritonSemantic.cast
OWN_HANDLE = TensorHandle.__init__
OWN_REWRITE, REWRITER = interpreter.FunctionRewriter.rewrite_ast, interpreter.FunctionRewriter.ast_transformer
OWN_GET_CODE = SourceFileLoader.get_code
BLOCKS: dict[tuple, dict[str, Any]] = {}  # attributes, by element type and sizes
TENSORS: dict[str, dict[str, Any]] = {}  # attributes besides the handle, by type
BROADCASTS: dict[tuple[str, str], Any] = {}  # the types of two broadcast operands, None where one stays; (): own way
SAME: set[tuple[str, str]] = set()  # types, and those that a cast to leaves what is of them as it is
FITTING: set[tuple[Any, str]] = set()  # elements of NumPy and types that have room for them
NUMPY_TYPES: dict[str, Any] = {}
UNWRAPPED: dict[type, bool] = {}  # the classes of which unwrapping gives something else
CODES: dict[str, CodeType] = {}  # of the rewritten function, by its text
REWRITTEN: set[str] = set()  # files of kernels
ASSIGNED = "x = interpreter_semantic.to_tensor(y, False)"  # what becomes of `x = y`
COMPARISON = re.compile(r"[<>=!]=|[<>]|\b(?:in|is)\b")


def _block(self: Any, element_ty: tl.dtype, shape: Any) -> None:
    sizes = shape.values if type(shape) is tl.tuple else shape
    key = (element_ty.name, *[s.value if type(s) is tl.constexpr else s for s in sizes])
    if key not in BLOCKS:
        OWN_BLOCK(self, element_ty, shape)
        BLOCKS[key] = dict(vars(self))
    vars(self).update(BLOCKS[key])


def _tensor(self: Any, handle: Any, type: tl.dtype) -> None:
    if type.name not in TENSORS:
        OWN_TENSOR(self, handle, type)
        TENSORS[type.name] = dict(vars(self))
    vars(self).update(TENSORS[type.name])
    self.handle = handle


def _handle(self: TensorHandle, data: np.ndarray, dtype: tl.dtype, attr: dict | None = None) -> None:
    """Which elements a type has room for is looked at once."""
    if (data.dtype, dtype.name) not in FITTING:
        OWN_HANDLE(self, data, dtype)
        FITTING.add((data.dtype, dtype.name))
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


def _equal(self: tl.dtype, other: object) -> bool:
    return self is other or OWN_EQUAL(self, other)


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind not in UNWRAPPED:
        UNWRAPPED[kind] = issubclass(kind, (list, tuple, tl.tuple, tl.constexpr))
    return OWN_UNWRAP(value) if UNWRAPPED[kind] else value


def _numpy_type(dtype: tl.dtype) -> Any:
    if dtype.name not in NUMPY_TYPES:
        NUMPY_TYPES[dtype.name] = OWN_NUMPY_TYPE(dtype)
    return NUMPY_TYPES[dtype.name]


def _broadcast(self: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    key = (lhs.type.name, rhs.type.name)
    if key not in BROADCASTS:
        made = OWN_BROADCAST(self, lhs, rhs)
        served = all(
            not x.type.is_block() or len(x.shape) == len(y.shape) for x, y in zip((lhs, rhs), made, strict=True)
        )
        BROADCASTS[key] = [None if x is y else y.type for x, y in zip((lhs, rhs), made, strict=True)] if served else ()
        return made
    if not (found := BROADCASTS[key]):
        return OWN_BROADCAST(self, lhs, rhs)
    a, b = found
    return lhs if a is None else _stretched(lhs, a), rhs if b is None else _stretched(rhs, b)


def _cast(self: TritonSemantic, x: tl.tensor, to: tl.dtype, *rounding: Any, **named: Any) -> tl.tensor:
    key = (x.type.name, to.name)
    if key in SAME:
        return x
    made = OWN_SEMANTIC_CAST(self, x, to, *rounding, **named)
    if made is x:
        SAME.add(key)
    return made


def _stretched(x: tl.tensor, to: Any) -> tl.tensor:
    data = x.handle.data
    if x.type.is_block():
        return tl.tensor(quick_operations.handle_of(np.broadcast_to(data, to.shape.values), x.handle.dtype.scalar), to)
    data = np.full(to.shape.values, data.reshape(-1)[0], dtype=data.dtype)
    return tl.tensor(quick_operations.handle_of(data, tl.int1 if data.dtype == bool else x.handle.dtype.scalar), to)


def _text(fn: Any) -> str:
    """A function's text, from its first decorator on: up to the next line that begins in the first column."""
    lines = linecache.getlines(fn.__code__.co_filename)[fn.__code__.co_firstlineno - 1 :]
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    body = takewhile(lambda line: line[0] in " \n)", lines[start + 1 :])
    return "".join([lines[start], *body])


def rewrite(source: str) -> ast.Module:
    """A text with what the interpreter puts into functions: around what is assigned, and where comparisons are chained.
    Statements are walked here; what is below them only where a text has two comparisons."""
    tree, lines = ast.parse(source), source.splitlines()
    rest: list[ast.AST] = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
    while rest:
        node = rest.pop()
        for name, field in ast.iter_fields(node):
            if isinstance(field, ast.expr):
                text = "\n".join(lines[field.lineno - 1 : field.end_lineno])
                if len(COMPARISON.findall(text)) > 1:
                    setattr(node, name, ast.fix_missing_locations(REWRITER.visit(field)))
            elif type(field) is list:
                rest += [x for x in field if isinstance(x, ast.stmt)]
        if type(node) is ast.Assign:
            at = {"lineno": node.lineno, "col_offset": 0}
            owner = ast.Name("interpreter_semantic", ast.Load(), **at)
            function = ast.Attribute(owner, "to_tensor", ast.Load(), **at)
            node.value = ast.Call(function, [node.value, ast.Constant(False, **at)], [], **at)
    return tree


def _get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
    if not fullname.startswith("tilec_kernels."):
        return OWN_GET_CODE(self, fullname)
    REWRITTEN.add(self.path)
    return compile(rewrite(self.get_data(self.path).decode()), self.path, "exec")


def _rewritten(self: interpreter.FunctionRewriter) -> Any:
    names, file = self.fn.__globals__, self.fn.__code__.co_filename
    for key, value in vars(interpreter).items():
        names.setdefault(key, value)
    if file in REWRITTEN:
        return self.fn
    try:
        source = _text(self.fn)
    except StopIteration:  # a function inside another
        return OWN_REWRITE(self)
    if source not in CODES:
        CODES[source] = compile(rewrite(source), file, "exec")
    made = dict(self.kwargs)
    exec(CODES[source], names, made)
    return made[self.fn.__name__]


def _call(self: interpreter.InterpretedFunction, *arguments: Any, **options: Any) -> Any:
    """A function of the device, in a kernel, where what it calls of the language is patched already; those of Triton's
    library read the language's core."""
    if self.fn.__globals__.get("tl") is not tl:
        interpreter._patch_lang(self.fn)
    try:
        return self.rewrite()(*arguments, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    """Triton 3.6 has `x * y + z`, which rounds twice. A product of two float32 is exact in float64; a sum rounded there
    to odd rounds on as the exact one does."""
    dtype = z.data.dtype
    if dtype == np.float64:
        return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
    a, b = np.multiply(x.data, y.data, dtype=np.float64), z.data.astype(np.float64)
    total = a + b
    back = total - a
    rest = (a - (total - back)) + (b - back)
    even = np.isfinite(total) & (rest != 0) & (total.view(np.int64) & 1 == 0)
    total = np.where(even, np.nextafter(total, np.copysign(np.inf, rest)), total)
    return interpreter.TensorHandle(total.astype(dtype), z.dtype.scalar)


def _all_ones(self: Any, type: tl.dtype) -> Any:
    """Triton 3.6 asks NumPy for the -1 of unsigned types, which there is none of."""
    dtype = interpreter._get_np_dtype(type)
    return interpreter.TensorHandle(np.full(1, ~dtype.type(0), dtype), type.scalar)


def hasten() -> None:
    tl.block_type.__init__, tl.tensor.__init__ = _block, _tensor
    tl.dtype.__eq__, TensorHandle.__init__ = _equal, _handle  # type: ignore[method-assign]
    core._unwrap_if_constexpr, interpreter._get_np_dtype = _unwrap, _numpy_type
    TritonSemantic.broadcast_impl_value, TritonSemantic.cast = _broadcast, _cast  # type: ignore[method-assign]
    interpreter._patch_attr = quick_operations.patch
    if ast.unparse(REWRITER.visit(ast.parse("x = y"))) == ASSIGNED:
        interpreter.FunctionRewriter.rewrite_ast, SourceFileLoader.get_code = _rewritten, _get_code
    interpreter.InterpretedFunction.__call__ = _call
    if not hasattr(interpreter._interpreter, "fma_fp32"):
        interpreter.InterpreterBuilder.create_fma = _fma
        interpreter.InterpreterBuilder.get_all_ones_value = _all_ones
