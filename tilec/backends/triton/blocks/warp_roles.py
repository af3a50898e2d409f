"""Which block programs give warps work of their own: on Hopper, where a product of a stationary and a streamed operand
feeds another one (FlashAttention-3: Shah et al. 2024). `warp_roles_text` writes their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.blocks.ir import (
    Apply,
    BlockProgram,
    Cast,
    DotOp,
    Full,
    Load,
    Loop,
    Number,
    Op,
    Positions,
    ProgramId,
    Reduce,
    SizeArgument,
    Store,
    Value,
    every_operation,
    operands,
    results,
)
from tilec.backends.common.code import python_name
from tilec.backends.triton.blocks.boxes import BoxLoad
from tilec.backends.triton.blocks.text import TRITON_FUNCTIONS
from tilec.backends.triton.plan.plan import Descriptor
from tilec.ir.functions import COMPARISONS
from tilec.ir.types import NARROW

GROUPS_OF_WARPS = 2  # groups of warps that multiply
GROUP_ROWS = 64  # of each: what a group's wgmma has
# functions of blocks that a group of warps computes
GLUON_FUNCTIONS = (
    "add", "sub", "mul", "neg", "abs", "div", "select", "and", "or", "not", *COMPARISONS, *TRITON_FUNCTIONS,
)  # fmt: skip
GLUON_REDUCTIONS = ("sum", "max")


@dataclass(frozen=True)
class Walk:
    """A loop: the loads of both products' streamed operands, the products, and the places of the second's sums among
    what is carried. Where operands lie in several blocks, the first is the sum of several, and the second are several
    of one operand. `seen`: the second's streamed operand where it counts, if it does not everywhere."""

    loop: Loop
    firsts: tuple[DotOp, ...]
    seconds: tuple[DotOp, ...]
    streamed: tuple[Load, ...]
    mixtures: tuple[Load, ...]
    sums: tuple[int, ...]
    seen: Apply | None = None

    @property
    def first(self) -> Value:
        """The first product's sums."""
        return self.firsts[-1].out


@dataclass(frozen=True)
class WarpRoles:
    """A block program in this form: the blocks of the operand that is stationary, the walks, the axes of rows, of what
    is streamed, and of the second product's columns, or of their first block."""

    program: BlockProgram
    loads: Mapping[Value, BoxLoad]
    stationary: tuple[Load, ...]
    walks: tuple[Walk, ...]
    rows: str
    streamed: str
    columns: str

    @property
    def blocks(self) -> tuple[str, ...]:
        """The axes of all blocks of the second product's columns."""
        return tuple(d.out.type.axes[1] for d in self.walks[0].seconds)

    def masked(self, loop: Loop) -> bool:
        """Whether some points of its blocks do not count."""
        found = (v.type for op in loop.body for v in results(op))
        return any(t.dtype == "bool" and self.streamed in t.axes for t in found)

    def by_blocks(self, loop: Loop) -> bool:
        """Whether each block's second product ends before the next one's first begins: walks with masks are short
        beside one without, and this is half the text to compile."""
        return self.masked(loop) and not all(self.masked(w.loop) for w in self.walks)

    @property
    def joined(self) -> bool:
        """Whether the walk without masks goes on where the one of the last blocks, which has one at least where there
        are any, leaves off: it ends where that one begins. Then it needs no first block of its own to begin with, a
        third of the text to compile, and no second product stands between the two."""
        if len(self.walks) != 2 or any(w.seen is not None for w in self.walks):
            return False
        first, second = (w.loop for w in self.walks)
        return self.by_blocks(first) and not self.masked(second) and first.start == second.stop


