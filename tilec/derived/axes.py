"""What `Function.vmap` takes, as a batch dimension for each input and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.errors import InputMistake, NameMistake, listed
from tilec.ir.program import Program
from tilec.transforms.bind.value_inputs import size_inputs

AxesSpec = int | None | Sequence[int | None] | Mapping[str, int | None]


def in_axes(program: Program, given: AxesSpec) -> tuple[int | None, ...]:
    """The batch dimension of each input (None: shared). One number is meant for all inputs that are no sizes."""
    names = program.input_names()
    if given is None or isinstance(given, int):
        sizes = size_inputs(program)
        return tuple([None if name in sizes else given for name in names])
    return _each("in_dims", names, given, None)


def out_axes(program: Program, given: AxesSpec) -> tuple[int | None, ...]:
    """The batch dimension of each output."""
    if given is None or isinstance(given, int):
        return (given,) * len(program.outputs)
    return _each("out_dims", program.outputs, given, 0)


def _each(
    what: str, names: Sequence[str], given: Sequence[int | None] | Mapping[str, int | None], otherwise: int | None
) -> tuple[int | None, ...]:
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                told = f"{what} names {name}, which is none of {', '.join(names)}"
                raise NameMistake(told, hint=listed(name, names, "names"))
        return tuple([given.get(name, otherwise) for name in names])
    if len(given) != len(names):
        hint = f"one entry for each, one number for all, or a mapping such as {{{names[0]!r}: 0}}" if names else None
        raise InputMistake(f"{what} has {len(given)} entries for {len(names)}: {', '.join(names)}", hint=hint)
    return tuple(given)
