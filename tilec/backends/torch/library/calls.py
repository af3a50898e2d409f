"""Which statements of a program a routine of torch carries out, and the lines of its call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.base import Lowering
from tilec.backends.common.code import indented, permuted, tuple_text
from tilec.backends.torch.library.masks import lowered, mask_of, shared_first
from tilec.backends.torch.library.match import Matcher, Occurrence
from tilec.backends.torch.library.routines import ROUTINES, Routine
from tilec.backends.torch.sharing import EXACT
from tilec.ir.at_sizes import as_float
from tilec.ir.functions import all_of
from tilec.ir.program import Access, Call, Float, Int, Program, Statement, reads, walk
from tilec.ir.types import Types


@dataclass(frozen=True)
class LibraryCall:
    """A routine and how it matches; `results`: the statements that it carries out, those that something reads."""

    routine: Routine
    match: Occurrence
    results: tuple[Statement, ...]

    @property
    def members(self) -> tuple[Statement, ...]:
        """Statements that read what the call reads, and are of its results."""
        read = all_of([Access(t, ()) for t in self.sources])
        assert read is not None
        return tuple(Statement(s.output, (), (), read) for s in self.results)

    @property
    def sources(self) -> tuple[str, ...]:
        told = (self.match.name(t) for t, _ in self.routine.reads)
        others = (*self.match.numbers.values(), *(x for parts in self.match.free.values() for x in parts))
        return tuple(dict.fromkeys([*told, *(x.tensor for x in walk(*others) if isinstance(x, Access))]))


@dataclass(frozen=True)
class Part:
    """Statements in order, and the call that follows them, if one does."""

    statements: tuple[Statement, ...]
    call: LibraryCall | None = None


def library_parts(program: Program, types: Types) -> list[Part]:
    """The program's statements but those that only routines needed, and the calls, in an order that computes them."""
    calls = _found(program, types)
    given = {s.output: c for c in calls for s in c.results}
    by_name = {s.output: s for s in program.statements}
    done: set[str] = set()
    parts: list[Part] = []
    pending: list[Statement] = []

    def need(name: str) -> None:
        if name in done or name not in by_name:
            return
        done.add(name)
        call = given.get(name)
        if call is None:
            for other in reads(by_name[name]):
                need(other)
            pending.append(by_name[name])
            return
        done.update(s.output for s in call.results)
        for other in call.sources:
            need(other)
        parts.append(Part(tuple(pending), call))
        pending.clear()

    wanted = _live(program, given)
    for call in calls:
        need(call.results[0].output)
    for s in program.statements:
        if s.output in wanted:
            need(s.output)
    return [*parts, Part(tuple(pending))]


def _live(program: Program, given: Mapping[str, LibraryCall]) -> set[str]:
    """What outputs need where these are computed by calls."""
    wanted = set(program.outputs)
    for s in reversed(program.statements):
        if s.output in wanted:
            call = given.get(s.output)
            wanted.update(reads(s) if call is None else call.sources)
    return wanted


def _found(program: Program, types: Types) -> list[LibraryCall]:
    statements = {s.output: s for s in program.statements}
    calls: list[LibraryCall] = []
    taken: set[str] = set()
    marks = {x.function for s in program.statements for x in walk(*s.roots) if isinstance(x, Call)}
    marks |= {s.aggregation for s in program.statements}
    for routine in ROUTINES:
        if not marks.issuperset(routine.marks):
            continue
        matcher = Matcher(routine.pattern, statements, types)
        for s in program.statements:
            copied = isinstance(s.body, Access) and s.body.tensor in taken
            if s.output in taken or copied or types[s.output].dtype not in EXACT:
                continue
            match = _matched(routine, matcher, s, program)
            if match is None:
                continue
            gives = [match.name(t) for t, _ in routine.gives]
            if not taken.isdisjoint(gives):
                continue
            inner = {t for t, _ in match.tensors.values()} & statements.keys()
            trial = [*calls, LibraryCall(routine, match, tuple(statements[t] for t in gives))]
            live = _live(program, {t: c for c in trial for t in (x.output for x in c.results)})
            kept = tuple(statements[t] for t in gives if t in live)
            if _worth(routine, inner - set(gives), live, match):
                calls.append(LibraryCall(routine, match, kept))
                taken.update(gives)
    return calls


def _worth(routine: Routine, inner: set[str], live: set[str], match: Occurrence) -> bool:
    """Is nothing large left to compute that the routine computes too?"""
    reads_ = {match.name(t) for t, _ in routine.reads}
    large = [t for t, axes in match.tensors.values() if t in inner and t in live and t not in reads_]
    return not (routine.fallible and large)


def _matched(routine: Routine, matcher: Matcher, s: Statement, program: Program) -> Occurrence | None:
    def rooted(names: Sequence[str], match: Occurrence) -> Iterator[Occurrence]:
        if not names:
            yield match
            return
        others = [s] if names[0] == routine.roots[0] else program.statements
        for other in others:
            for m in matcher.root(names[0], other, match):
                yield from rooted(names[1:], m)

    named = {t for t, _ in (*routine.gives, *routine.reads)}  # a mean of one is the sum and has no name
    found = (m for m in rooted(routine.roots, Occurrence()) if named <= m.tensors.keys())
    match = next((m for m in found if routine.admits(m)), None)
    if match is None:
        return None
    dtypes = {matcher.types[t].dtype for t, _ in match.tensors.values()}
    return match if len(dtypes) == 1 else None


