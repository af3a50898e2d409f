"""The launch of a chain's kernel: block sizes (`tiling`), then the block program as Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.common.blocks.builder import INDEX_TYPE
from tilec.backends.common.blocks.ir import BlockProgram, Value
from tilec.backends.common.blocks.show import served_lines
from tilec.backends.common.chains.chain import ChainKernel
from tilec.backends.common.chains.codegen.build import build_kernel, has_short_rows, scores_beside
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.codegen.visits import Visits, block_shapes, build_lists, visits_of
from tilec.backends.common.chains.splits import Split, build_together, split_of, sums_of_parts
from tilec.backends.common.code import python_name
from tilec.backends.triton.blocks.boxes import BoxLoad, box_loads
from tilec.backends.triton.blocks.text import print_kernel, stride_name
from tilec.backends.triton.blocks.warp_roles import half_maps, warp_roles
from tilec.backends.triton.blocks.warp_roles_text import warp_roles_file
from tilec.backends.triton.chains.tiling import (
    MATRIX,
    choose_chain_tiling,
    columns_of_operands,
    most_registers,
    roles_tiling,
    streamed_tensors,
)
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.matmul.pack import CopyLayout, copied_apart
from tilec.backends.triton.plan.device_info import HOPPER, MULTIPROCESSORS
from tilec.backends.triton.plan.heading import without_sizes
from tilec.backends.triton.plan.plan import Allocate, Descriptor, Launch, Pointer, Release, Setting, Step
from tilec.backends.triton.plan.sizes import NARROWEST, WHOLE_VECTOR, contiguous_strides, needs_int64_positions, reach
from tilec.backends.triton.plan.source import Heading, KernelFile
from tilec.backends.triton.pointwise.pointwise import pointwise
from tilec.ir.index import linear
from tilec.ir.program import Call, Statement, accesses_in, index_variables, walk
from tilec.ir.symbolic import gcd
from tilec.ir.types import NARROW, TensorType, Types, is_floating
from tilec.language.show import show_statement

AnyStrides = Mapping[str, tuple[int, ...]]
_MANY = 2**26  # points of a kernel for which lists of blocks pay
_MUCH = 2**33  # points times columns of operands of a kernel for which tensor maps pay
_MUCH_MORE = 2**36  # the same for which copies of statistics pay
_PAIR, _STATISTICS = 2, 4  # float32 elements that a thread reads at once, and of a whole vector
_READS = 8  # of an element, for each that a load brings, from which on rows are copied to whole vectors
_LEAST_ROW = 128  # bytes of a row of a box: the copy engine takes as long for fewer, but asks for no masks
ONE_WARP = 2**11  # elements of all parts of a row, up to which one warp puts them together
LISTS = PARTS_TILING = Tiling(warps=4, stages=1)  # of kernels that make lists, or put parts together


def chain_steps(kernel: ChainKernel, types: Types, strides: AnyStrides, setting: Setting) -> list[Step]:
    """The steps that compute a chain's targets: where they pay, parts of the walk, lists of the blocks to visit; its
    kernel."""
    return _ChainPlanner(kernel, types, strides, setting).steps()


@dataclass(frozen=True)
class _ChainPlanner:
    kernel: ChainKernel
    types: Types
    strides: AnyStrides
    setting: Setting
    copied: tuple[str, ...] = ()  # tensors in whose places copies are, which maps bring

    @property
    def _name(self) -> str:
        return python_name(self.kernel.outputs[-1]) + "_chain"

    def steps(self) -> list[Step]:
        unaligned = {} if self.copied else {**self._across, **self._read_unaligned, **self._statistics_unaligned}
        if unaligned:
            return self._over_copies(unaligned)
        split = split_of(self.kernel, self.types)
        return self._walk() if split is None else self._in_parts(split)

    @property
    def _across(self) -> dict[str, CopyLayout]:
        """What blocks add to scores, read often, of which neighbours of rows and columns lie apart: `P[i, j, h]`."""
        kernel, found = self.kernel, dict[str, CopyLayout]()
        if kernel.in_place or kernel.looped is None or len(kernel.blocked) != 1:
            return found
        for a in accesses_in(*(r.target.body for r in kernel.targets)):
            if a.tensor in kernel.inners or a.tensor in kernel.outputs:
                continue
            t, forms = self.types[a.tensor], [linear(e) for e in a.index]
            own = [k for k, form in enumerate(forms) if form.bare == kernel.looped]
            across = (form for form, step in zip(forms, self.strides[a.tensor], strict=True) if step == 1)
            block = {kernel.looped, *kernel.blocked}
            if len(own) != 1 or not block <= {*index_variables(a)} or any(block & {*f.variables()} for f in across):
                continue
            if t.numel * _READS <= _points(kernel) and is_floating(t.dtype):
                found[a.tensor] = CopyLayout.with_last(own[0], len(t.shape))
        return found

    @property
    def _read_unaligned(self) -> dict[str, CopyLayout]:
        """What programs walk in rows of 16 bits that do not begin at whole vectors, where each element is read often
        enough, and the more often the more of them one load brings: a copy then takes less time than the loads."""
        kernel, setting = self.kernel, self.setting
        if not self._has_boxes or kernel.looped is None or len(kernel.blocked) != 1 or kernel.in_place:
            return {}
        found: dict[str, CopyLayout] = {}
        for name in streamed_tensors(kernel):
            strides = self.strides[name]
            apart = [n for n, e in zip(strides[:-1], self.types[name].shape[:-1], strict=True) if e > 1]
            together = 1 if name in setting.misaligned else gcd(WHOLE_VECTOR, *apart)
            plain = self.types[name].dtype in NARROW and strides[-1] == 1 and name not in kernel.outputs
            reads = -(-kernel.extent[kernel.blocked[0]] // MATRIX.block)
            if plain and together < WHOLE_VECTOR and reads >= _READS * together:
                found[name] = CopyLayout(tuple(range(len(self.types[name].shape))))
        return found

    @property
    def _statistics_unaligned(self) -> dict[str, CopyLayout]:
        """The same of statistics that have a value for each place of the walk: a thread of products reads neighbours,
        and these one by one where rows begin between pairs."""
        kernel = self.kernel
        work = _points(kernel) * columns_of_operands(kernel)
        if not self._has_boxes or work < _MUCH_MORE or len(kernel.blocked) != 1 or kernel.in_place:
            return {}
        found: dict[str, CopyLayout] = {}
        for a in accesses_in(*(r.target.body for r in kernel.targets)):
            used = {*index_variables(a)}
            if a.tensor in kernel.inners or a.tensor in kernel.outputs or not used.isdisjoint(kernel.blocked):
                continue
            t = self.types[a.tensor]
            if t.dtype != "float32" or not a.index or linear(a.index[-1]).bare != kernel.looped:
                continue
            strides = self.strides[a.tensor]
            apart = [n for n, e in zip(strides[:-1], t.shape[:-1], strict=True) if e > 1]
            if strides[-1] == 1 and any(n % _PAIR for n in apart):
                *outer, row = t.shape
                padded = (*outer, -(-row // _STATISTICS) * _STATISTICS)
                found[a.tensor] = CopyLayout(tuple(range(len(t.shape))), shape=padded)
        return found

    def _over_copies(self, layouts: Mapping[str, CopyLayout]) -> list[Step]:
        """The steps over copies of tensors whose rows begin at whole vectors."""
        view = StridedView(self.kernel.statements[0], self.types, self.strides, False)
        before: list[Step] = []
        after: list[Step] = []
        copies: dict[str, str] = {}
        for name, layout in layouts.items():
            copies[name] = f"{self.kernel.outputs[-1]}.{name}_rows"
            view, once, released = copied_apart(copies[name], name, layout, view)
            before.append(once)
            after += released
        strides = {n: view.strides[c] for n, c in copies.items()}
        setting = replace(self.setting, misaligned=tuple(n for n in self.setting.misaligned if n not in copies))
        across = self._across
        copied = tuple(n for n in layouts if self.types[n].dtype in NARROW and n not in across)
        planner = replace(self, strides={**self.strides, **strides}, setting=setting, copied=copied)
        return [*before, *(x.given(copies) if isinstance(x, Launch) else x for x in planner.steps()), *after]

    def _beside(self, types: Types) -> _ChainPlanner:
        """With contiguous tensors of these types too."""
        strides = contiguous_strides(types)
        return replace(self, types={**self.types, **types}, strides={**self.strides, **strides})

    def _walk(self) -> list[Step]:
        kernel = self.kernel
        visits = visits_of(kernel, self.types) if _points(kernel) >= _MANY else None
        apart = None if visits is not None and _tests_equality(visits) else roles_tiling(kernel, self.setting)
        steps = None if apart is None else self._listed(apart, visits, roles=True)
        found = steps or self._listed(choose_chain_tiling(kernel, self.types, self.setting), visits)
        assert found is not None
        return found

    def _listed(self, tiling: Tiling, visits: Visits | None, roles: bool = False) -> list[Step] | None:
        """The launch, after that which makes its lists; None where `roles` are wanted of another form."""
        shapes = {} if visits is None else block_shapes(visits, self.kernel, tiling)
        lists = {n: TensorType(s, INDEX_TYPE) for n, s in shapes.items()}
        planner = self._beside(lists)
        launch = planner._warp_roles(tiling, visits) if roles else planner._whole(tiling, visits)
        if visits is None or launch is None:
            return None if launch is None else [launch]
        made = build_lists(f"{self._name}_blocks", visits, self.kernel, planner.types, tiling)
        steps: list[Step] = [Allocate(n, t.shape, t.dtype) for n, t in lists.items()]
        return [*steps, planner._launched(made, LISTS, {}, {}), launch, Release(tuple(lists))]

    def _in_parts(self, split: Split) -> list[Step]:
        """The steps of a kernel whose programs walk parts of the columns, which are put together then."""
        planner = self._beside(split.types)
        steps: list[Step] = [Allocate(n, t.shape, t.dtype) for n, t in split.types.items()]
        steps += replace(self._beside(split.stored), kernel=split.kernel)._walk()
        added = [planner._added(s) for s in sums_of_parts(self.kernel, planner.types)]
        if not added or None in added:
            made = build_together(f"{self._name}_together", split, self.kernel, planner.types)
            few = math.prod(made.axes.values()) <= ONE_WARP  # one warp, so that the sums stay in its lanes
            added = [planner._launched(made, replace(PARTS_TILING, warps=1) if few else PARTS_TILING, {}, {})]
        return [*steps, *filter(None, added), Release(tuple(split.types))]

    def _added(self, s: Statement) -> Launch | None:
        """The launch of a sum of parts, where it is one."""
        how = self.types, self.strides
        view = coalesce(StridedView(s, *how, needs_int64_positions([s], *how)))
        space = build_space(view.statement, view.types)
        steps = (space and pointwise(space, view, s)) or []
        return next((step for step in steps if isinstance(step, Launch)), None) if len(steps) == 1 else None

    def _whole(self, tiling: Tiling, visits: Visits | None) -> Launch:
        """`visits`: lists that are there. Triton gives statistics the layout of what comes last, products or elements
        of each point that no map brings; in that of such loads rows lie across lanes and warps (windows of 49 places
        with a bias: 173 µs in place of 42)."""
        made = build_kernel(self._name, self.kernel, self.types, tiling, visits)
        loads, maps = self._boxes(made, tiling, self._least_row(tiling))
        brought = {m.tensor for m in maps.values()}
        first = [a.tensor for a in scores_beside(self.kernel) if a.tensor not in brought]
        if first:
            made = build_kernel(self._name, self.kernel, self.types, tiling, visits, loaded_first=first)
            loads, maps = self._boxes(made, tiling, self._least_row(tiling))
        return self._launched(made, tiling, loads, maps)

    def _launched(
        self, made: BlockProgram, tiling: Tiling, loads: Mapping[Value, BoxLoad], maps: Mapping[str, Descriptor]
    ) -> Launch:
        factors = self._factors(made)
        apart = has_short_rows(self.kernel, tiling)
        file = print_kernel(made, self._int64_tensors(made), self._heading(), loads, factors, apart)
        return self._launch_of(made, file, maps, tiling, factors)

    def _factors(self, made: BlockProgram) -> dict[tuple[str, int], int]:
        """Powers of two below 16 that divide strides, by tensor and axis: Triton by itself knows of 16 alone, and so
        vectorizes there (heads of 72 elements)."""
        every = ((t.name, d, n) for t in made.tensors for d, n in enumerate(self.strides[t.name]))
        found = {(name, d): gcd(n, 16) for name, d, n in every if n > 1}
        return {place: factor for place, factor in found.items() if 1 < factor < 16}

    def _int64_tensors(self, made: BlockProgram) -> list[str]:
        names = [t.name for t in made.tensors]
        return [n for n in names if reach(self.types[n].shape, tuple(self.strides[n])) > NARROWEST]

    def _heading(self) -> Heading:
        return tuple((show_statement(without_sizes(s)), s.output) for s in self.kernel.statements)

    def _launch_of(
        self,
        made: BlockProgram,
        file: KernelFile,
        maps: Mapping[str, Descriptor],
        tiling: Tiling,
        factors: Mapping[tuple[str, int], int],
    ) -> Launch:
        arguments: list[tuple[str, object]] = list(maps.items())
        arguments += [(python_name(t.name), Pointer(t.name)) for t in made.tensors]
        arguments += list(made.sizes.items())
        arguments += [
            (stride_name(t.name, d), n // factors.get((t.name, d), 1))
            for t in made.tensors
            for d, n in enumerate(self.strides[t.name])
        ]
        grid = (made.grid, 1, 1)
        how = tiling.warps, tiling.stages, self.kernel.outputs, not self.kernel.singly
        registers = most_registers(tiling)
        return Launch(file, grid, tuple(arguments), (), *how, block=partial(served_lines, made), registers=registers)

    def _warp_roles(self, tiling: Tiling, visits: Visits | None) -> Launch | None:
        """The launch of a kernel whose warps have work of their own; None where that is not of its form, or there are
        fewer programs than multiprocessors: half as many where all walks are as long as each other, since programs of
        half the rows would be two to a multiprocessor."""
        made = build_kernel(self._name, self.kernel, self.types, tiling, visits, roles=True)
        loads, maps = self._boxes(made, tiling, least=0)
        enough = made.grid >= MULTIPROCESSORS or made.grid > MULTIPROCESSORS // 2 and self._walks_are_alike
        found = warp_roles(made, loads) if enough else None
        if found is None:
            return None
        found, maps = half_maps(found, maps)
        file = warp_roles_file(found, maps, self._int64_tensors(made), self._heading(), tiling.stages)
        return self._launch_of(made, file, maps, tiling, {})

    @property
    def _walks_are_alike(self) -> bool:
        targets = [r.target for r in self.kernel.targets]
        return not any(t.bounds or t.conditions for t in targets)

    def _least_row(self, tiling: Tiling) -> int:
        """Of a box: any where several products read what is walked, and loads by pointers would have masks."""
        looped, products = self.kernel.looped, sum(i.left is not None for i in self.kernel.inners.values())
        return 0 if products > 1 and looped and self.kernel.extent[looped] % tiling.step else _LEAST_ROW

    def _boxes(
        self, made: BlockProgram, tiling: Tiling, least: int
    ) -> tuple[dict[Value, BoxLoad], dict[str, Descriptor]]:
        """What the copy engine brings, in rows of at least so many bytes: where there is one, and where the kernel
        works for long enough that the host's work on tensor maps does not show."""
        if not self._has_boxes or not (tiling.boxed or self.copied):
            return {}, {}
        shapes = {t.name: self.types[t.name].shape for t in made.tensors}
        others = () if tiling.boxed else (n for n in shapes if n not in self.copied)
        return box_loads(made, shapes, self.strides, {*self.setting.misaligned, *others}, 0 if self.copied else least)

    @property
    def _has_boxes(self) -> bool:
        """Whether the device has a copy engine, and there is enough to do."""
        work = _points(self.kernel) * columns_of_operands(self.kernel)
        return self.setting.device.capability == HOPPER and work >= _MUCH


def _tests_equality(visits: Visits) -> bool:
    """Whether elements must be equal, as those of documents: the walks over such lists are short."""
    tests = (e for c in visits.conditions for e in walk(c) if isinstance(e, Call) and e.function in ("eq", "ne"))
    return any(True for e in tests for _ in accesses_in(e))


def _points(kernel: ChainKernel) -> int:
    points = math.prod(kernel.extent[v] for v in (*kernel.blocked, *kernel.batch, *kernel.walked))
    points //= math.prod(kernel.extent[part] for part in kernel.dealt.values())
    return points if kernel.looped is None else points * kernel.extent[kernel.looped]
