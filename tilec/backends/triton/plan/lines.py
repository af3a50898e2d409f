"""The body of a kernel as nodes, before it is text: assignments, stores, loops, branches.

Expressions are texts that writers make. What a line reads are the names in its expressions, which are taken from them
where the line is; nothing else of an expression is known, and no line is made from another one's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

# what stands in quotes or is a hole; a name that is no attribute, no keyword of a call and no part of a number
_NAME = re.compile(r"""(?:"[^"]*"|'[^']*'|\u2329[^\u232a]*\u232a)|(?<![\w.])([A-Za-z_]\w*)(?!\w|=[^=])""")
_WORDS = frozenset("and else for if in is not or True False None".split())


@dataclass(frozen=True)
class Assignment:
    """The names take what the text gives; one name, by an operator such as `+=`, that and what it has. `shared`: lines
    below take the name for the text."""

    names: tuple[str, ...]
    text: str
    operator: str = "="
    shared: bool = False


@dataclass(frozen=True)
class StoreLine:
    """`call`: how the value goes to its address, by an atomic operation perhaps. `how`: further arguments."""

    address: str
    value: str
    mask: str | None = None
    call: str = "store"
    how: str = ""


@dataclass(frozen=True)
class Effect:
    """A call for what it does: a barrier, a copy, another function. `text`: in several lines perhaps."""

    text: str


@dataclass(frozen=True)
class Return:
    """The program ends, or a function, which gives `value`."""

    value: str | None = None


@dataclass(frozen=True)
class ForLoop:
    counter: str
    over: str
    body: tuple[CodeLine, ...]


@dataclass(frozen=True)
class WhileLoop:
    """`body` may be empty: what is waited for is in the test."""

    test: str
    body: tuple[CodeLine, ...] = ()


@dataclass(frozen=True)
class If:
    test: str
    body: tuple[CodeLine, ...]
    orelse: tuple[CodeLine, ...] = ()


CONSTEXPR = ": gl.constexpr ="  # the operator of an assignment that Gluon carries out as it compiles
BARRIER = Effect("tl.debug_barrier()")
RELAXED = ', sem="relaxed"'  # how an atomic operation goes on that nothing waits for

CodeLine = Assignment | StoreLine | Effect | Return | ForLoop | WhileLoop | If


def assign(name: str | Sequence[str], text: str, operator: str = "=") -> Assignment:
    """The line that gives the text to one name or several."""
    return Assignment((name,) if isinstance(name, str) else tuple(name), text, operator)


class LineBuilder:
    """What writes lines, into the innermost block."""

    @property
    def lines(self) -> list[CodeLine]:
        raise NotImplementedError

    def add(self, *lines: CodeLine) -> None:
        self.lines.extend(lines)

    def assign(self, name: str | Sequence[str], text: str, operator: str = "=") -> None:
        self.add(assign(name, text, operator))

    def effect(self, text: str) -> None:
        self.add(Effect(text))

    def store(self, address: str, value: str, mask: str | None = None, call: str = "store", how: str = "") -> None:
        self.add(StoreLine(address, value, mask, call, how))


@lru_cache(1 << 14)
def names_read(text: str) -> frozenset[str]:
    """The names that an expression reads."""
    return frozenset(_NAME.findall(text)) - _WORDS - {""}


def with_names(text: str, names: Mapping[str, str]) -> str:
    """The text with other names in the place of these."""
    return _NAME.sub(lambda found: names.get(found[1], found[0]), text)


def expression_texts(line: CodeLine) -> tuple[str, ...]:
    """The expressions of a line itself."""
    match line:
        case Assignment(targets, text, operator):
            return (text,) if operator in ("=", CONSTEXPR) else (text, *targets)
        case StoreLine(address, value, mask, how=how):
            return (address, value, mask or "", how)
        case Effect(text) | If(text) | WhileLoop(text) | ForLoop(over=text):
            return (text,)
        case Return(str() as value):
            return (value,)
    return ()


def targets(line: CodeLine) -> tuple[str, ...]:
    """The names that a line itself gives values."""
    return line.names if isinstance(line, Assignment) else (line.counter,) if isinstance(line, ForLoop) else ()


def nested_blocks(line: CodeLine) -> tuple[tuple[CodeLine, ...], ...]:
    """The blocks of lines inside a line."""
    match line:
        case If(body=body, orelse=orelse):
            return (body, orelse)
        case ForLoop(body=body) | WhileLoop(body=body):
            return (body,)
    return ()


