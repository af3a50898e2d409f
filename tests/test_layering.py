"""Imports run downward only, without circles, and each outside library has one home."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "tilec"

# From the bottom up. A module may import its own layer (circles are looked for separately) and those before it.
LAYERS = (
    ("tilec.errors", "tilec.knobs", "tilec.version"),
    ("tilec.ir",),
    ("tilec.lattice", "tilec.language"),
    ("tilec.transforms",),
    ("tilec.cost",),
    ("tilec.backends",),
    ("tilec.pipeline",),
    ("tilec.saving",),
    ("tilec.arguments", "tilec.lowered"),
    ("tilec.torch_op",),
    ("tilec.function",),
    ("tilec.api",),
    ("tilec",),
    ("tilec.cli", "tilec.bench"),
    ("tilec.__main__",),
)

# library -> the packages that alone may import it
HOMES = {
    "islpy": ("tilec.lattice",),
    "lark": ("tilec.language",),
    "torch": ("tilec.backends", "tilec.arguments", "tilec.torch_op", "tilec.function", "tilec.api", "tilec.bench"),
    "opt_einsum": ("tilec.backends",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Names of the modules that a file imports when it is loaded or run; those for type checking alone do not count."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else str(node.module))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(path): path for path in FILES}


def layer(module: str) -> int:
    best = max(
        ((len(prefix), number) for number, layer in enumerate(LAYERS) for prefix in layer if within(module, prefix)),
        default=None,
    )
    assert best is not None, f"{module} has no layer"
    return best[1]


def within(module: str, prefix: str) -> bool:
    return module == prefix or (prefix != "tilec" and module.startswith(prefix + "."))


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downward(module: str) -> None:
    for other in imports(MODULES[module]):
        if other in MODULES:
            assert layer(other) <= layer(module), f"{module} imports {other}, which lies above it"


@pytest.mark.parametrize("module", MODULES)
def test_each_library_has_one_home(module: str) -> None:
    for other in imports(MODULES[module]):
        homes = HOMES.get(other.split(".")[0])
        if homes is not None:
            assert any(within(module, home) for home in homes), f"{module} imports {other}"


def test_no_circles() -> None:
    graph = {m: {o for o in imports(p) if o in MODULES and o != m} for m, p in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in graph[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_files_stay_readable() -> None:
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 450}
    assert not long, f"a file past about 400 lines wants to be two: {long}"
