"""What people call says what it takes, gives and raises, argument by argument."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import tilec
from tilec import gallery, package


def public_calls() -> Iterator[tuple[str, Callable]]:
    """Functions of the package, and methods of the classes, that `dir` shows."""
    for module in (tilec, gallery, package):
        for name in module.__all__:
            if inspect.isfunction(value := getattr(module, name)):
                yield f"{module.__name__}.{name}", value
    yield "tilec.nn.Tile", tilec.nn.Tile
    f = tilec.compile("Y = X + 1;")
    for thing in (f, f.lower(1.0)):
        kind = type(thing)
        for name in dir(thing):
            if (name == "__call__" or not name.startswith("_")) and inspect.isfunction(getattr(kind, name, None)):
                yield f"{kind.__name__}.{name}", getattr(kind, name)


CALLS = dict(public_calls())
NEVER_RAISE = {  # nothing that a caller gives can be wrong
    *("tilec.gallery.names", "tilec.gallery.find", "Function.latex", "Lowered.source", "Lowered.cost"),
    *("Lowered.kernel_costs", "tilec.load_ipython_extension"),
}
RETURN_NOTHING = {"tilec.nn.Tile", "tilec.tune", "tilec.load_ipython_extension", "Lowered.dump"}


@pytest.mark.parametrize("name", CALLS)
def test_sections(name: str) -> None:
    text = inspect.getdoc(CALLS[name]) or ""
    parts = re.split(r"\n(Args|Returns|Raises):\n", text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(sections) == sorted(sections, key=("Args", "Returns", "Raises").index)
    parameters = [p for p in inspect.signature(CALLS[name]).parameters if p != "self"]
    told = re.findall(r"^    (\w+):", sections.get("Args", ""), re.MULTILINE)
    assert told == parameters
    assert ("Returns" in sections) == (name not in RETURN_NOTHING)
    assert ("Raises" in sections) == (name not in NEVER_RAISE)
    for raised in re.findall(r"^    (\w+):", sections.get("Raises", ""), re.MULTILINE):
        assert hasattr(tilec, raised) or hasattr(package, raised) or raised == "OSError"


def test_examples_print_what_they_show() -> None:
    names = {"tilec": tilec, "torch": torch, "np": np}
    shown = 0
    for name, thing in {**CALLS, "tilec.Function": tilec.Function}.items():
        for test in doctest.DocTestFinder(recurse=False).find(thing, name, globs=names):
            result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
            assert not result.failed, name
            shown += bool(result.attempted)
    assert shown >= 7


def test_they_are_all_here() -> None:
    assert {"tilec.compile", "tilec.gallery.load", "tilec.package.load", "Function.grad", "Lowered.asm"} <= set(CALLS)
    assert len(CALLS) > 25


def test_assembly_of_no_kind() -> None:
    lowered = tilec.compile("Y = X + 1").lower(tilec.spec((4,)), target="sm_90")
    with pytest.raises(tilec.InputMistake, match="the compiler makes no 'nonsense'") as caught:
        lowered.asm("nonsense")
    assert "ptx" in (caught.value.hint or "") and ".visible .entry" in lowered.asm("ptx")