def every(lines: Iterable[CodeLine]) -> Iterator[CodeLine]:
    for line in lines:
        yield line
        for block in nested_blocks(line):
            yield from every(block)


def in_versions(
    lines: Sequence[CodeLine], versions: Sequence[Mapping[str, str]], fresh: Callable[[str], str]
) -> list[CodeLine]:
    """The lines, where each that depends on names that `versions` give, by what it reads or changes, stands there once
    for each version, in which these are other texts. No loop or branch may depend on one. `fresh`: makes a name like
    another, for what later versions assign."""
    varied = dict.fromkeys(versions[0])
    while True:
        depending = [x for x in every(lines) if not _touched(x).isdisjoint(varied)]
        more = dict.fromkeys(n for x in depending for n in targets(x) if n not in varied)
        if not more:
            break
        varied |= more
    names = [{n: n if k == 0 else fresh(n) for n in varied} | {**given} for k, given in enumerate(versions)]
    return _repeated(lines, names)


def _touched(line: CodeLine) -> frozenset[str]:
    """The names that a line itself reads or gives values."""
    return frozenset(targets(line)).union(*map(names_read, expression_texts(line)))


def _repeated(lines: Sequence[CodeLine], versions: Sequence[Mapping[str, str]]) -> list[CodeLine]:
    found: list[CodeLine] = []
    for line in lines:
        depends = not _touched(line).isdisjoint(versions[0])
        match line:
            case Assignment() | StoreLine() | Effect() if depends:
                found += [_renamed(line, names) for names in versions]
            case Assignment() | StoreLine() | Effect() | Return():
                found.append(line)
            case ForLoop(body=body) | WhileLoop(body=body):
                assert not depends, line
                found.append(replace(line, body=tuple(_repeated(body, versions))))
            case If(body=body, orelse=orelse):
                assert not depends, line
                found.append(
                    replace(line, body=tuple(_repeated(body, versions)), orelse=tuple(_repeated(orelse, versions)))
                )
    return found


def _renamed(line: Assignment | StoreLine | Effect, names: Mapping[str, str]) -> CodeLine:
    match line:
        case Assignment(own, text):
            return replace(line, names=tuple(names.get(n, n) for n in own), text=with_names(text, names))
        case StoreLine(address, value, mask):
            masked = None if mask is None else with_names(mask, names)
            return replace(line, address=with_names(address, names), value=with_names(value, names), mask=masked)
    return Effect(with_names(line.text, names))


def printed(lines: Sequence[CodeLine], language: str = "tl") -> list[str]:
    """The lines' text. `language`: what the module of Triton's or Gluon's functions is called."""
    return [text for text, _ in printed_lines(lines, language)]


def printed_lines(lines: Sequence[CodeLine], language: str = "tl") -> list[tuple[str, CodeLine]]:
    """The same, each with the line that it is written from: a loop's head and a branch's are the loop's and branch's
    own."""
    found: list[tuple[str, CodeLine]] = []

    def inside(block: Sequence[CodeLine]) -> list[tuple[str, CodeLine]]:
        return [(f"    {text}", inner) for text, inner in printed_lines(block, language)]

    for line in lines:
        match line:
            case Assignment(targets, text, operator):
                found.append((f"{', '.join(targets)}{'' if operator[0] == ':' else ' '}{operator} {text}", line))
            case StoreLine(address, value, mask, call, how):
                masked = "" if mask is None else f", mask={mask}"
                found.append((f"{language}.{call}({address}, {value}{masked}{how})", line))
            case Effect(text):
                found += [(part, line) for part in text.splitlines()]
            case Return(value):
                found.append(("return" if value is None else f"return {value}", line))
            case ForLoop(counter, over, body):
                found += [(f"for {counter} in {over}:", line), *inside(body)]
            case WhileLoop(test, body):
                found += [(f"while {test}:", line), *(inside(body) or [("    pass", line)])]
            case If(test, body, orelse):
                found += [(f"if {test}:", line), *inside(body)]
                if len(orelse) == 1 and isinstance(orelse[0], If):
                    (text, other), *rest = printed_lines(orelse, language)
                    found += [(f"el{text}", other), *rest]
                elif orelse:
                    found += [("else:", line), *inside(orelse)]
            case _:
                assert_never(line)
    return found