def call_lines(
    call: LibraryCall,
    program: Program,
    types: Types,
    local: Mapping[str, str],
    fresh: Callable[[str], str],
    function: Callable[[Lowering], str],
) -> list[str]:
    """Lines that bind the results' names; `function` makes a function of a program and gives its name."""
    routine, match, lines = call.routine, call.match, list[str]()
    if routine.mask is not None:
        match = shared_first(routine.mask, match)
    layout = _Flat(match) if routine.flat else _AsItLies(match, routine.reads[0][0])
    given = {t: layout.given(local[match.name(t)], t, packs) for t, packs in routine.reads}
    given |= {n: str(as_float(e.value)) for n, e in match.numbers.items() if isinstance(e, Int | Float)}
    given |= {n: local[e.tensor] for n, e in match.numbers.items() if isinstance(e, Access)}
    kept = {s.output for s in call.results}
    first = kept == {match.name(routine.gives[0][0])}
    alone = routine.alone and first
    given |= {"mask": "None", "alone": str(first), "terms": str(bool(routine.mask and match.free.get(routine.mask[1])))}
    mask = routine.mask and mask_of(routine.mask, match, types, types[call.results[0].output].dtype)
    if mask:
        lowering, shape = mask
        given["mask"] = fresh("mask")
        inputs = ", ".join(local[i] for i in lowering.stages["flat"].input_names())
        lines.append(f"{given['mask']} = {function(lowering)}({inputs})[0].view({tuple_text(shape)})")
    text = (routine.alone if alone else routine.call).format(
        **given, places=tuple_text(layout.places), place=next(iter(layout.places), 0)
    )
    if alone:
        return [f"{local[call.results[0].output]} = {layout.restored(text, *routine.gives[0])}"]
    raw = [fresh("given") for _ in routine.gives]
    bound = [
        f"{local[match.name(t)]} = {layout.restored(r, t, packs)}"
        for r, (t, packs) in zip(raw, routine.gives, strict=True)
        if match.name(t) in kept
    ]
    bound.append(f"del {', '.join(raw)}")
    if not routine.fallible:
        return [*lines, f"{', '.join(raw)}, = {text}", *bound]
    exact, found = _exact(call, program, types), fresh("found")
    results = "".join(f"{local[s.output]}, " for s in call.results)
    inputs = ", ".join(local[i] for i in exact.stages["flat"].input_names())
    otherwise = [f"{', '.join(raw)}, = {found}", *bound]
    return [
        *lines,
        f"{found} = {text}",
        f"if {found} is None:",
        *indented([f"{results}= {function(exact)}({inputs})"]),
        "else:",
        *indented(otherwise),
        f"del {', '.join([found, *([given['mask']] if lines else [])])}",
    ]


class _AsItLies:
    """Axes in the order of one tensor; the call is told at which places those of `j` are."""

    def __init__(self, match: Occurrence, first: str):
        self.match, self.order = match, match.tensors[first][1]
        self.places = [self.order.index(a) for a in match.axes["j"]]

    def given(self, text: str, tensor: str, packs: str) -> str:
        own = self.match.tensors[tensor][1]
        return permuted(text, [own.index(a) for a in self.order if a in own])

    def restored(self, text: str, tensor: str, packs: str) -> str:
        own = self.match.tensors[tensor][1]
        kept = [a for a in self.order if a in own]
        return permuted(text, [kept.index(a) for a in own])


class _Flat:
    """One axis for each of the pattern's variables, in its order."""

    places: Sequence[int] = ()

    def __init__(self, match: Occurrence):
        self.match = match

    def _same(self, packs: str) -> bool:
        return all(len(self.match.axes[p]) == 1 for p in packs)

    def given(self, text: str, tensor: str, packs: str) -> str:
        own, wanted = self.match.tensors[tensor][1], [a for p in packs for a in self.match.axes[p]]
        shape = tuple_text([self.match.extent(p) for p in packs])
        text = permuted(text, [own.index(a) for a in wanted])
        return text if self._same(packs) else f"{text}.reshape({shape})"

    def restored(self, text: str, tensor: str, packs: str) -> str:
        own, wanted = self.match.tensors[tensor][1], [a for p in packs for a in self.match.axes[p]]
        if not self._same(packs):
            text = f"{text}.view({tuple_text([self.match.sizes[a] for a in wanted])})"
        return permuted(text, [wanted.index(a) for a in own])


def _exact(call: LibraryCall, program: Program, types: Types) -> Lowering:
    """The statements that the routine stands for."""
    wanted = {s.output for s in call.results}
    members: list[Statement] = []
    for s in reversed(program.statements):
        if s.output in wanted:
            members.insert(0, s)
            wanted.update(t for t in reads(s))
            wanted.difference_update(call.sources)
    return lowered(members, [s.output for s in call.results], types)
