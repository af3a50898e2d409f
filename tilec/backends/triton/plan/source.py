"""The file of a kernel, in parts: what it imports, the functions that it calls, the kernel itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.common.code import indented

HEADER_WIDTH = 118  # characters of a header in one line
IMPORTS = ("import triton", "import triton.language as tl")
DIALECTS = {"triton": "tl", "gluon": "gl"}  # what compiles a function -> its language in the text


@dataclass(frozen=True)
class KernelFunction:
    """A function that is compiled. Of its parameters, `constants` are known to the compiler and come last; the
    divisibility of `unspecialized` makes no difference. `heading`: the statements that it carries out. `leaves_early`:
    it holds a `return`. `contracts`: a product and a sum may be rounded once."""

    name: str
    parameters: tuple[str, ...]
    constants: tuple[str, ...]
    body: tuple[str, ...]
    unspecialized: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    leaves_early: bool = False
    contracts: bool = True
    dialect: str = "triton"

    @cached_property
    def text(self) -> str:
        quoted = ", ".join(f'"{name}"' for name in self.unspecialized)
        decorator = f"@{self.dialect}.jit" + (f"(do_not_specialize=[{quoted}])" if quoted else "")
        typed = [*self.parameters, *(f"{c}: {DIALECTS[self.dialect]}.constexpr" for c in self.constants)]
        header = [f"def {self.name}({', '.join(typed)}):"]
        if len(header[0]) > HEADER_WIDTH:
            header = [f"def {self.name}(", f"    {', '.join(typed)},", "):"]
        return "\n".join([decorator, *header, *indented([*(f"# {h}" for h in self.heading), *self.body])]) + "\n"

    def called_by_programs(self, name: str) -> KernelFunction:
        """A function of that name for kernels to call, which is told which program of the grid it is: by three
        parameters, the first."""
        places = tuple(f"program_{axis}" for axis in range(3))
        body = self.body
        for axis, place in enumerate(places):
            body = tuple(line.replace(f"tl.program_id({axis})", place) for line in body)
        return replace(self, name=name, parameters=(*places, *self.parameters), unspecialized=(), body=body)

    def renamed(self, names: Mapping[str, str], words: re.Pattern[str]) -> KernelFunction:
        """The same with these other names for itself and for what it calls. `words`: what finds them."""
        body = tuple(words.sub(lambda found: names[found[1]], line) for line in self.body)
        return replace(self, name=names[self.name], body=body)


@dataclass(frozen=True)
class KernelFile:
    """`imports`: statements at its head. `shared`: texts of functions that other files may hold too, by name; `own`:
    functions that belong to this kernel. Each stands before those that call it."""

    kernel: KernelFunction
    own: tuple[KernelFunction, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    imports: tuple[str, ...] = IMPORTS

    @cached_property
    def text(self) -> str:
        texts = [*(text for _, text in self.shared), *(f.text for f in (*self.own, self.kernel))]
        return "\n\n".join(["\n".join(self.imports) + "\n", *texts])

    def renamed(self, suffix: str) -> KernelFile:
        """The same with other names of the kernel and of its own functions."""
        names = {f.name: f.name + suffix for f in (*self.own, self.kernel)}
        words = re.compile(rf"\b({'|'.join(names)})\b")
        own, kernel = tuple(f.renamed(names, words) for f in self.own), self.kernel.renamed(names, words)
        return replace(self, kernel=kernel, own=own)
