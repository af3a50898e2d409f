"""Block programs whose warps have work of their own, in Gluon: for Hopper, where a product of a stationary and a
streamed operand feeds another one (FlashAttention-3: Shah et al. 2024).

One warp copies what is streamed into a ring of buffers. Two groups of four warps have half of the program's rows each:
they begin a block's first product and the second one of the block before, and work out what lies between while the
latter runs. Neither waits for the other, so that one's exponentials go with the other's products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.blocks.ir import (
    Apply,
    Cast,
    Full,
    Load,
    Loop,
    Op,
    Positions,
    Reduce,
    Store,
    Value,
    every_operation,
    operands,
    results,
)
from tilec.backends.common.code import literal, python_name
from tilec.backends.triton.blocks.text import BlockText, stride_name, template_of
from tilec.backends.triton.blocks.warp_roles import (
    GROUP_ROWS,
    GROUPS_OF_WARPS,
    Walk,
    WarpRoles,
    depending,
    live_operations,
)
from tilec.backends.triton.matmul.hopper.source import gluon_file
from tilec.backends.triton.plan.lines import CONSTEXPR, CodeLine, Effect, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Descriptor
from tilec.backends.triton.plan.source import Heading, KernelFile, KernelFunction, called, hole

GROUP_WARPS = 4
GROUP_REGISTERS = (232, 32)  # of the threads of the second group and of the copying warp
OWN_NAMES = set(
    """gl tl gluon triton range float mbarrier tma copy_in copy_out fence_async_shared warpgroup_mma warpgroup_mma_init
    warpgroup_mma_wait produce consume WHICH operand operand_layout by_scores by_rows by_columns by_mixed rows_of_mixed
    columns_of_mixed zero turn steps at t k slot before first last slot_begun before_begun first_begun last_begun
    by_mixed1 before_begun1 last_begun1 operand1 stationary stationary1 streamed streamed1 mixture mixture1
    stationary_full streamed_full streamed_free mixture_full mixture_free""".split()
)
BARRIERS = {  # and how many arrive
    "stationary_full": 1,
    "streamed_full": 1,
    "streamed_free": GROUPS_OF_WARPS,
    "mixture_full": 1,
    "mixture_free": GROUPS_OF_WARPS,
}
GLUON_ONLY = {"div": "gl.div_rn({0}, {1})", "not": "({0} == 0)"}  # where its text is not Triton's
RINGS = ("stationary", "streamed", "mixture")


def warp_roles_file(
    s: WarpRoles, maps: Mapping[str, Descriptor], int64_tensors: Sequence[str], heading: Heading, stages: int
) -> KernelFile:
    """The file of the kernel; its arguments are those of `print_kernel`, without maps that nothing reads."""
    program = s.program
    given = [*maps, *(python_name(t.name) for t in program.tensors), *program.sizes]
    given += [stride_name(t.name, d) for t in program.tensors for d in range(t.rank)]
    rings = [f"{name}{k or ''}" for name, found in zip(RINGS, _parameters(s), strict=True) for k in range(len(found))]
    parameters = (*rings, *BARRIERS, *given)
    own = tuple(
        KernelFunction(name, parameters, constants, tuple(body), dialect="gluon")
        for name, constants, body in (
            ("produce", (), _Producer(s, frozenset(int64_tensors), set(given), stages).body()),
            ("consume", ("WHICH",), _Consumer(s, frozenset(int64_tensors), set(given), stages).body()),
        )
    )
    lines: list[CodeLine] = []
    for name, count, parameters_of in zip(RINGS, (GROUPS_OF_WARPS, stages, stages), _parameters(s), strict=True):
        for k, p in enumerate(parameters_of):
            block = ", ".join(map(str, maps[p].block))
            shared = f"gl.allocate_shared_memory({p}.dtype, [{count}, {block}], {p}.layout)"
            lines.append(assign(f"{name}{k or ''}", shared))
    for name in BARRIERS:
        count = GROUPS_OF_WARPS if name == "stationary_full" else stages
        lines.append(assign(name, f"gl.allocate_shared_memory(gl.int64, [{count}, 1], mbarrier.MBarrierLayout())"))
    for name, arrivals in BARRIERS.items():
        count = GROUPS_OF_WARPS if name == "stationary_full" else stages
        begun = Effect(f"mbarrier.init({name}.index(k), count={arrivals})")
        lines.append(ForLoop("k", f"gl.static_range({count})", (begun,)))
    every = ", ".join(parameters)
    roles = [f"({hole('consume')}, ({every}, {k}))" for k in range(GROUPS_OF_WARPS)]
    parts = ", ".join([*roles, f"({hole('produce')}, ({every}))"])
    registers = ", ".join(map(str, GROUP_REGISTERS))
    lines.append(Effect(f"gl.warp_specialize([{parts}], [{GROUP_WARPS}, 1], [{registers}])"))
    sizes = tuple(n for n in program.sizes)
    kernel = KernelFunction(
        program.name, tuple(given), (), tuple(lines), sizes, heading, dialect="gluon", calls=called(own)
    )
    return gluon_file(kernel, own)


def _parameters(s: WarpRoles) -> tuple[list[str], list[str], list[str]]:
    """Maps of the stationary operand's blocks, of the streamed one's, of the second product's."""
    w = s.walks[0]
    stationary, streamed, mixture = (
        [s.loads[load.out].parameter for load in found] for found in (s.stationary, w.streamed, w.mixtures)
    )
    return stationary, streamed, mixture


