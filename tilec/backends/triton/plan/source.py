"""The file of a kernel, in parts: what it imports, the functions that it calls, the kernel itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.common.code import indented
from tilec.backends.triton.plan.check_lines import free_names
from tilec.backends.triton.plan.lines import CodeLine, Return, every, printed_lines

Heading = tuple[tuple[str, str], ...]  # lines of comments, each with the output of its statement, or ""
HEADER_WIDTH = 118  # characters of a header in one line
IMPORTS = ("import triton", "import triton.language as tl")
DIALECTS = {"triton": "tl", "gluon": "gl"}  # what compiles a function -> its language in the text
FULL = {"triton": (), "gluon": (("tl.full(", "gl.full("),)}  # what has a form of its own in a language


def hole(what: str) -> str:
    """What stands in a body where a function's place in the grid, or the name of another, is filled in."""
    return f"\N{LEFT-POINTING ANGLE BRACKET}{what}\N{RIGHT-POINTING ANGLE BRACKET}"


def called(functions: Iterable[KernelFunction]) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, f.name) for f in functions)


PROGRAM = tuple(hole(f"program {axis}") for axis in range(3))  # which program of the grid


@dataclass(frozen=True)
class KernelFunction:
    """A function that is compiled. Of its parameters, `constants` are known to the compiler and come last; the
    divisibility of `unspecialized` makes no difference. `heading`: the statements that it carries out.
    `contracts`: a product and a sum may be rounded once. `places`: what is filled in for
    `PROGRAM`. `calls`: functions of its file, by the names of their holes."""

    name: str
    parameters: tuple[str, ...]
    constants: tuple[str, ...]
    body: tuple[CodeLine, ...]
    unspecialized: tuple[str, ...] = ()
    heading: Heading = ()
    contracts: bool = True
    dialect: str = "triton"
    places: tuple[str, ...] | None = None
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """The decorator and the line of the definition, or lines."""
        quoted = ", ".join(f'"{name}"' for name in self.unspecialized)
        decorator = f"@{self.dialect}.jit" + (f"(do_not_specialize=[{quoted}])" if quoted else "")
        typed = [*self.parameters, *(f"{c}: {DIALECTS[self.dialect]}.constexpr" for c in self.constants)]
        header = [f"def {self.name}({', '.join(typed)}):"]
        if len(header[0]) > HEADER_WIDTH:
            header = [f"def {self.name}(", f"    {', '.join(typed)},", "):"]
        return decorator, *header

    @cached_property
    def text(self) -> str:
        return "\n".join([*self.header, *indented([*(f"# {line}" for line, _ in self.heading), *self.lines])]) + "\n"

    @cached_property
    def free(self) -> frozenset[str]:
        """The names that it takes from its file; raises MalformedKernel where its lines are no function."""
        return free_names(self.name, (*self.parameters, *self.constants), self.body)

    @property
    def leaves_early(self) -> bool:
        """Does it hold a `return`?"""
        return any(isinstance(line, Return) for line in every(self.body))

    @property
    def lines(self) -> list[str]:
        """The body, filled in."""
        return [text for text, _ in self.printed]

    @property
    def printed(self) -> list[tuple[str, CodeLine]]:
        """The lines of its text, each with that of the body which it is written from."""
        language = DIALECTS[self.dialect]
        places = self.places or [f"{language}.program_id({axis})" for axis in range(3)]
        fills = [*zip(PROGRAM, places, strict=True), *((hole(written), name) for written, name in self.calls)]
        fills += FULL[self.dialect]
        lines = printed_lines(self.body, language)
        for empty, text in fills:
            lines = [(written.replace(empty, text), line) for written, line in lines]
        return lines

    def called_by_programs(self, name: str) -> KernelFunction:
        """A function of that name for kernels to call, which is told which program of the grid it is: by three
        parameters, the first."""
        places = tuple(f"program_{axis}" for axis in range(3))
        return replace(self, name=name, parameters=(*places, *self.parameters), unspecialized=(), places=places)

    def renamed(self, suffix: str) -> KernelFunction:
        """The same with that at the end of its own name and of those that it calls."""
        return replace(self, name=self.name + suffix, calls=tuple((w, called + suffix) for w, called in self.calls))


@dataclass(frozen=True)
class KernelFile:
    """`imports`: statements at its head. `shared`: texts of functions that other files may hold too, by name; `own`:
    functions that belong to this kernel. Each stands before those that call it."""

    kernel: KernelFunction
    own: tuple[KernelFunction, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    imports: tuple[str, ...] = IMPORTS

    @property
    def functions(self) -> tuple[KernelFunction, ...]:
        """Those that belong to the kernel, and it."""
        return (*self.own, self.kernel)

    @property
    def shared_texts(self) -> list[str]:
        """What `shared` holds, in the kernel's language."""
        shared = [text for _, text in self.shared]
        for form, own in FULL[self.kernel.dialect]:
            shared = [text.replace(form, own) for text in shared]
        return shared

    @property
    def shared_lines(self) -> list[str]:
        """Their lines, with two empty ones after each."""
        return [line for text in self.shared_texts for line in (*text.splitlines(), "", "")]

    @cached_property
    def text(self) -> str:
        texts = [*self.shared_texts, *(f.text for f in self.functions)]
        return "\n\n".join(["\n".join(self.imports) + "\n", *texts])

    @property
    def free(self) -> frozenset[str]:
        """The names that its functions neither are given nor give a value."""
        return self.kernel.free.union(*(f.free for f in self.own))

    def renamed(self, suffix: str) -> KernelFile:
        """The same with other names of the kernel and of its own functions."""
        own, kernel = tuple(f.renamed(suffix) for f in self.own), self.kernel.renamed(suffix)
        return replace(self, kernel=kernel, own=own)
