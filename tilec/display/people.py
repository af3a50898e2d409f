"""What a Function shows of itself to people and their tools: signature, names, text, formulas."""

from __future__ import annotations

import inspect
import keyword

from tilec.display.html import program_html
from tilec.display.latex import latex
from tilec.ir.program import Input, Program

# public to other modules of tilec alone
INTERNAL = frozenset("of batched specialiser tuned types_of base step arguments".split())


class _Signature:
    """`__signature__` of an instance; the class keeps that of its constructor."""

    def __get__(self, instance: Displayed | None, owner: type | None = None) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return signature(instance.program)


class PublicNames:
    """Base of what shows people, and their editors, the names that are theirs."""

    def __dir__(self) -> list[str]:
        names = (n for n in super().__dir__() if not n.startswith("_") or n.startswith("__"))
        return sorted(set(names) - INTERNAL)


class Displayed(PublicNames):
    """Base of what holds a program and is called with its inputs."""

    program: Program
    __signature__ = _Signature()

    def latex(self) -> str:
        """The program in mathematical notation.

        Returns:
            An `aligned` environment of LaTeX (amsmath).
        """
        return latex(self.program)

    def _repr_html_(self) -> str:
        return program_html(self.program, repr(self))

    def __repr__(self) -> str:
        p = self.program
        inputs = ", ".join(map(_declared, p.inputs))
        return f"<tilec.{type(self).__name__} {p.name or ''}({inputs}) -> ({', '.join(p.outputs)})>"


def signature(program: Program) -> inspect.Signature:
    """The inputs by name, each with its dimensions. An input whose name is no identifier of Python's (`X'`, `None`)
    is shown under another one and, with those before it, as positional."""
    own = program.input_names()
    names = [n if n.isidentifier() and not keyword.iskeyword(n) else n.replace("'", "") + "_" for n in own]
    last = max((k for k, (a, b) in enumerate(zip(names, own, strict=True)) if a != b), default=-1)
    parameters = []
    for k, (name, i) in enumerate(zip(names, program.inputs, strict=True)):
        kind = inspect.Parameter.POSITIONAL_ONLY if k <= last else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, annotation=f"Tensor{_dims(i)}"))
    count = len(program.outputs)
    result = "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"
    return inspect.Signature(parameters, return_annotation=result)


def _declared(i: Input) -> str:
    return f"{i.name}{_dims(i)}"


def _dims(i: Input) -> str:
    return "" if i.dims is None else f"[{', '.join(map(str, i.dims))}]"