class _Part(BlockText):
    """What both parts of the kernel write alike: scalars, and how many blocks each walk has."""

    language = "gl"

    def __init__(self, s: WarpRoles, int64_tensors: frozenset[str], taken: set[str], stages: int):
        super().__init__(s.program, int64_tensors, taken | OWN_NAMES, s.loads)
        self.s, self.stages = s, stages

    def _offsets(self, load: Load, moved: str = "") -> str:
        box = self.s.loads[load.out]
        texts = ["0" if v is None else self.names[v] for v in box.offsets]
        place = next((d for d, v in enumerate(load.index) if v.type.axes == (self.s.rows,)), None)
        if moved and place is not None:
            texts[place] += moved
        return ", ".join(texts)

    def _steps(self, loop: Loop) -> CodeLine:
        start, stop = self.names[loop.start], self.names[loop.stop]
        return assign("steps", f"gl.maximum(({stop} - {start} + {loop.step - 1}) // {loop.step}, 0)")

    def _first(self, loop: Loop, place: str) -> CodeLine:
        start = self.names[loop.start]
        text = f"{start} + {place} * {loop.step}" if place != "0" else f"{start} + 0"
        return assign(self.named(loop.counter), text)

    def right_side(self, op: Op) -> str:
        match op:
            case Cast(out, value) if value in self.numbers:
                return f"gl.to_tensor({self.names[value]}).to(gl.{out.type.dtype})"
        return super().right_side(op)

    def _apply(self, op: Apply) -> str:
        axes = op.out.type.axes
        template = GLUON_ONLY.get(op.function) or template_of(op.function, self.language)
        return template.format(*(self.spread(v, axes) for v in op.args))


