"""Imports run downward only, without circles; each outside library has one home, each public name one meaning."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent / "tilec"

# From the bottom up. A module may import its own layer (circles are looked for separately) and those before it.
LAYERS = (
    ("tilec.errors", "tilec.knobs", "tilec.late", "tilec.version"),
    ("tilec.native",),
    ("tilec.ir",),
    ("tilec.lattice", "tilec.language"),
    ("tilec.transforms", "tilec.transforms.util"),
    ("tilec.transforms.recurrence",),
    ("tilec.transforms.simplify",),
    ("tilec.transforms.steps",),
    ("tilec.transforms.bind",),
    ("tilec.transforms.autodiff",),
    ("tilec.transforms.batching",),
    ("tilec.transforms.lower",),
    ("tilec.transforms.checkpoint",),
    ("tilec.cost",),
    ("tilec.display",),
    ("tilec.backends.base",),
    ("tilec.backends.common",),
    ("tilec.backends.common.blocks",),
    ("tilec.backends.common.chains",),
    ("tilec.backends.common.operands",),
    ("tilec.backends.torch.expr",),
    ("tilec.backends.torch.matmul",),
    ("tilec.backends.torch.recurrence",),
    ("tilec.backends.torch",),
    ("tilec.backends.triton.plan",),
    ("tilec.backends.triton.iteration",),
    ("tilec.backends.triton.emit",),
    ("tilec.backends.triton.pointwise",),
    ("tilec.backends.triton.matmul",),
    ("tilec.backends.triton.scan",),
    ("tilec.backends.triton.scatter",),
    ("tilec.backends.triton.grouped_matmul",),
    ("tilec.backends.triton.recurrence",),
    ("tilec.backends.triton.blocks",),
    ("tilec.backends.triton.chains",),
    ("tilec.backends.triton.fusion",),
    ("tilec.backends.triton.rows",),
    ("tilec.backends.triton.schedule",),
    ("tilec.backends.triton.runtime",),
    ("tilec.backends.triton.tuning",),
    ("tilec.backends.triton",),
    ("tilec.backends",),
    ("tilec.pipeline",),
    ("tilec.saving",),
    ("tilec.refused", "tilec.arguments", "tilec.lowered"),
    ("tilec.explain",),
    ("tilec.distributed",),
    ("tilec.prepare",),
    ("tilec.specialise",),
    ("tilec.derived",),
    ("tilec.torch_op",),
    ("tilec.calls",),
    ("tilec.function",),
    ("tilec.package",),
    ("tilec.api",),
    ("tilec.nn",),
    ("tilec.gallery",),
    ("tilec.torch_import",),
    ("tilec.lsp",),
    ("tilec.notebook",),
    ("tilec",),
    ("tilec.bench",),
    ("tilec.cli",),
    ("tilec.__main__",),
)

# library -> the packages that alone may import it
HOMES = {
    "islpy": ("tilec.lattice",),
    "lark": ("tilec.language",),
    "torch": (
        *(
            "tilec.native",
            "tilec.backends",
            "tilec.refused",
            "tilec.arguments",
            "tilec.specialise",
            "tilec.torch_op",
            "tilec.calls",
        ),
        *("tilec.function", "tilec.api", "tilec.nn", "tilec.gallery", "tilec.torch_import", "tilec.package"),
        *("tilec.prepare", "tilec.bench", "tilec.cli.doctor", "tilec.cli.bench", "tilec.cli.compare"),
    ),
    "opt_einsum": ("tilec.backends", "tilec.cost"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> dict[type[ast.AST], list[Any]]:
    """What stands in a file, by its kind."""
    found: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree(path)):
        found[type(node)].append(node)
    return found


PARTS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold others


@cache
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
        for child in (child for field in PARTS for child in getattr(node, field, ())):
            visit(child)

    visit(tree(path))
    return found


FILES = sorted(ROOT.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
MODULES = {module_name(path): path for path in FILES}


@cache
def layer(module: str) -> int:
    best = max(
        ((len(prefix), number) for number, layer in enumerate(LAYERS) for prefix in layer if within(module, prefix)),
        default=None,
    )
    assert best is not None, f"{module} has no layer"
    return best[1]


def within(module: str, prefix: str) -> bool:
    return module == prefix or (prefix != "tilec" and module.startswith(prefix + "."))


def test_imports_run_downward() -> None:
    upward = [
        f"{module} imports {other}, which lies above it"
        for module, path in MODULES.items()
        for other in imports(path)
        if other in MODULES and layer(other) > layer(module)
    ]
    assert not upward, "\n".join(upward)


def test_each_library_has_one_home() -> None:
    strays = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imports(path)
        for homes in [HOMES.get(other.split(".")[0])]
        if homes is not None and not any(within(module, home) for home in homes)
    ]
    assert not strays, "\n".join(strays)


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


def _package(module: str) -> str | None:
    """The folder or file directly below `tilec`; the lowest layer is one."""
    name = None if module == "tilec" else module.split(".")[1]
    return "errors" if f"tilec.{name}" in LAYERS[0] else name


def _backend_package(module: str) -> str | None:
    """The same below `tilec.backends`, and below its `triton`."""
    _, *parts = module.split(".")
    if parts[:1] != ["backends"] or len(parts) < 2:
        return None
    return parts[2] if parts[1] == "triton" and len(parts) > 2 else parts[1]


def drawn(package: Callable[[str], str | None]) -> list[str]:
    """Packages from the top down, each with what it imports; not what those import anyhow."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        if (name := package(module)) is not None:
            graph[name] |= {p for o in imports(path) if o in MODULES and (p := package(o)) not in (None, name)}

    @cache
    def below(name: str) -> frozenset[str]:
        return frozenset().union(*({o, *below(o)} for o in graph[name]))

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, graph[name]), default=0)

    lines = []
    for name in sorted(graph, key=lambda n: (-height(n), n)):
        direct = sorted(o for o in graph[name] if not any(o in below(x) for x in graph[name]))
        lines.append(f"{name} -> {', '.join(direct)}" if direct else name)
    return lines


