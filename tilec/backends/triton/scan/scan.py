"""Family scan: which blocks, and whether rows are cut into chunks that run side by side.

Where the rows fill the device, one program goes through each block of rows. Where they are few, a row is cut into
chunks: a launch for their totals, and one for the chunks themselves, which reads the terms a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.plan.device_info import PLANNED_FOR, TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.plan import Allocate, Release, Setting, Step
from tilec.backends.triton.plan.sizes import Strides, isqrt, power_of_two
from tilec.backends.triton.scan.blocks import BlockWriter
from tilec.backends.triton.scan.form import Scan, recognise_steps
from tilec.backends.triton.scan.kernel import ScanTiling, workspaces
from tilec.backends.triton.scan.lanes import LaneWriter
from tilec.cost import size_in_bytes
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Statement, walk
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types

WANTED = {
    True: 16 * TWO_A_MULTIPROCESSOR,
    False: 4 * TWO_A_MULTIPROCESSOR,
}  # programs to aim at where rows are cut, of terms that commute and of steps
SCAN_BLOCK = {True: 2048, False: 1024}  # elements of a block of such
HEAVY_COMPOSITION = 512  # of one whose composition takes exponentials; of lanes side by side, twice as many
SHORTEST = 512  # elements of a block that is made shorter so that more of them run side by side
FEW_LANES = 32  # from here on each lane is a thread's where lanes lie side by side, unless composition is heavy
UNROLLED_STEPS = 16  # steps written out for these
# bytes of a step of all rows from which on, with so many steps under way, plain terms are read once rather than twice
ENOUGH_SIDE_BY_SIDE, STEPS_AHEAD, PLAIN_TERM = 4 * 96 * PLANNED_FOR.multiprocessors, 64, 2
MOST_WRITTEN = 256  # operators in these, which take their time to compile
WARPS = 16 * PLANNED_FOR.multiprocessors  # of these to aim at where rows are cut
MOST_CHUNKS = 4096
MOST_TOTALS = {True: 3 * 2**19, False: 2**24}  # that all programs may read together: of threads' lanes, elsewhere


def choose_scan_tiling(scan: Scan, view: StridedView) -> ScanTiling:
    """Blocks as long as the rows allow where memory runs along them; elsewhere a thread a lane, or blocks as wide as
    there are lanes."""
    steps, rows, along = scan.steps, scan.rows, runs_along_steps(scan, view)
    heavy = scan.algebra.then in ("join_logs_", "then_log_")
    commutes = scan.algebra.commutes
    if not along and rows >= FEW_LANES and not heavy:
        operators = sum(isinstance(e, Call) for root in bodies(scan) for e in walk(root)) + 2
        written = max(1, min(UNROLLED_STEPS, power_of_two(MOST_WRITTEN // operators + 1) // 2))
        warps = min(4, power_of_two(rows // 32 + 1) // 2)
        programs, blocks = -(-rows // 32), -(-steps // written)
        enough = rows * size_in_bytes(replace(view.types[scan.statement.output], shape=())) >= ENOUGH_SIDE_BY_SIDE
        if scan.algebra.commutes and operators == PLAIN_TERM and enough and programs < WARPS:
            return ScanTiling(STEPS_AHEAD, 32 * warps, along, None, warps, True)
        chunks = min(-(-WARPS // programs), blocks, MOST_CHUNKS, isqrt(MOST_TOTALS[True] // rows))
        return ScanTiling(written, 32 * warps, along, None if chunks <= 1 else -(-blocks // chunks), warps, True)
    block = HEAVY_COMPOSITION if heavy else SCAN_BLOCK[commutes]
    if along:
        length = min(power_of_two(steps), block)
        lanes = min(power_of_two(rows), block // length)
    elif rows >= FEW_LANES:
        lanes, length = FEW_LANES, min(power_of_two(steps), 2 * block // FEW_LANES)
    else:
        lanes = power_of_two(rows)
        length = min(power_of_two(steps), block // lanes)
    programs = -(-rows // lanes)
    while (
        length * lanes > SHORTEST and programs * -(-steps // length) < TWO_A_MULTIPROCESSOR // 2 and steps > 2 * length
    ):
        length //= 2
    blocks = -(-steps // length)
    if programs >= TWO_A_MULTIPROCESSOR or blocks <= 2:
        return ScanTiling(length, lanes, along)
    chunks = min(-(-WANTED[commutes] // programs), blocks, MOST_CHUNKS, isqrt(MOST_TOTALS[False] // rows))
    return ScanTiling(length, lanes, along, -(-blocks // chunks))


def bodies(scan: Scan) -> tuple[Expr, ...]:
    """What a term is computed from."""
    return (
        *scan.statement.guards,
        *((scan.statement.body,) if scan.step is None else (scan.step.scale, scan.step.offset)),
    )


def runs_along_steps(scan: Scan, view: StridedView) -> bool:
    """Whether memory runs along the steps, in the tensor read that is largest, or in the output."""
    s = scan.statement
    accesses = [e for e in walk(s.body) if isinstance(e, Access) and e.tensor != s.output]
    accesses.append(Access(s.output, s.index or ()))
    largest = max(accesses, key=lambda a: view.types[a.tensor].numel)
    moves = {v: 0 for v in (*scan.lanes, scan.along)}
    for e, stride in zip(largest.index, view.strides[largest.tensor], strict=True):
        for v in moves:
            moves[v] += as_int(linear(e).coefficient(v) * stride)
    return all(not m or abs(moves[scan.along]) <= abs(m) for v, m in moves.items() if scan.space.largest(v) > 1)


def scan_steps(scan: Scan, view: StridedView, flat: Statement, epilogue: Sequence[Statement] = ()) -> list[Step]:
    """Steps that compute a scan into its allocated output, or that of its epilogue."""
    tiling = choose_scan_tiling(scan, view)
    writer = (LaneWriter if tiling.apart else BlockWriter)(scan, view, tiling, epilogue)
    chunks = 1 if tiling.tiles is None else -(-scan.steps // (tiling.tiles * tiling.steps))
    if chunks == 1:
        return [writer.apply(flat, 1)]
    totals = workspaces(scan)
    return [
        *(Allocate(name, (chunks, scan.rows), t) for name, t in zip(totals, scan.algebra.dtypes, strict=True)),
        writer.totals(flat, chunks),
        writer.apply(flat, chunks),
        Release(tuple(totals)),
    ]


def scan_of_terms(
    terms: Statement,
    kind: TensorType,
    scan: Statement,
    view: StridedView,
    flat: Statement,
    steps_of: Callable[[Statement, Statement, Types, Mapping[str, tuple[int, ...]]], list[Step]],
) -> list[Step]:
    """Steps of a scan whose terms are a statement of their own; `steps_of` carries out a statement."""
    both = view.with_tensor(terms.output, kind)
    return [
        Allocate(terms.output, kind.shape, kind.dtype),
        *steps_of(terms, terms, both.types, both.strides),
        *steps_of(scan, flat, both.types, both.strides),
        Release((terms.output,)),
    ]


def affine_recurrence(
    flat: Statement,
    types: Types,
    strides: Strides,
    setting: Setting,
    int64_index: bool,
    epilogue: Sequence[Statement] = (),
) -> list[Step] | None:
    """Steps of a recurrence many of whose steps are computed at once; None where that cannot be, or is not worth it."""
    found = None if setting.exact else recognise_steps(flat, types)
    view = StridedView(flat, types, strides, int64_index)
    if found is None or not composition_pays(found, view):
        return None
    return scan_steps(found, view, flat, epilogue)


FEWEST_STEPS = 256  # shorter recurrences are as quick step by step, in one launch
FEWEST_ALONG = 16  # but not where each lane's steps lie side by side in memory
MOST_ROWS = 8192  # so many fill the device step by step, which reads everything once


def composition_pays(scan: Scan, view: StridedView) -> bool:
    """Step by step, a lane a thread, is as quick where steps are few, and quicker where lanes are many, unless threads
    that read side by side would read far apart."""
    if scan.rows > 1 and runs_along_steps(scan, view):
        return scan.steps >= FEWEST_ALONG
    return scan.steps >= FEWEST_STEPS and scan.rows <= MOST_ROWS
