"""Operations written in Tile, to read, run and change.

    import tilec.gallery

    rotary = tilec.gallery.load("rotary")           # a tilec.Function
    print(tilec.gallery.entry("rotary").source)     # its text
    tilec.gallery.find("attention")                 # names of what has to do with a word

Every operation is a file `KIND/NAME.tile` beside this one. The comments at its head are a title, remarks, and what
tensors make an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import torch

from tilec.api import compile as compile_source
from tilec.errors import NameMistake
from tilec.function import Function
from tilec.gallery.samples import Sample, sample

__all__ = ["Entry", "entry", "find", "load", "names"]

SMALL_WORDS = frozenset("a an the and or of by in to with for".split())
KEYS = ("inputs: ", "sizes: ", "workload: ")
_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Entry:
    """One operation of the gallery.

    `inputs` describe tensors for an example as `tilec.gallery.samples` reads them, with the sizes `sizes`. `workload`
    is what the benchmarks call it where they measure it, else empty.
    """

    name: str
    kind: str
    title: str
    remarks: str
    source: str
    inputs: tuple[str, ...]
    sizes: dict[str, int]
    workload: str = ""

    def example(self, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Sample]:
        """Inputs for a call, in order: tensors (floating ones of `dtype`), and numbers for sizes and the like."""
        generator = torch.Generator(device).manual_seed(seed)
        return [sample(text, self.sizes, generator, device, dtype) for text in self.inputs]


def names() -> list[str]:
    """All operations.

    Returns:
        Their names in alphabetical order.
    """
    return sorted(_entries())


def entry(name: str) -> Entry:
    """An operation with its title, text and example.

    Args:
        name: One of `names()`.

    Returns:
        An Entry.

    Raises:
        NameMistake: There is none; the error proposes names that are close.
    """
    found = _entries().get(name)
    if found is None:
        close = get_close_matches(name, names(), 3, 0.6) or find(name)[:3]
        told = " or ".join(f"`{c}`" for c in close)
        hint = f"did you mean {told}?" if close else "`tilec gallery` lists the names"
        raise NameMistake(f"the gallery has no operation `{name}`", hint=hint)
    return found


def load(name: str, **options: object) -> Function:
    """An operation, compiled.

    Args:
        name: One of `names()`.
        options: Those of `tilec.compile`.

    Returns:
        A Function, whose inputs have the shapes that the text of the entry declares.

    Raises:
        NameMistake: There is no operation of that name.
    """
    make: Callable[..., Function] = compile_source
    return make(entry(name).source, **options)


def find(word: str) -> list[str]:
    """Search for operations. A plural finds its singular; small words do not count.

    Args:
        word: One word or several.

    Returns:
        Names of the operations whose name, kind, title or remarks hold all of the words, in alphabetical order.
    """
    words = [part for part in _plain(word).split() if part not in SMALL_WORDS]
    parts = [part.removesuffix("s") if len(part) > 3 else part for part in words]
    texts = {n: _plain(f"{n} {e.kind} {e.title} {e.remarks}") for n, e in _entries().items()}
    return sorted(n for n, text in texts.items() if all(part in text for part in parts))


def _plain(text: str) -> str:
    return re.sub(r"[-_,()]", " ", text.lower())


@cache
def _entries() -> dict[str, Entry]:
    return {path.stem: _read(path) for path in sorted(_FOLDER.glob("*/*.tile"))}


def _read(path: Path) -> Entry:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = [line.removeprefix("//").strip() for line in lines if line.startswith("//")]
    told = dict(line.split(": ", 1) for line in head if line.startswith(KEYS))
    prose = [line for line in head if not line.startswith(KEYS)]
    sizes = dict(pair.split() for pair in told["sizes"].split(", "))
    return Entry(
        name=path.stem,
        kind=path.parent.name,
        title=prose[0],
        remarks=" ".join(prose[1:]),
        source="\n".join(line for line in lines if not line.startswith("//")).strip() + "\n",
        inputs=tuple(told["inputs"].split("; ")),
        sizes={name: int(size) for name, size in sizes.items()},
        workload=told.get("workload", ""),
    )
