"""Blocks of some of a kernel's axes: index arithmetic, conditions, addresses, reads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilec.backends.common.code import parenthesised, python_name
from tilec.backends.common.domain import Condition, access_conditions, all_conditions, free, may_wrap
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.kernel import Kernel, all_text, triton_type
from tilec.backends.triton.emit.magnitudes import parts_of_lower_bound
from tilec.backends.triton.emit.positions import PositionText
from tilec.backends.triton.plan.sizes import VECTOR_BYTES, contiguous
from tilec.backends.triton.plan.source import PROGRAM
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Expr, Index, Int, Statement, index_variables
from tilec.ir.rational import as_int
from tilec.ir.types import ITEM_BYTES, NARROW

VECTOR_PARTS = (2, 4)  # elements apart, of which whole vectors are loaded


class Frame(PositionText):
    """Blocks whose dimensions are the given axes (by name; None: no dimension of its own). `how`: text of what loads
    are told beside, and `hints` of certain tensors."""

    how = ""
    hints: Mapping[str, str] = MappingProxyType({})

    def __init__(self, kernel: Kernel, axes: Sequence[str], tails: Mapping[str, str], *inner: frozenset[str]):
        """`tails`: for each axis, the 1-D test that its position is inside, where blocks may overhang. `inner`: for
        each scope inside the kernel's own, the axes and variables that it binds; a line goes to the outermost scope
        that binds all it depends on."""
        self.kernel = kernel
        self.axes = tuple(axes)
        self.tails = dict(tails)
        self.inner = inner
        self.types = kernel.types
        self.untested = ""  # the test of reads that need none, where they shall have one all the same
        self.given: Mapping[Expr, ScalarValue] = {}  # elements that the kernel computes and reads others at
        self.made: Collection[str] = ()  # of which tensors these are

    # conditions

    def tests(self, conditions: Sequence[Condition]) -> list[str]:
        """Texts of the comparisons that the boxes of all classes leave open."""
        found: list[str] = []
        boxes = [self.kernel.space.box(k) for k in range(len(self.kernel.space.classes))]
        for c in conditions:
            form = self.form(c.form.to_expr())
            if not form.terms:
                if form.constant.denominator != 1 or not 0 <= form.constant < c.bound:
                    found.append("tl.full((), False, tl.int1)")
                continue
            scale = form.denominator
            spans = [b.interval(form) for b in boxes]
            above = all(low >= 0 for low, _ in spans)
            below = all(high < c.bound for _, high in spans)
            if above and below and scale == 1:
                continue
            wraps = may_wrap(form, self.types, [end for span in spans for end in span])
            if not above or wraps:
                for part in (form,) if wraps else parts_of_lower_bound(form):
                    if not wraps and part.is_integral and all(b.interval(part)[0] >= 0 for b in boxes):
                        continue
                    found.append(f"({self.assign('at', self.index(part * scale), free(part))} >= 0)")
            below = below and not wraps
            if below and scale == 1:
                continue
            code = self.assign("at", self.index(form * scale), free(form))
            if not below:
                bound = self.kernel.number(("bound", form, c.bound), "bound", c.bound * scale, self._runs_fast(form))
                found.append(f"({code} < {bound})")
            if scale != 1:
                found.append(f"({code} % {scale} == 0)")
        return found

    def inside(self, access: Access) -> str | None:
        """Text of the test that an access, those in its index included, lies in its tensor; None: it always does."""
        texts = self.tests(all_conditions(access, self.types))
        if not texts:
            return None
        return self.assign("inside", all_text(texts), free_of(access))

    # reads

    def address(self, tensor: str, forms: Sequence[Affine], spread_over: frozenset[str] = frozenset()) -> str:
        """Text of the address of an element: one product a variable, with the strides of all axes added up. It has the
        dimensions of the axes `spread_over` even if it is the same along them."""
        return self.kernel.pointer(tensor) + self._offsets(tensor, forms, spread_over)

    def element_address(self, s: Statement, tensor: str | None = None) -> str:
        """The address of a statement's element, or of the same one of another tensor, over all axes."""
        return self.address(tensor or s.output, [self.form(e) for e in s.index or ()], frozenset(self.axes))

    def part_address(self, tensor: str, parts: str, forms: Sequence[Affine], spread_over: frozenset[str]) -> str:
        """The same in this program's part of a split sum: `parts` holds as many elements as the tensor for each."""
        offsets, base = self._offsets(tensor, forms, spread_over), self.kernel.pointer(parts)
        step = self.kernel.number("elements", "elements", self.types[tensor].numel)
        return f"{base} + {PROGRAM[2]}.to(tl.int64) * {step}{offsets}"

    def _offsets(self, tensor: str, forms: Sequence[Affine], spread_over: frozenset[str]) -> str:
        strides = self.kernel.strides[tensor]
        slopes = tuple(form.terms for form in forms)  # places that differ by numbers move alike
        text = ""
        for axis, (form, stride) in enumerate(zip(forms, strides, strict=True)):
            if self.types[tensor].shape[axis] != 1 and form.denominator != 1:
                step = self.kernel.number(("stride", tensor, axis), f"{python_name(tensor)}_stride", stride)
                text += f" + ({self.index(form)}) * {step}"
        moves, start = self._moves(tensor, forms)
        steps = {a: self._step(tensor, slopes, a, move) for a, move in moves.items() if move}
        for along, atoms in self._by_axis(steps):
            if along is not None and len(atoms) > 1 and self._fits([(a, moves[a]) for a in atoms]):
                whole = " + ".join(f"{parenthesised(self.kernel.value_of[a.name], ']')} * {steps[a]}" for a in atoms)
                made = self.assign("at", whole, frozenset(a.name for a in atoms))
                text += f" + {self.spread(made, along)}"
            else:
                text += "".join(f" + {parenthesised(self._along(a, moves[a]), ']')} * {steps[a]}" for a in atoms)
            spread_over -= {along} if along is not None else frozenset()
        return text + self._start(tensor, tuple(forms), start) + self._zeros(spread_over)

    def _along(self, a: Expr, move: int) -> str:
        """A term's atom, of which each step moves so far: a term is added to an address by itself."""
        space = self.kernel.space  # what stands for several variables together is none of it
        one = isinstance(a, Index) and a.name in (*space.outputs, *space.reductions, *space.residues)
        return self._placed(a, one and self._needs_64_bits(Affine.of([(a, move)])))

    def _fits(self, terms: Sequence[tuple[Expr, int]]) -> bool:
        """Whether what these add up to is a position, although what other terms take away is not."""
        k = self.kernel
        return k.places_shared and (k.int64_index or self._span(Affine.of(terms)) is not None)

    def _by_axis(self, atoms: Iterable[Expr]) -> list[tuple[str | None, list[Any]]]:
        """Atoms of an address: those of the kernel's scope that are the same for all elements; by the axis along which
        they differ, since neighbours along one share what these add up to, and each element takes one sum an axis; the
        others, which loops step through."""
        whole, last, along = list[Any](), list[Any](), dict[str, list[Any]]()
        for a in atoms:
            axes = self.dimensions(frozenset((a.name,))) if isinstance(a, Index) else frozenset()
            if axes:
                along.setdefault(next(iter(axes)), []).append(a)
            elif isinstance(a, Index) and not self.depth(frozenset((a.name,))):
                whole.append(a)
            else:
                last.append(a)
        return [(None, whole), *along.items(), (None, last)]

    def _step(self, tensor: str, slopes: object, a: Expr, move: int) -> str:
        stem = f"{python_name(tensor)}_{python_name(a.name) if isinstance(a, Index) else 'at'}"
        return self.kernel.number(("move", tensor, slopes, a), stem, move)

    def _start(self, tensor: str, key: object, start: int) -> str:
        stem = python_name(tensor) + "_start"
        return f" + {self.kernel.number(('start', tensor, key), stem, start)}" if start else ""

    def _zeros(self, spread_over: frozenset[str]) -> str:
        return "".join(f" + {self.spread(name, name)} * 0" for name in self.axes if name in spread_over)

    def _moves(self, tensor: str, forms: Sequence[Affine]) -> tuple[dict[Expr, int], int]:
        """How far in memory a step of each term goes, of the axes whose places are whole, and the place of zeros."""
        moves: dict[Expr, int] = {}
        start = 0
        for n, form, stride in zip(self.types[tensor].shape, forms, self.kernel.strides[tensor], strict=True):
            if n == 1 or form.denominator != 1:
                continue  # always at 0, or by itself
            for a, c in form.terms:
                moves[a] = moves.get(a, 0) + as_int(c) * stride
            start += as_int(form.constant) * stride
        return self._coalesced(moves) if self.kernel.powers else moves, start

    def _coalesced(self, moves: dict[Expr, int]) -> dict[Expr, int]:
        """The moves, those of all variables of an axis as one of its last where memory runs through them as the axis
        does: a position's parts then need not be known to read there."""
        k, left = self.kernel, dict(moves)
        for axis in {a.name: a for a in k.axis_of.values() if a.block is not None}.values():
            variables = [v for v in axis.variables if k.space.largest(v) > 1]
            steps = [moves.get(Index(v), 0) for v in variables]
            sizes = [{n[v] for n in k.space.extent} for v in variables]
            runs = all(len(n) == 1 and a == b * min(n) for a, b, n in zip(steps, steps[1:], sizes[1:], strict=False))
            if len(variables) > 1 and steps[-1] and runs and all(k.low(v) == "0" for v in variables):
                for v in variables:
                    del left[Index(v)]
                k.value_of[f"{axis.name}."], k.axis_of[f"{axis.name}."] = axis.name, axis
                left[Index(f"{axis.name}.")] = steps[-1]
        return left

    def access_tests(self, access: Access) -> list[str]:
        """Texts of the tests that the access itself lies in its tensor."""
        return self.tests(access_conditions(access, self.types))

    def vectors(self, access: Access) -> tuple[frozenset[str], frozenset[str]]:
        """The variables along which vectors of what is read may lie, and those that have an axis alone, from 0 on. None
        lies along those of elements that say where is read."""
        k, steps = self.kernel, self.kernel.strides[access.tensor]
        moved = [(linear(e), step) for e, step in zip(access.index, steps, strict=True) if step]
        atoms = [(a, f.is_affine, abs(c * step)) for f, step in moved for a, c in f.terms if not isinstance(a, Access)]
        near = {v for a, affine, move in atoms if move == 1 or not affine for v in index_variables(a)}
        fast = {*self.axes[-1:], *self.dimensions(frozenset(near))}
        on = {a: [v for v, own in k.axis_of.items() if own.name == a and k.space.largest(v) > 1] for a in self.axes}
        alone = (v for variables in on.values() for v in variables if len(variables) == 1 and k.low(v) == "0")
        return frozenset(v for a in fast for v in on.get(a, ())), frozenset(alone)

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        """Texts of the tests that what the variables take is no overhang of a block."""
        return [self.spread(self.tails[a], a) for a in self.axes if a in self.dimensions(variables) & set(self.tails)]

    def vector_tests(self, tensor: str, index: Sequence[Expr]) -> Mapping[str, str]:
        """By such a test, what does in its place for elements of a tensor whose rows have room behind them: that they
        are in a vector that begins inside. What lies in that room nothing uses. A test of each element would make each
        of them a load by itself."""
        k, axis = self.kernel, self.axes[-1] if self.axes else ""
        if tensor not in k.padded or self.types[tensor].dtype not in NARROW:  # rows of 16 bits alone have room
            return {}
        if axis not in self.tails or axis not in k.starts:
            return {}
        shape, strides = self.types[tensor].shape, k.strides[tensor]
        own = [v for v, a in k.axis_of.items() if a.name == axis and k.space.largest(v) > 1]
        walked = [d for d, e in enumerate(index) if {*own} & {*index_variables(e)}]
        if len(own) != 1 or len(walked) != 1 or linear(index[walked[0]]).bare != own[0] or strides[walked[0]] != 1:
            return {}
        vector, n = VECTOR_BYTES // ITEM_BYTES[self.types[tensor].dtype], shape[walked[0]]
        if n % vector == 0 or k.low(own[0]) != "0" or any(e[own[0]] != n for e in k.space.extent):
            return {}
        near = self.assign("near_in", f"{axis} // {vector} * {vector} < {k.starts[axis][1]}", frozenset((axis,)))
        return {self.spread(self.tails[axis], axis): self.spread(near, axis)}

    def dependencies(self, access: Access) -> frozenset[str]:
        """The variables that what is read depends on."""
        return free_of(access)

    def masked_over(self, access: Access) -> frozenset[str]:
        """The axes over which tests of what is read may differ."""
        return self.dimensions(free_of(access))

    def _given(self, access: Access) -> ScalarValue | None:
        """The value that the kernel has of an element. Conditions have 0 in the place of variables of extent 1."""
        if access in self.given or access.tensor not in self.made:
            return self.given.get(access)
        shape = self.types[access.tensor].shape
        for a, v in self.given.items():
            if isinstance(a, Access) and a.tensor == access.tensor:
                pairs = zip(shape, a.index, access.index, strict=True)
                if all(x == y or (n == 1 and isinstance(x, Index) and y == Int(0)) for n, x, y in pairs):
                    return v
        return None

    def read(self, access: Access, other: float | int | None, wanted: Sequence[str] = ()) -> str:
        """A name of the elements read; where the access is outside, the tile overhangs, or they are not `wanted` (texts
        of tests), they are `other` (None: not needed, since what is read there is not used)."""
        if (given := self._given(access)) is not None:
            return given.code
        forms = [self.form(e) for e in access.index]
        variables = free_of(access)
        if 0 in self.types[access.tensor].shape:
            zeros, kind = self._zeros(self.dimensions(variables)), triton_type(self.types[access.tensor].dtype)
            return f"(tl.full((), 0, tl.int32){zeros}).to({kind})" if zeros else f"tl.full((), 0, {kind})"
        tests = self.access_tests(access)
        part = None if tests else self._taken_out(access, forms, variables)
        if part is not None:
            return part
        instead = self.vector_tests(access.tensor, access.index)
        tests += [*wanted, *(instead.get(test, test) for test in self.tail_tests(variables))]
        masked = self.masked_over(access) if tests else frozenset()
        text = f"tl.load({self.address(access.tensor, forms, masked)}"
        if tests:
            text += f", mask={all_text(tests)}, other={0 if other is None else other}"
        elif self.untested:
            text += f", mask={self.untested}, other=0"
        text += self.hints.get(access.tensor, self.how)
        return self.assign(python_name(access.tensor).lower(), text + ")", variables)

    def _taken_out(self, access: Access, forms: Sequence[Affine], variables: frozenset[str]) -> str | None:
        """The same where neighbours of the last axis read two or four elements apart: all elements between are loaded
        as well, in whole vectors, and those that are wanted are taken out of them. None where that is not so."""
        k, tensor = self.kernel, access.tensor
        axis = self.axes[-1] if self.axes else ""
        if axis not in k.starts or len(self.axes) > 2 or any(form.denominator != 1 for form in forms):
            return None
        moves, start = self._moves(tensor, forms)
        along = [a for a in moves if isinstance(a, Index) and axis in self.dimensions(frozenset((a.name,)))]
        apart = moves[along[0]] if len(along) == 1 else 0
        if apart not in VECTOR_PARTS or any(m < 0 or m % apart or not isinstance(a, Index) for a, m in moves.items()):
            return None
        (v,) = along
        named = [w for w in k.axis_of[v.name].variables if k.space.largest(w) > 1]
        if v.name != f"{axis}." and (named != [v.name] or k.low(v.name) != "0"):
            return None
        part, t = start % apart, self.types[tensor]
        boxes = [k.space.box(n) for n in range(len(k.space.classes))]
        strides = k.strides[tensor]
        ends = [sum(s * b.interval(f)[1] for s, f in zip(strides, forms, strict=True)) for b in boxes]
        if strides != contiguous(t.shape) or max(ends, default=0) - part + apart > math.prod(t.shape):
            return None
        first, end, block = k.starts[axis]
        here = frozenset((axis,))
        place = self.assign("near", f"({first}) * {apart} + tl.arange(0, {block} * {apart})", here)
        tests = self.tail_tests(variables)
        own = [self.spread(self.tails[axis], axis)] if axis in self.tails else []
        if own:
            near_in = self.assign("near_in", f"{place} < ({end}) * {apart}", here)
            tests = [self.spread(near_in, axis) if test in own else test for test in tests]
        slopes = ("whole", *(form.terms for form in forms))
        text = f"{k.pointer(tensor)} + {self.spread(place, axis)} * {self._step(tensor, slopes, v, 1)}"
        spread = self.dimensions(variables) - here if tests else frozenset()
        for a, move in moves.items():
            if a != v and move:
                text += f" + {parenthesised(self.atom(a), ']')} * {self._step(tensor, slopes, a, move)}"
                spread -= self.dimensions(frozenset((a.name,))) if isinstance(a, Index) else frozenset()
        whole = tuple(f - part if stride == 1 else f for f, stride in zip(forms, strides, strict=True))
        text += self._start(tensor, whole, start - part) + self._zeros(spread)
        mask = f", mask={all_text(tests)}, other=0" if tests else ""
        how = self.hints.get(tensor, self.how)
        read = self.assign(python_name(tensor).lower(), f"tl.load({text}{mask}{how})", variables)
        blocks = {a.name: a.block for a in k.axis_of.values()}
        rows = [f"{blocks[a]}" if a in self.dimensions(variables) else "1" for a in self.axes[:-1]]
        return self._part(read, ", ".join([*rows, block]), apart, part, self.depth(variables))

    def _part(self, whole: str, shape: str, apart: int, part: int, depth: int) -> str:
        """Every second or fourth element of a block, from the one of that number."""
        if apart == 2:
            return self.kernel.pair("part", f"tl.split(tl.reshape({whole}, ({shape}, 2)))", depth)[part]
        two = self.kernel.pair("part", f"tl.split(tl.reshape({whole}, ({shape}, 2, 2)))", depth)[part % 2]
        return self.kernel.pair("part", f"tl.split({two})", depth)[part // 2]


def free_of(access: Access) -> frozenset[str]:
    return frozenset(v for e in access.index for v in free(linear(e)))
