"""Is a generated text Python, and does it define every name before it uses it? No GPU is needed to tell."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

import tilec
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.runtime.executable import TritonProgram
from tilec.lowered import Lowered

BUILTINS = frozenset(dir(builtins))
TARGETS = ("sm_80", "sm_90")


def mistakes(text: str) -> list[str]:
    """What is wrong with a text: that it is no Python, or names that are used where nothing has defined them. As in
    Triton, what a block defines is known within it alone, unless each branch of an `if` defines it."""
    try:
        tree = ast.parse(text)
        compile(text, "<generated>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    outside = {n.name for n in functions} | _assigned(s for s in tree.body if s not in functions) | BUILTINS
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            outside |= {(a.asname or a.name).split(".")[0] for a in node.names}
    found: list[str] = []
    for f in functions:
        arguments = (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)
        _undefined(f.body, outside | {a.arg for a in arguments}, found)
    return found


def _undefined(body: Iterable[ast.stmt], known: set[str], found: list[str]) -> set[str]:
    """The names known after these statements; what they use beside those goes to `found`."""
    for statement in body:
        match statement:
            case ast.If():
                _uses(statement.test, known, found)
                branches = [_undefined(b, set(known), found) for b in (statement.body, statement.orelse)]
                known |= branches[0] & branches[1]
            case ast.For():
                _uses(statement.iter, known, found)
                _undefined(statement.body, known | _targets(statement.target), found)
            case ast.While():
                _uses(statement.test, known, found)
                _undefined(statement.body, set(known), found)
            case ast.With():
                known = _undefined(statement.body, known, found)
            case ast.FunctionDef():
                known.add(statement.name)
            case _:
                _uses(statement, known, found)
                known |= _assigned([statement])
    return known


def _uses(node: ast.AST, known: set[str], found: list[str]) -> None:
    own = {a.arg for n in ast.walk(node) if isinstance(n, ast.Lambda) for a in n.args.args}
    own |= {name for n in ast.walk(node) if isinstance(n, ast.comprehension) for name in _targets(n.target)}
    for n in ast.walk(node):
        used = isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)
        if used and n.id not in known and n.id not in own:
            found.append(f"line {n.lineno}: {n.id} is not defined")


def _targets(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _assigned(body: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def texts(function: tilec.Function, inputs: Sequence[torch.Tensor]) -> Iterator[str]:
    """The texts that may be generated for such inputs, each once: for each architecture, with torch's own products
    among the candidates and without, for contiguous inputs, and for transposed and misaligned ones."""
    seen: set[str] = set()
    for backend in ("triton", None):
        for text in _texts_of(function.lower(*inputs, backend=backend, target="sm_90"), inputs):
            if text not in seen:
                seen.add(text)
                yield text


def _texts_of(lowered: Lowered, inputs: Sequence[torch.Tensor]) -> Iterator[str]:
    program = lowered._executable
    if not isinstance(program, TritonProgram):  # in chunks of time, each a program of its own
        yield from (k.source for k in lowered.kernels)
        yield lowered.source()
        return
    for target in TARGETS:
        setting = Setting(device=DEVICES[target])
        yield from _texts_of_plan(program, [contiguous(tuple(t.shape)) for t in inputs], setting)
        turned = [tuple(reversed(contiguous(tuple(reversed(t.shape))))) for t in inputs]
        yield from _texts_of_plan(program, turned, replace(setting, misaligned=tuple(program._names)))


def _texts_of_plan(program: TritonProgram, strides: Sequence[tuple[int, ...]], setting: Setting) -> Iterator[str]:
    plan = program._make_plan(strides, setting)
    yield from (launch.text for launch in plan.launches())
    yield program._write(plan).file


def check_texts(source: str, inputs: Sequence[torch.Tensor]) -> int:
    """How many texts a program and its gradient may become; fails where one of them is no Python."""
    function = tilec.compile(source)
    count = 0
    for f, given in _with_gradient(function, inputs):
        for text in texts(f, given):
            assert (found := mistakes(text)) == [], f"{source}\n{f.tile}\n{found}\n{text}"
            count += 1
    return count


def _with_gradient(function: tilec.Function, inputs: Sequence[torch.Tensor]):
    yield function, inputs
    names = tuple(n for n, t in zip(function.inputs, inputs, strict=True) if t.is_floating_point())
    outputs = function.lower(*inputs).outputs
    if names and any(t.dtype.startswith(("float", "bfloat")) for t in outputs):
        yield function.grad(names), [*inputs, *(torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in outputs)]
