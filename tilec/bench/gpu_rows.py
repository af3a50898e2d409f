"""What is measured on a GPU, the most important first: contractions, the log semiring, what moves memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilec.bench import works, works_steps
from tilec.bench.works import COMPILED, CUDNN_PEER, EAGER, LIGER, Work
from tilec.transforms.util.broadcast import Shape

WITH_LIB, ALONE, HAND = OUR_COLUMNS = "with library", "alone", "by hand"
NORMS = (EAGER, COMPILED, LIGER)


@dataclass(frozen=True)
class Goal:
    """Least ratio to the best peer, or least share of the rate at which memory is copied, or most microseconds."""

    bound: float
    of: str = "peer"

    def __str__(self) -> str:
        return f"{self.bound:g}" + {"peer": "", "copy": " of copy", "us": " µs"}[self.of]


@dataclass(frozen=True)
class Row:
    """One piece of work at given shapes. `goals` by column. `tolerance` of a result against float64: a relative error;
    "log", what logsumexp promises; None, twice the error of torch's own kernel on the same inputs. `scales` multiply
    the normal inputs, all by 1 where left out. Rows of a `group` share a geometric mean; `mean` is its goal for what is
    ours alone."""

    name: str
    work: Work
    shapes: tuple[Shape, ...]
    dtype: str = "float32"
    precision: str = "highest"
    goals: Mapping[str, Goal] = field(default_factory=dict)
    tolerance: float | str | None = 1e-5
    peers: tuple[str, ...] = (EAGER, COMPILED)
    scales: tuple[float, ...] = ()
    group: str = ""
    mean: float | None = None


def convolution_rows(
    name: str, batch: int, size: int, channels: int, out_channels: int, setting: tuple[int, int, int, str], **row
) -> dict[str, Row]:
    """Rows for the values and both gradients of a 3x3 convolution of setting (stride, dilation, padding, stored)."""
    stride, dilation, padding, stored = setting
    out = (size + 2 * padding - 2 * dilation - 1) // stride + 1
    kernel = (3, 3, channels, out_channels) if stored == "hwio" else (out_channels, 3, 3, channels)
    shapes = (batch, size, size, channels), kernel, (batch, out, out, out_channels)
    normal = 1.0, (9 * channels) ** -0.5, 1.0
    return {
        way: Row(
            f"{name}, {way}", works.convolution_work(*setting, wrt), shapes[: 3 if wrt else 2],
            scales=normal[: 3 if wrt else 2], peers=(EAGER,), tolerance=None, **row,
        )
        for way, wrt in (("forward", ""), ("dI", "I"), ("dK", "K"))
    }  # fmt: skip


def both(library: float, alone: float) -> dict[str, Goal]:
    return {WITH_LIB: Goal(library), ALONE: Goal(alone)}


def seed() -> list[Row]:
    rows = []
    for dtype, precision, gain in (("float16", "highest", 5), ("float32", "high", 8)):
        kind = "tf32" if precision == "high" else dtype
        name = f"seed convolution 32x57x57x128, stride 3, dilation 2, {kind}"
        ways = convolution_rows(name, 32, 57, 128, 128, (3, 2, 0, "hwio"), dtype=dtype, precision=precision)
        rows += [replace(ways["dI"], goals=both(gain, gain)), replace(ways["forward"], goals=both(1, 1))]
    return rows


CONVOLUTION_LAYERS = ((128, 256, 28, 256), (32, 128, 56, 128), (64, 512, 7, 512), (32, 64, 56, 64), (32, 256, 14, 256))
STRIDED = ((32, 128, 56, 128), (32, 256, 28, 256), (32, 512, 14, 512))


def resnet(dtype: str, layers: tuple[Shape, ...], stride: int) -> list[Row]:
    """The 3x3 layers of ResNet-50, (batch, channels, size, channels out), one way after the other."""
    label = "ResNet 3x3" + (f" stride {stride}" if stride > 1 else "")
    made = [
        convolution_rows(f"{label} {n}x{h}x{h}x{c}, {dtype}", n, h, c, d, (stride, 1, 1, "ohwi"), dtype=dtype)
        for n, c, h, d in layers
    ]
    return [
        replace(
            ways[way], goals={WITH_LIB: Goal(1)}, group=f"{label}, {dtype}, {way}", mean=1.05 if way == "forward" else 1
        )
        for way in ("forward", "dI", "dK")
        for ways in made
    ]


def matmul_row(size: int, dtype: str, precision: str, tolerance: float | None) -> Row:
    kind = {"high": "tf32", "highest": dtype}[precision]
    return Row(
        f"matmul {size}, {kind}", works.MATMUL, ((size, size), (size, size)), dtype, precision, both(1, 1), tolerance,
        (EAGER,), (1.0, size**-0.5),
    )  # fmt: skip


def exotic(dtype: str) -> list[Row]:
    """Convolutions that no library has; 16-bit ones within twice the error of the torch formula."""
    kernel = (3, 3, 64, 64)
    tolerance = 1e-5 if dtype == "float32" else None

    def row(name: str, work: Work, *shapes: Shape, least: float = 5) -> Row:
        scales = tuple(0.05 if i == len(shapes) - 1 else 1.0 for i in range(len(shapes)))
        goals = {ALONE: Goal(least), WITH_LIB: Goal(least)}
        return Row(f"{name}, {dtype}", work, shapes, dtype, goals=goals, tolerance=tolerance, scales=scales)

    return [
        row("convolution with the sine of the kernel", works.SINE_OF_KERNEL, (16, 66, 66, 64), (5, 5, 64, 64)),
        row("masked convolution", works.MASKED, (16, 58, 58), (16, 58, 58, 64), kernel),
        row("convolution, stride mixed over two dimensions", works.SHEARED, (16, 122, 64, 64), kernel),
        row("convolution over 4 spatial dimensions", works.FOUR_DIMENSIONS, (4, *(14,) * 4, 16), (3, 3, 3, 3, 16, 32)),
        row("max-plus convolution", works.MAX_PLUS, (4, 58, 58, 32), (3, 3, 32, 32)),
        row("sine of each product of a convolution", works.SINE_OF_PRODUCT, (4, 62, 62, 16), (3, 3, 16, 32)),
    ]


def logs() -> list[Row]:
    four, wide = ((4, 512, 512),) * 2, (3.0, 3.0)
    batched = works.BATCHED_LOG_PRODUCT
    goals = {ALONE: Goal(18), WITH_LIB: Goal(18)}
    return [
        Row("log convolution 8x2048x64", works.LOG_CONVOLUTION, ((8, 2048, 64), (5, 64, 64)), tolerance="log",
            goals=both(5, 5), scales=wide),
        Row("log product 4x512^3, forward", batched, four, tolerance="log", goals=goals, scales=wide),
        Row("log product 4x512^3, backward", replace(batched, wrt=("A", "B")), (*four, (4, 512, 512)),
            goals=both(15, 15), scales=(*wide, 1.0)),
        # in eager mode the sum of all pairs, and its exponentials, would take 70 GB
        Row("log product 2048^3, forward", works.LOG_PRODUCT_WORK, ((2048, 2048),) * 2, tolerance="log", scales=wide,
            peers=(COMPILED,)),
    ]  # fmt: skip


def attentions() -> list[Row]:
    """Attention in three lines, against torch's with the kernel that it chooses and with cuDNN's. Of a window torch has
    a dense mask alone."""
    rows = []
    kinds = {
        "full": works.ATTENTION,
        "causal": works.CAUSAL_ATTENTION,
        "window of 256": works.WINDOWED_ATTENTION,
        "window of 256, ALiBi": works.ALIBI_ATTENTION,
    }
    for kind, work in kinds.items():
        for heads, rows_of_it, width in ((64, 2048, 64), (32, 8192, 128)):
            if "window" in kind and width == 128:
                continue
            shape = heads, rows_of_it, width
            given = (shape,) * 3 + (((heads,),) if "ALiBi" in kind else ())
            scales = (1.0,) * 3 + ((0.1,) if "ALiBi" in kind else ())
            peers = (EAGER,) if "window" in kind else (EAGER, CUDNN_PEER)
            name = f"attention {heads}x{rows_of_it}x{width} bfloat16, {kind}"
            rows += [
                Row(f"{name}, forward", work, given, "bfloat16", tolerance=None, goals=both(1, 1), peers=peers,
                    scales=scales),
                Row(f"{name}, backward", replace(work, wrt=("Q", "K", "V")), (*given, shape), "bfloat16",
                    tolerance=None, goals=both(0.95, 0.95), peers=peers, scales=(*scales, 1.0)),
            ]  # fmt: skip
    return rows


def streaming() -> list[Row]:
    """What moves memory: shares of the rate of a copy, and ratios."""

    def share(least: float) -> dict[str, Goal]:
        return {ALONE: Goal(least, "copy"), WITH_LIB: Goal(least, "copy")}

    snake = (16, 512, 8192), (512,)
    rows = [
        Row("snake 16x512x8192, forward", works.SNAKE, snake, goals=share(0.97)),
        Row("snake 16x512x8192, backward", replace(works.SNAKE, wrt=("X", "A")), (*snake, snake[0]), goals=share(0.92)),
    ]
    for shape, goals in (((4096, 8192), (0.9, 0.85)), ((4096, 1024), None), ((16384, 4096), None)):
        name = f"layer norm {shape[0]}x{shape[1]} bfloat16"
        given = shape, shape[1:], shape[1:]
        forward, backward = map(share, goals) if goals else (both(1, 1), both(1, 1))
        work = works.LAYER_NORM
        rows += [
            Row(f"{name}, forward", work, given, "bfloat16", tolerance=None, goals=forward, peers=NORMS),
            Row(f"{name}, backward", replace(work, wrt=("X", "G", "B")), (*given, shape), "bfloat16", tolerance=None,
                goals=backward, peers=NORMS),
        ]  # fmt: skip
    for shape, dtype in (((16384, 1000), "float32"), ((16384, 1023), "bfloat16"), ((4096, 50257), "bfloat16"),
                         ((1, 8192), "float32"), ((1048576, 64), "float32")):  # fmt: skip
        given = shape, shape[1:], shape[1:]
        name, tolerance = f"layer norm {shape[0]}x{shape[1]} {dtype}", None
        rows += [
            Row(f"{name}, forward", works.LAYER_NORM, given, dtype, tolerance=tolerance, goals=both(1, 1), peers=NORMS),
            Row(f"{name}, backward", replace(works.LAYER_NORM, wrt=("X", "G", "B")), (*given, shape), dtype,
                tolerance=tolerance, goals=both(1, 1), peers=NORMS),
        ]  # fmt: skip
    wide, vocabulary = (8192, 8192), (4096, 50257)
    rows += [
        Row("softmax 4096x50257, forward", works.SOFTMAX, (vocabulary,), tolerance=None),
        Row("softmax 4096x50257, backward", replace(works.SOFTMAX, wrt=("X",)), (vocabulary,) * 2, tolerance=None),
        Row("gelu gate 8192x8192 bfloat16, backward", replace(works.GATE, wrt=("X", "U")), (wide,) * 3, "bfloat16",
            tolerance=None),
    ]  # fmt: skip
    return rows + [
        Row("softmax 8192x8192 bfloat16, forward", works.SOFTMAX, (wide,), "bfloat16", tolerance=None),
        Row("gelu gate 8192x8192 bfloat16, forward", works.GATE, (wide, wide), "bfloat16", tolerance=None),
        Row("sums of rows 8192x8192", works.ROW_SUMS, (wide,)),
        Row("sums of columns 8192x8192", works.COLUMN_SUMS, (wide,)),
    ]


def steps() -> list[Row]:
    """Recurrences, scans and draws. A recurrence's gradient is to take twice the goal of its values."""

    def most(us: float) -> dict[str, Goal]:
        return {ALONE: Goal(us, "us")}

    rows = []
    loop = (EAGER,)
    for batch, scan, ordered in ((1, 25, 80), (32, 90, 120)):
        shapes = (batch, 2000, 512), (batch, 512)
        name = f"shuffling network {batch}x2000x512"
        in_order = works_steps.SHUFFLING_IN_ORDER
        rows += [
            Row(f"{name}, in its own order, forward", in_order, shapes, peers=loop, goals=most(ordered)),
            Row(f"{name}, in its own order, backward", replace(in_order, wrt=("B", "H0")), (*shapes, shapes[0]),
                peers=loop, goals=most(2 * ordered)),
            Row(f"{name}, as a scan, forward", works_steps.SHUFFLING, shapes, peers=loop, goals=most(scan)),
        ]  # fmt: skip
    hidden = (256, 256), (512, 64, 256), (64, 256)
    wide, tall, line = (16384, 4096), (4096, 16384), (65536, 64)
    return [
        *rows,
        Row("hidden Markov model 64x512 steps x256, forward", works_steps.HIDDEN_STATES, hidden, peers=loop),
        Row("tanh network 32x512 steps x512, forward", works_steps.TANH, ((512, 512), (512, 32, 512)), peers=loop,
            scales=(512**-0.5, 1.0)),
        # a loop of 65,536 steps takes torch half a second, and no library has it
        Row("linear scan, 65536 steps, 64 lanes, forward", works_steps.LINEAR_WORK, (line, line), peers=(),
            scales=(0.5, 1.0)),
        Row("cumulative sum of rows 16384x4096", works_steps.RUNNING_SUM, (wide,)),
        Row("cumulative sum of columns 4096x16384", works_steps.SUM_DOWN, (tall,)),
        Row("cumulative logsumexp 16384x4096", works_steps.RUNNING_LOG, (wide,), peers=(EAGER,), tolerance="log"),
        # each draws another mask, so that values are held against nothing here
        Row("dropout 64 Mi, forward", works_steps.DROPOUT, ((2**26,),), tolerance=float("inf"),
            goals={ALONE: Goal(0.95, "copy")}),
    ]  # fmt: skip


ROWS: tuple[Row, ...] = (
    *seed(),
    *resnet("bfloat16", CONVOLUTION_LAYERS, 1),
    matmul_row(8192, "bfloat16", "highest", None),
    matmul_row(4096, "float32", "high", None),
    matmul_row(4096, "float32", "highest", 1e-5),
    *exotic("float16"),
    *resnet("bfloat16", STRIDED, 2),
    *exotic("float32"),
    *logs(),
    *attentions(),
    *streaming(),
    *steps(),
    *resnet("float16", CONVOLUTION_LAYERS, 1),
    *resnet("float16", STRIDED, 2),
)
