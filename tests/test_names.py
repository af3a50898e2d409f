"""One name, one meaning: no two modules give a public name different meanings, nothing is written twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "tilec"
Definition = tuple[str, str]  # where, and what without comments and places

# packages whose names are not held to this yet
PENDING = (
    "backends/common/blocks",
    "backends/common/chains",
    "backends/triton/blocks",
    "distributed",
    "torch_op",
    "torch_import",
)

# name -> why several modules define it
EXCEPTIONS = {
    "add": "each command of the command line adds itself",
    "load": "a Function from a file, or from the gallery",
    "main": "the command lines' entry points",
    "KIND": "each module of workloads names its kind",
    "WORKLOADS": "each module of workloads lists them, the catalogue all",
    "philox": "the generator in NumPy and in torch",
    "uniform": "the generator in NumPy and in torch",
    "normal": "the generator in NumPy and in torch",
    "Tensor": "torch's, shortened",
    "Evaluator": "scalar bodies in torch and in Triton",
    "Value": "a value in torch's text and in Triton's",
}


@cache
def definitions() -> dict[str, list[Definition]]:
    """The modules that define a name outside of functions and classes, and what it is there."""
    found: dict[str, list[Definition]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        if str(path.parent.relative_to(ROOT)) in PENDING:
            continue
        for node in ast.parse(path.read_text()).body:
            for name in _names(node):
                found[name].append((str(path.relative_to(ROOT)), _text(node)))
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:]
    return ast.dump(node)


def _several() -> Iterator[tuple[str, list[Definition]]]:
    for name, found in definitions().items():
        if name.startswith("__") or name in EXCEPTIONS or len({where for where, _ in found}) < 2:
            continue
        yield name, found


def test_a_public_name_has_one_meaning() -> None:
    twice = [f"{n}: {[where for where, _ in found]}" for n, found in _several() if not n.startswith("_")]
    assert not twice, "\n".join(twice)


def test_nothing_is_written_twice() -> None:
    """Private names are a module's own; but what is the same in two modules belongs into one place."""
    twice = [
        f"{n}: {[where for where, _ in found]}" for n, found in _several() if len({t for _, t in found}) < len(found)
    ]
    assert not twice, "\n".join(twice)


def test_each_exception_is_needed() -> None:
    found = definitions()
    assert not [n for n in EXCEPTIONS if len({where for where, _ in found[n]}) < 2]