def test_the_drawing_of_packages_is_true() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    for package in (_package, _backend_package):
        wanted = "\n".join(drawn(package))
        assert f"```\n{wanted}\n```" in page, f"docs/architecture.md, Packages and their arrows:\n{wanted}"


def test_files_stay_readable() -> None:
    crowded = {str(d.relative_to(ROOT)): n for d in FOLDERS if (n := len(list(d.glob("*.py")))) > 15}
    assert not crowded, f"a folder past about 15 files wants to be two: {crowded}"
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"a file past 400 lines wants to be two: {long}"


Definition = tuple[str, ast.stmt]  # where, and what

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
    "aten": "torch's, shortened",
    "HANDLERS": "each module of operations of torch lists its own",
}


@cache
def definitions() -> dict[str, list[Definition]]:
    """The modules that define a name outside of functions and classes, and what it is there."""
    found: dict[str, list[Definition]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            for name in _defined(node):
                found[name].append((str(path.relative_to(ROOT)), node))
    return found


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _text(node: ast.stmt) -> str:
    """The definition without comments, places and docstring."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        node = copy.copy(node)
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
        f"{n}: {[where for where, _ in found]}"
        for n, found in _several()
        if len({_text(node) for _, node in found}) < len(found)
    ]
    assert not twice, "\n".join(twice)


def test_each_exception_is_needed() -> None:
    found = definitions()
    assert not [n for n in EXCEPTIONS if len({where for where, _ in found[n]}) < 2]


# private words that once stood in names -> what the field says
WORDS = {
    "held": "compute_dtype of a value, stationary of an operand",
    "viewed": "StridedView",
    "wide": "int64_index of positions; what is widened says to what",
    "riding": "epilogue",
    "rider": "epilogue",
    "riders": "epilogue",
    "ridden": "fused",
    "carrier": "anchor",
    "party": "batch",
    "sociable": "horizontal",
    "laps": "wraps",
    "course": "SkewedLoop, CheckpointSchedule",
    "sure": "certified",
    "echoes": "repeated_inputs",
    "feeds": "step_inputs",
    "turns": "circular_shifts",
    "dear": "compute_heavy",
    "settled": "cached, resolved, known",
    "settle": "cache, resolve",
    "stripe": "RegisterBlock",
    "hand": "reads_own_element of an epilogue, local to a rank",
}


NAMED = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.FunctionDef: "name", ast.ClassDef: "name"}


def test_names_are_the_fields_words() -> None:
    """The parts of every name in the compiler; a bench or an importer may call a matrix wide."""
    strays: dict[str, str] = {}
    for path in (p for d in ("backends", "transforms", "ir", "lattice", "language") for p in (ROOT / d).rglob("*.py")):
        for name in {getattr(node, field) for kind, field in NAMED.items() for node in nodes(path)[kind]}:
            for word in WORDS.keys() & {w.lower() for w in name.replace("_", " ").split()}:
                strays[f"{path.relative_to(ROOT)}: {name}"] = WORDS[word]
    assert not strays, "\n".join(f"{where}: say {what}" for where, what in strays.items())


READS_TEXT = {"split", "partition", "rpartition", "splitlines", "startswith", "endswith", "find", "rfind", "index"}

# file below tilec/backends -> why it may look into a text
TEXT_READERS = {
    "common/memory.py": "the message of torch's error",
    "common/code.py": "is a text a name, or does it end as a part of a tensor does",
    "triton/runtime/compiled.py": "PTX, which another compiler has written, and that one's messages",
    "triton/runtime/bound.py": "lines that tracebacks show",
    "triton/runtime/launcher.py": "PTX: how many parameters the compiled kernel declares",
    "triton/runtime/wrapper.py": "lines of statements as comments; which imports lines of torch need",
    "triton/tuning/benchmark.py": "the message of an error",
    "triton/emit/kernel.py": "lines of statements as comments",
    "triton/emit/device_text.py": "functions of device.py by their places in it",
    "triton/emit/scalar.py": "templates of the table of functions",
    "triton/blocks/text.py": "templates of the table of functions",
    "triton/plan/plan.py": "lines of a plan within another",
    "triton/plan/source.py": "fills holes",
    "triton/plan/lines.py": "the names in an expression, where it becomes part of a line",
    "triton/schedule/candidates.py": "choices as the tuner stores them",
    "torch/program.py": "lines of statements as comments; the file that tracebacks show",
    "torch/expr/scalar.py": "templates of the table of functions",
    "torch/expr/general.py": "is a text one call or one pair of parentheses",
}


def _text_reads(path: Path) -> Iterator[str]:
    for node in (n for kind in (ast.Import, ast.Call, ast.Compare) for n in nodes(path)[kind]):
        match node:
            case ast.Import(names=names) if any(a.name == "re" for a in names):
                yield f"{node.lineno}: import re"
            case ast.Call(func=ast.Attribute(value=ast.Constant())):
                pass
            case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str()), *_]) if name in READS_TEXT:
                yield f"{node.lineno}: .{name}()"
            case ast.Call(func=ast.Attribute(attr="splitlines")):
                yield f"{node.lineno}: .splitlines()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os" | "dataclasses"), attr="replace")):
                pass
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_, _, *_]):
                yield f"{node.lineno}: .replace()"
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id="text" | "line" | "code" | "ptx")]):
                yield f"{node.lineno}: in a text"


def test_structure_is_not_read_from_text() -> None:
    """What a generated line says is known where it is written; who needs it is told, and does not look."""
    found = {
        str(p.relative_to(ROOT / "backends")): [*_text_reads(p)]
        for p in (ROOT / "backends").rglob("*.py")
        if p.name != "device.py"
    }
    strays = [f"{name}:{what}" for name, places in found.items() if name not in TEXT_READERS for what in places]
    assert not strays, "\n".join(strays)
    assert not [name for name in TEXT_READERS if not found.get(name)], "an exception that nothing needs"


def test_one_place_knows_how_programs_are_told_apart() -> None:
    """A kernel becomes a function of another by what is filled in for `PROGRAM`."""
    writers = [
        str(p.relative_to(ROOT))
        for p in (ROOT / "backends" / "triton").rglob("*.py")
        if p.name not in ("device.py", "source.py") and "program_id(" in p.read_text()
    ]
    assert not writers, writers