def warp_roles(program: BlockProgram, loads: Mapping[Value, BoxLoad]) -> WarpRoles | None:
    """The block program in this form; None where it is another one: one product of a stationary operand and a streamed
    one in 16 bits, both brought by maps, and one second product in each walk, and between them functions of the
    table."""
    made = {v: op for op in every_operation(program.body) for v in results(op)}
    walks = [w for op in program.body if isinstance(op, Loop) for w in [_walk(op, made, loads)] if w is not None]
    if not walks or len(walks) != sum(isinstance(op, Loop) for op in program.body):
        return None
    w = walks[0]
    stationary = tuple(op for d in w.firsts for op in [made[d.left]] if isinstance(op, Load))
    (rows, columns), streamed = w.seconds[0].out.type.axes, w.streamed[0].out.type.axes[0]
    alike = all(
        [d.left for d in other.firsts] == [d.left for d in w.firsts]
        and [d.out.type.axes for d in other.seconds] == [d.out.type.axes for d in w.seconds]
        and other.loop.step == w.loop.step
        and other.first.type.axes == (rows, streamed)
        and [x.tensor for x in (*other.streamed, *other.mixtures)] == [x.tensor for x in (*w.streamed, *w.mixtures)]
        for other in walks
    )
    if not alike or program.axes[rows] != GROUPS_OF_WARPS * GROUP_ROWS:
        return None
    found = WarpRoles(program, loads, stationary, tuple(walks), rows, streamed, columns)
    seen = [w.seen for w in walks if w.seen is not None]
    # both groups of warps clear what they read, and must find the same
    if any(w.seen and not found.by_blocks(w.loop) for w in walks) or any(_reads_rows(op, rows, made) for op in seen):
        return None
    every = (op for op in every_operation(live_operations(found)) if op not in seen)
    return found if all(_known(op, found) for op in every) else None


def half_maps(s: WarpRoles, maps: Mapping[str, Descriptor]) -> tuple[WarpRoles, dict[str, Descriptor]]:
    """The same with a map of half of the stationary rows, which each group has copied for itself; maps with layouts."""
    halves, loads = {}, dict(s.loads)
    for load in s.stationary:
        box = s.loads[load.out]
        block = list(maps[box.parameter].block)
        block[next(d for d, v in enumerate(load.index) if v.type.axes == (s.rows,))] = GROUP_ROWS
        name = f"{python_name(load.tensor)}_map_{'_'.join(map(str, block))}"
        loads[load.out] = replace(box, parameter=name)
        halves[name] = replace(maps[box.parameter], block=tuple(block))
    used = [loads[x.out].parameter for w in s.walks for x in (*w.streamed, *w.mixtures)]
    found = halves | {p: maps[p] for p in dict.fromkeys(used)}
    dtype = s.stationary[0].out.type.dtype
    laid = {
        p: replace(d, layout=f"gl.NVMMASharedLayout.get_default_for([{', '.join(map(str, d.block))}], gl.{dtype})")
        for p, d in found.items()
    }
    return replace(s, loads=loads), laid


def live_operations(s: WarpRoles) -> tuple[Op, ...]:
    """What a group of warps carries out: all that stores and walks need beside what is copied for it."""
    copied = {x.out for w in s.walks for x in (*w.streamed, *w.mixtures, *s.stationary)}
    first = {w.first for w in s.walks}
    needed: set[Value] = set()

    def mark(ops: Sequence[Op]) -> None:
        for op in reversed(ops):
            own = {*results(op)}
            if isinstance(op, Loop):
                needed.update(op.yielded)
                mark(op.body)
            if isinstance(op, (Loop, Store)) or own & needed and not own & (copied | first):
                needed.update(operands(op))

    mark(s.program.body)
    needed -= copied

    def live(ops: Sequence[Op]) -> tuple[Op, ...]:
        return tuple(
            replace(op, body=live(op.body)) if isinstance(op, Loop) else op
            for op in ops
            if isinstance(op, (Loop, Store)) or not needed.isdisjoint(results(op))
        )

    return live(s.program.body)