class _Producer(_Part):
    """The warp that copies."""

    def body(self) -> list[CodeLine]:
        stationary, streamed, mixture = _parameters(self.s)
        boxed = [*self.s.stationary, *(x for w in self.s.walks for x in (*w.streamed, *w.mixtures))]
        places = [v for x in boxed for v in self.s.loads[x.out].offsets if v is not None]
        wanted = {*places} | {v for w in self.s.walks for v in (w.loop.start, w.loop.stop)}
        ops = list(every_operation(self.s.program.body))
        for op in reversed(ops):
            if not isinstance(op, Loop) and not wanted.isdisjoint(results(op)):
                wanted.update(operands(op))
        scalar = [op for op in self.s.program.body if isinstance(op, Loop) or self._wanted(op, wanted)]
        lines: list[CodeLine] = []
        started = False
        for op in scalar:
            if not isinstance(op, Loop):
                lines += self.lines([op])
                continue
            if not started:
                started = True
                for k in range(GROUPS_OF_WARPS):
                    moved = f" + {k * GROUP_ROWS}" if k else ""
                    lines += self._copies("stationary", stationary, self.s.stationary, str(k), moved)
                lines.append(assign("turn", "0"))
            w = next(w for w in self.s.walks if w.loop is op)
            lines.append(self._steps(op))
            inner = [self._first(op, "t"), assign("slot", f"(turn + t) % {self.stages}")]
            inner.append(assign("at", f"(((turn + t) // {self.stages}) & 1) ^ 1"))
            inner += self.lines([x for x in op.body if self._wanted(x, wanted)])
            for name, maps, found in (("streamed", streamed, w.streamed), ("mixture", mixture, w.mixtures)):
                inner.append(Effect(f"mbarrier.wait({name}_free.index(slot), at)"))
                inner += self._copies(name, maps, found, "slot")
            lines += [ForLoop("t", "range(steps)", tuple(inner)), assign("turn", "turn + steps")]
        return lines

    def _copies(
        self, ring: str, maps: Sequence[str], loads: Sequence[Load], slot: str, moved: str = ""
    ) -> list[CodeLine]:
        """A place of a ring is filled, from all of these maps."""
        size = " + ".join(f"{p}.block_type.nbytes" for p in maps)
        lines: list[CodeLine] = [Effect(f"mbarrier.expect({ring}_full.index({slot}), {size})")]
        for k, (p, load) in enumerate(zip(maps, loads, strict=True)):
            offsets, there = self._offsets(load, moved), f"{ring}{k or ''}.index({slot})"
            lines.append(Effect(f"copy_in({p}, [{offsets}], {ring}_full.index({slot}), {there})"))
        return lines

    @staticmethod
    def _wanted(op: Op, wanted: set[Value]) -> bool:
        return not isinstance(op, Store) and all(v in wanted and not v.type.axes for v in results(op))


