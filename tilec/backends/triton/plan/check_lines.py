"""Checks of a kernel's lines before they are printed: each name has a value where it is read.

A name is read where every path has given it a value, past a loop that is not entered too, and (with TILEC_VERIFY, as in
tests of kernels) never where it stands for a text, `shared`, of which a name has changed since. What a function neither
is given nor gives a value itself is free: its file must define that. No block is empty but a wait's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from tilec.backends.triton.plan.lines import (
    Assignment,
    CodeLine,
    ForLoop,
    If,
    Return,
    WhileLoop,
    every,
    expression_texts,
    names_read,
    printed,
    targets,
)
from tilec.knobs import VERIFY


class MalformedKernel(AssertionError):
    """A mistake of the compiler's own: lines that are no function. `undefined`: names that nothing defines."""

    undefined: frozenset[str] = frozenset()


def free_names(name: str, parameters: Sequence[str], lines: Sequence[CodeLine]) -> frozenset[str]:
    """The names that a function of these lines takes from its file; raises MalformedKernel where it is none."""
    if len({*parameters}) < len(parameters):
        raise MalformedKernel(f"{name}: two parameters have one name: {', '.join(parameters)}")
    check = _Check(name, lines)
    if changed := check.given.keys() & {*parameters}:
        raise MalformedKernel(f"{name}: {min(changed)} is a parameter, which a line changes")
    check.give(parameters)
    check.block(lines)
    return frozenset(check.free)


def check_defined(name: str, free: Set[str], defined: Set[str]) -> None:
    """Raise MalformedKernel where a kernel's file does not define what its functions take from it."""
    if undefined := free - defined:
        error = MalformedKernel(f"{name}: nothing defines {', '.join(sorted(undefined))}")
        error.undefined = frozenset(undefined)
        raise error


def given_names(lines: Sequence[CodeLine]) -> list[str]:
    return [n for line in every(lines) for n in targets(line)]


class _Check:
    """`given`: all names to which the function gives values, how often; `free`: those read that are not among them.
    `known` have a value where the check is, in the order of `trail`. `shared`: names that stand for texts, by what
    these read; `stale`: those out of date."""

    def __init__(self, name: str, lines: Sequence[CodeLine]):
        self.name, self.given = name, Counter(given_names(lines))
        self.free: set[str] = set()
        self.known: set[str] = set()
        self.trail: list[str] = []
        self.shared: dict[str, frozenset[str]] = {}
        self.stale: set[str] = set()
        self.strict = VERIFY.value

    def fail(self, line: CodeLine, what: str) -> None:
        raise MalformedKernel(f"{self.name}: {what}: {printed([line])[0]}")

    def give(self, names: Sequence[str]) -> None:
        self.change(self.known & set(names))
        for n in names:
            if n in self.known:
                self.stale.discard(n)
            else:
                self.known.add(n)
                self.trail.append(n)

    def change(self, names: set[str]) -> None:
        """What stands for a text that reads these is out of date."""
        while names:
            late = {n for n, read in self.shared.items() if not read.isdisjoint(names)} - self.stale
            self.stale |= late
            names = late

    def block(self, lines: Sequence[CodeLine]) -> bool:
        """Go through lines; whether no program gets to their end."""
        left = False
        for line in lines:
            if left:
                self.fail(line, "no program gets here")
            for text in expression_texts(line):
                self.read(line, names_read(text))
            match line:
                case Assignment(names, text, shared=shared):
                    self.give(names)
                    if shared and self.given[names[0]] == 1:  # else it is carried along
                        self.shared[names[0]] = names_read(text)
                case Return():
                    left = True
                case ForLoop(body=body) | WhileLoop(body=body):
                    self.change(self.known.intersection(given_names(body)))
                    self.nested(body, targets(line))
                    if not body and isinstance(line, ForLoop):
                        self.fail(line, "an empty block")
                case If(_, body, orelse):
                    if not body:
                        self.fail(line, "an empty block")
                    ways = [way for way in (self.nested(body), self.nested(orelse)) if way is not None]
                    left = not ways
                    self.give(sorted(set.intersection(*ways) - self.known) if ways else ())
        return left

    def read(self, line: CodeLine, names: frozenset[str]) -> None:
        for n in names - self.known:
            self.free.add(n)
            if n in self.given:
                self.fail(line, f"{n} may have no value yet")
        if self.strict and not names.isdisjoint(self.stale):
            self.fail(line, f"{min(names & self.stale)} stands for a text of which a name has changed")

    def nested(self, lines: Sequence[CodeLine], first: Sequence[str] = ()) -> set[str] | None:
        """Go through a block and forget what it gives; that, or None where no program gets to its end."""
        before = len(self.trail)
        self.give(first)
        left = self.block(lines)
        found = set(self.trail[before:])
        del self.trail[before:]
        self.known -= found
        return None if left else found