def _walk(loop: Loop, made: Mapping[Value, Op], loads: Mapping[Value, BoxLoad]) -> Walk | None:
    dots = [op for op in loop.body if isinstance(op, DotOp)]
    inside = {v for op in loop.body for v in results(op)}
    seconds = [d for d in dots if isinstance(made.get(d.left), Cast) and d.left in inside]
    firsts = dots[: len(dots) - len(seconds)]
    if not firsts or not seconds or dots != [*firsts, *seconds] or len({d.left for d in seconds}) > 1:
        return None
    if any(isinstance(op, (Loop, Store)) for op in loop.body):
        return None
    seen = made.get(seconds[0].right)
    seen = seen if isinstance(seen, Apply) and seen.function == "select" and len(seconds) == 1 else None
    mixed = [d.right for d in seconds] if seen is None else [seen.args[1]]
    read = [made.get(v) for v in (*(d.left for d in firsts), *(d.right for d in firsts), *mixed)]
    brought = [x for x in read if isinstance(x, Load) and _is_box(x, loads)]
    cast = made[seconds[0].left]
    if len(brought) != len(read) or not isinstance(cast, Cast) or any(d.accumulator is None for d in seconds):
        return None
    n = len(firsts)
    stationary, streamed, mixtures = brought[:n], brought[n : 2 * n], brought[2 * n :]
    dtypes = {x.out.type.dtype for x in brought}
    if len(dtypes) != 1 or not dtypes <= set(NARROW) or cast.out.type.dtype not in dtypes:
        return None
    added = [d.out for d in firsts[:-1]]
    if [d.accumulator for d in firsts] != [None, *added] or any(x.out in inside for x in stationary):
        return None
    if any(v in added for op in loop.body if op not in firsts for v in operands(op)):
        return None
    if not {x.out for x in (*streamed, *mixtures)} <= inside:
        return None
    axes = all((d.left.type.axes[1], d.right.type.axes[1]) == (d.axis, d.axis) for d in firsts)
    if not axes or any(d.right.type.axes[0] != d.axis or d.left.type.axes[1] != d.axis for d in seconds):
        return None
    sums = [k for d in seconds for k, v in enumerate(loop.yielded) if v == d.out]
    if len(sums) != len(seconds):
        return None
    late = depending(loop.body, {loop.carried[k] for k in sums})
    others = {v for k, v in enumerate(loop.yielded) if k not in sums}
    moved = others & {*loop.carried} - {v for v in loop.yielded if v in loop.carried}
    again = any(d.out in operands(op) for d in seconds for op in loop.body)
    if late & {cast.value, *others} or again or moved:
        return None
    return Walk(loop, tuple(firsts), tuple(seconds), tuple(streamed), tuple(mixtures), tuple(sums), seen)


def _is_box(load: Load, loads: Mapping[Value, BoxLoad]) -> bool:
    """Whether a map brings the block as it stands."""
    return load.out in loads and loads[load.out].axes == load.out.type.axes


def depending(ops: Sequence[Op], found: set[Value]) -> set[Value]:
    """What depends on these values, themselves included."""
    reached = set(found)
    for op in ops:
        if not reached.isdisjoint(operands(op)):
            reached.update(results(op))
    return reached


def _reads_rows(op: Apply, rows: str, made: Mapping[Value, Op]) -> bool:
    """Whether where a `select` chooses depends on the rows."""
    pending = [op.args[0]]
    for v in pending:
        if rows in v.type.axes:
            return True
        below = made.get(v)
        pending += [x for x in operands(below) if x not in pending] if below is not None else []
    return False


def _known(op: Op, s: WarpRoles) -> bool:
    """Whether the writer has the operation: blocks over rows, over what is streamed, over both or of the sums."""
    shapes = {(), (s.rows,)} | {x for a in (s.streamed, *s.blocks) for x in ((a,), (s.rows, a))}
    if isinstance(op, (DotOp, Loop)):
        return True
    if any(v.type.axes not in shapes for v in results(op)):
        return False
    match op:
        case Apply():
            return op.function in GLUON_FUNCTIONS
        case Reduce():
            return op.aggregation in GLUON_REDUCTIONS and not op.careful
        case Load():
            return len(op.out.type.axes) < 2
        case Cast():
            return op.out.type.dtype in ("float32", "int32", *NARROW)
        case Store(_, index):
            return all(len(v.type.axes) < 2 for v in index)
    return isinstance(op, (Number, SizeArgument, ProgramId, Positions, Full))