class _Consumer(_Part):
    """A group of warps that multiplies half of the rows."""

    def body(self) -> list[CodeLine]:
        s, axes = self.s, self.s.program.axes
        scores, mixed = axes[s.streamed], axes[s.columns]

        def layout(columns: int) -> str:
            return (
                f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[{GROUP_WARPS}, 1], "
                f"instr_shape=[16, {columns}, 16])"
            )

        lines: list[CodeLine] = [
            assign("by_scores", layout(scores), CONSTEXPR),
            assign("by_mixed", layout(mixed), CONSTEXPR),
            *(assign("by_mixed1", layout(axes[a]), CONSTEXPR) for a in s.blocks[1:]),
        ]
        for name, dimension, parent in (
            ("by_rows", 1, "by_scores"),
            ("by_columns", 0, "by_scores"),
            ("rows_of_mixed", 1, "by_mixed"),
            ("columns_of_mixed", 0, "by_mixed"),
        ):
            lines.append(assign(name, f"gl.SliceLayout({dimension}, {parent})", CONSTEXPR))
        layout_text = "gl.DotOperandLayout(operand_index=0, parent=by_mixed, k_width=2)"
        lines.append(assign("operand_layout", layout_text, CONSTEXPR))
        lines.append(assign("zero", f"gl.zeros([{GROUP_ROWS}, {scores}], gl.float32, layout=by_scores)"))
        lines += [assign("turn", "0"), Effect("mbarrier.wait(stationary_full.index(WHICH), 0)")]
        walks = {w.loop.counter: w for w in s.walks}
        if s.joined:
            narrow = f"zero.to(gl.{s.walks[0].mixtures[0].out.type.dtype})"
            lines.append(assign("operand", f"gl.convert_layout({narrow}, operand_layout)"))
        for op in live_operations(s):
            if isinstance(op, Loop):
                lines += self._pipelined(replace(walks[op.counter], loop=op))
            else:
                lines += self.lines([op])
        return lines

    def _pipelined(self, w: Walk) -> list[CodeLine]:
        """The walk: a block's first product is begun before the second one of the block before has ended, unless it
        goes block by block. Of two that are joined, the last block of the first is the one before the second's."""
        loop, stages = w.loop, self.stages
        lines = [*self.carried(loop), self._steps(loop)]
        columns, depths = self.s.program.axes[self.s.streamed], [self.s.program.axes[d.axis] for d in w.firsts]

        def first_product(turn: str, slot: str) -> list[CodeLine]:
            lines: list[CodeLine] = [
                assign(slot, f"({turn}) % {stages}"),
                Effect(f"mbarrier.wait(streamed_full.index({slot}), (({turn}) // {stages}) & 1)"),
            ]
            for k, depth in enumerate(depths):
                left = f"stationary{k or ''}.index(WHICH).reshape([{GROUP_ROWS}, {depth}])"
                right = f"streamed{k or ''}.index({slot}).reshape([{columns}, {depth}]).permute((1, 0))"
                added = f"{slot}_begun" if k else "warpgroup_mma_init(zero), use_acc=False"
                lines.append(assign(f"{slot}_begun", f"warpgroup_mma({left}, {right}, {added}, is_async=True)"))
            return lines

        def second_product(turn: str, slot: str) -> list[CodeLine]:
            lines: list[CodeLine] = [
                assign(slot, f"({turn}) % {stages}"),
                Effect(f"mbarrier.wait(mixture_full.index({slot}), (({turn}) // {stages}) & 1)"),
            ]
            for (k, sums), load in zip(self._sums(w), w.mixtures, strict=True):
                shape = ", ".join(str(self.s.program.axes[a]) for a in load.out.type.axes)
                block = f"mixture{k}.index({slot}).reshape([{shape}])"
                lines += [] if w.seen is None else self._cleared(w.seen, block)
                if k:
                    parent = self._layout((self.s.rows, load.out.type.axes[1]))
                    own = f"gl.DotOperandLayout(operand_index=0, parent={parent}, k_width=2)"
                    lines.append(assign(f"operand{k}", f"gl.convert_layout(operand, {own})"))
                product = f"warpgroup_mma(operand{k}, {block}, warpgroup_mma_init({sums}), is_async=True)"
                lines.append(assign(f"{slot}_begun{k}", product))
            return lines

        def ended(slot: str) -> list[CodeLine]:
            begun = [f"{slot}_begun{k}" for k, _ in self._sums(w)]
            weights = [f"operand{k}" for k, _ in self._sums(w)]
            waited = f"warpgroup_mma_wait(num_outstanding=0, deps=({', '.join([*begun, *weights])}))"
            return [
                assign([*(sums for _, sums in self._sums(w)), *weights], waited),
                Effect(f"mbarrier.arrive(mixture_free.index({slot}), count=1)"),
            ]

        if self.s.by_blocks(loop):
            inner = [*first_product("turn + t", "slot"), self._first(loop, "t"), *self._between(w, "slot", 0, [])]
            product = (*second_product("turn + t", "before"), *ended("before"))
            inner += [If("t < steps - 1", product)] if self.s.joined else product
            return [*lines, ForLoop("t", "range(steps)", tuple(inner)), assign("turn", "turn + steps")]
        again = [*first_product("turn + t", "slot"), *second_product("turn + t - 1", "before"), self._first(loop, "t")]
        again += self._between(w, "slot", len(w.seconds), ended("before"))
        last = [*second_product("turn + steps - 1", "last"), *ended("last")]
        if self.s.joined:
            lines.append(ForLoop("t", "range(steps)", tuple(again)))
            return [*lines, If("turn + steps > 0", tuple(last)), assign("turn", "turn + steps")]
        inner = [*first_product("turn", "first"), self._first(loop, "0"), *self._between(w, "first", 0, [])]
        inner += [ForLoop("t", "range(1, steps)", tuple(again)), *last]
        return [*lines, If("steps > 0", tuple(inner)), assign("turn", "turn + steps")]

    def _sums(self, w: Walk) -> list[tuple[str, str]]:
        """For each of a second product's blocks what tells its names from the first one's, and its sums."""
        return [(str(n or ""), self.names[w.loop.carried[k]]) for n, k in enumerate(w.sums)]

    def _cleared(self, seen: Apply, block: str) -> list[CodeLine]:
        """What does not count is 0 in shared memory: both groups of warps write the same there."""
        axes = self.s.program.axes
        across = min(32, axes[self.s.columns] // 8)
        layout = f"gl.BlockedLayout([1, 8], [{32 // across}, {across}], [{GROUP_WARPS}, 1], [1, 0])"
        chosen = self.names[condition := seen.args[0]]
        if condition.type.axes:
            chosen = f"gl.convert_layout({chosen}, gl.SliceLayout(1, by_loads))[:, None]"
        return [
            assign("by_loads", layout, CONSTEXPR),
            assign("block", block),
            Effect(f"block.store(gl.where({chosen}, block.load(by_loads), 0.0).to(block.dtype))"),
            Effect("fence_async_shared()"),
        ]

    def _between(self, w: Walk, slot: str, outstanding: int, ended: Sequence[CodeLine]) -> list[CodeLine]:
        """What lies between a block's products; `ended`: lines that wait for the sums of the block before."""
        loop = w.loop
        loads, products = (*w.streamed, *w.mixtures), (*w.firsts, *w.seconds)
        apart = {*(x.out for x in loads), *(d.out for d in products)}
        apart |= {w.seen.out} if w.seen is not None else set()
        rest = [op for op in loop.body if apart.isdisjoint(results(op))]
        later = depending(loop.body, {w.first})
        late = depending(loop.body, {loop.carried[k] for k in w.sums})
        early = [op for op in rest if (later | late).isdisjoint(results(op))]
        middle = [op for op in rest if not (later - late).isdisjoint(results(op))]
        after = [op for op in rest if not late.isdisjoint(results(op))]
        lines = self.lines(early)
        waited = f"warpgroup_mma_wait(num_outstanding={outstanding}, deps=({slot}_begun,))"
        lines.append(assign(self.named(w.first), waited))
        lines.append(Effect(f"mbarrier.arrive(streamed_free.index({slot}), count=1)"))
        lines += self.lines(middle)
        lines += ended
        lines += self.lines(after)
        added = [d.accumulator for d in w.seconds]
        moved = [(s, self.names[v]) for (_, s), v in zip(self._sums(w), added, strict=True) if v is not None]
        moved += [
            (self.names[c], self.names[v])
            for k, (c, v) in enumerate(zip(loop.carried, loop.yielded, strict=True))
            if k not in w.sums
        ]
        lines.append(assign("operand", f"gl.convert_layout({self.names[w.seconds[0].left]}, operand_layout)"))
        return [*lines, *(assign(a, b) for a, b in moved if a != b)]

    # blocks have layouts

    def right_side(self, op: Op) -> str:
        s = self.s
        match op:
            case Positions(out):
                (axis,) = out.type.axes
                if axis == s.rows:
                    return f"WHICH * {GROUP_ROWS} + gl.arange(0, {GROUP_ROWS}, layout=by_rows)"
                return f"gl.arange(0, {s.program.axes[axis]}, layout={self._layout(out.type.axes)})"
            case Full(out, value) if out.type.axes:
                shape = ", ".join(str(GROUP_ROWS if a == s.rows else s.program.axes[a]) for a in out.type.axes)
                layout = self._layout(out.type.axes)
                return f"gl.full([{shape}], {literal(value)}, gl.{out.type.dtype}, layout={layout})"
            case Reduce(_, _, axis, value) if value.type.axes[0] == s.rows and axis in s.blocks:
                return f"gl.convert_layout({super().right_side(op)}, by_rows)"
        return super().right_side(op)

    def _layout(self, axes: tuple[str, ...]) -> str:
        s = self.s
        found = {(s.rows,): "by_rows", (s.streamed,): "by_columns", (s.rows, s.streamed): "by_scores"}
        for a, whole, rows in zip(s.blocks, ("by_mixed", "by_mixed1"), ("columns_of_mixed", ""), strict=False):
            found |= {(s.rows, a): whole, (a,): rows or f"gl.SliceLayout(0, {whole})"}
        return found[axes]

    def spread(self, v: Value, axes: Sequence[str]) -> str:
        """Rows stand beside the sums' columns in these columns' layout."""
        s = self.s
        if v.type.axes == (s.rows,) and len(axes) == 2 and axes[1] in s.blocks:
            layout = "rows_of_mixed" if axes[1] == s.columns else f"gl.SliceLayout(1, {self._layout(tuple(axes))})"
            return f"gl.convert_layout({self.names[v]}, {layout})[:, None]"
        return super().spread(v, axes)
