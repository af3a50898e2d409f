"""Operations beside a call under torch.compile: they become statements of its program, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape

import tilec
from tests.support.tiers import slow_but
from tests.support.torch_programs import EXAMPLES, compiled
from tilec.language import show
from tilec.torch_op.graphs.casts import TakeCasts
from tilec.torch_op.neighbours import FuseNeighbours
from tilec.torch_op.text import function_of

PRODUCT = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j] = sum(A[i, k] * B[k, j]); }")
NORM = tilec.compile(EXAMPLES["layer norm"].source)


class Graphs(list):
    """A backend of torch.compile that keeps the graphs after the pass, and runs them operation by operation."""

    def __init__(self, fused: bool = True):
        def compiler(module, inputs):
            view_to_reshape(module)  # as Inductor does
            if fused:
                FuseNeighbours(("cpu",))(module.graph)
            module.graph.lint()
            module.recompile()
            self.append(module.graph)
            return make_boxed_func(module)

        def partition(module, inputs, **how):
            if fused:
                TakeCasts(("cpu",))(module.graph)
            return min_cut_rematerialization_partition(module, inputs, **how)

        how = {"decompositions": select_decomp_table(), "partition_fn": partition}
        self.backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **how)

    def left(self, graph: int = 0) -> list[str]:
        """What is not a call of Tile."""
        nodes = [n for n in self[graph].nodes if n.op == "call_function"]
        return [str(n.target) for n in nodes if "tilec" not in str(n.target) and "getitem" not in str(n.target)]

    def programs(self, graph: int = 0):
        return [function_of(n.args[0]) for n in self[graph].nodes if "tilec.call" in str(n.target)]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mlp(a, b, bias):
    return F.gelu(PRODUCT(a, b) + bias)


def residual(x, w, b):
    return NORM(torch.relu(x) + 1, w, b) * 0.5 + x


def gated(a, b, g):
    y = PRODUCT(a * torch.sigmoid(a), b)
    return torch.where(g > 0, y, 0.01 * y), y.clamp(-1, 1)


def chained(a, b, c):
    return PRODUCT(F.silu(PRODUCT(a, b)) * 2, c).tanh()


CASES = {
    "mlp": (mlp, ((6, 5), (5, 7), (7,))),
    "residual": (residual, ((6, 5), (5,), (5,))),
    "gated": (gated, ((6, 5), (5, 7), (6, 7))),
    "chained": (chained, ((6, 5), (5, 7), (7, 3))),
}


def given(shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def total(y):
    return sum((t.double() * t.double()).sum() for t in (y if isinstance(y, tuple) else (y,)))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
def test_all_is_taken(name: str, dynamic: bool) -> None:
    f, shapes = CASES[name]
    graphs, inputs = Graphs(), [t.detach() for t in given(shapes)]
    whole = torch.compile(f, backend=graphs.backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(whole(*inputs), f(*inputs))
    assert not graphs.left() and len(graphs) == 1
    if dynamic:
        rows = [torch.cat([inputs[0], inputs[0]]), *inputs[1:]]
        rows[2] = torch.cat([rows[2], rows[2]]) if name == "gated" else rows[2]
        torch.testing.assert_close(whole(*rows), f(*rows))
        assert len(graphs) == 1, "one graph serves all sizes"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(8)
def test_gradients(name: str, dynamic: bool) -> None:
    """Numbers, and how many operations are left of those that torch has beside the calls, forward and backward."""
    f, shapes = CASES[name]
    inputs = given(shapes)
    counts = {}
    for fused in (True, False):
        torch._dynamo.reset()
        graphs = Graphs(fused)
        y = torch.compile(f, backend=graphs.backend, fullgraph=True, dynamic=dynamic)(*inputs)
        torch.testing.assert_close(y, f(*inputs))
        found = torch.autograd.grad(total(y), inputs, allow_unused=True)
        for ours, theirs in zip(found, torch.autograd.grad(total(f(*inputs)), inputs, allow_unused=True), strict=True):
            torch.testing.assert_close(ours, theirs)
        counts[fused] = [len([t for t in graphs.left(k) if "sym_size" not in t]) for k in (0, 1)]
    assert sum(counts[True]) < sum(counts[False]), counts
    assert name == "mlp" or counts[True][1] < counts[False][1], "a sum reads what the gradient's call reads, too"


def test_the_product_itself_is_stored_no_more() -> None:
    graphs, inputs = Graphs(), [t.detach() for t in given(((6, 5), (5, 7), (7,)))]
    torch.compile(mlp, backend=graphs.backend)(*inputs)
    (program,) = graphs.programs()
    assert len(program.outputs) == 1


KERNELS = {
    "product": (mlp, ((512, 256), (256, 384), (384,)), torch.float32),
    "norm": (residual, ((512, 256), (256,), (256,)), torch.float32),
    "norm of 16 bits": (residual, ((512, 256), (256,), (256,)), torch.bfloat16),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    """The fused program has one kernel, as the call alone has."""
    f, shapes, dtype = KERNELS[name]
    graphs = Graphs()
    inputs = [t.detach() for t in given(shapes, dtype)]
    torch.compile(f, backend=graphs.backend)(*inputs)
    (call,) = [n for n in graphs[0].nodes if "tilec.call" in str(n.target)]
    values = [n.meta["val"] for n in call.args[1]]
    specs = [tilec.spec(tuple(v.shape), v.dtype) for v in values]
    fused = tilec.Function.of(function_of(call.args[0])).lower(*specs, backend="triton", target="sm_90")
    assert not graphs.left() and len(fused.kernels) == 1, fused.source()


def test_what_stays() -> None:
    """Reductions, views, in place operations on inputs, other devices and what changes the shape."""
    graphs = Graphs()
    a, b, _ = (t.detach() for t in given(((6, 5), (5, 7), (7,))))

    def f(a, b):
        y = PRODUCT(a, b)
        return y.sum(0), y.T + 1, y[None] * torch.ones(2, 6, 7, dtype=y.dtype), torch.cumsum(y, 0)

    torch.testing.assert_close(torch.compile(f, backend=graphs.backend)(a, b), f(a, b))
    (program,) = graphs.programs()
    assert program.program == PRODUCT._specialiser.program


def test_what_torch_types_otherwise_stays() -> None:
    graphs = Graphs()
    a, b = (t.detach().float() for t in given(((6, 5), (5, 7))))
    scale = torch.tensor(2.0, dtype=torch.float64)

    def f(a, b):
        return PRODUCT(a, b) * scale + 1

    y = torch.compile(f, backend=graphs.backend)(a, b)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, f(a, b))


def test_powers_are_torchs() -> None:
    """A root of -inf is NaN, which the power of Tile, and of two tensors, is not."""
    graphs, x = Graphs(), torch.tensor([[-torch.inf, 4.0], [0.0, torch.inf]])
    copied = tilec.compile("function (X[N, D]) -> (Y) { Y[i, j : N, D] = X[i, j]; }")

    def f(x):
        y = copied(x)
        return y**0.5, y**-0.5, y**2

    torch.testing.assert_close(torch.compile(f, backend=graphs.backend)(x), f(x), equal_nan=True)
    text = show(graphs.programs()[0].program)
    assert " sqrt(" in text and " rsqrt(" in text, text


def test_the_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_FUSE_NEIGHBOURS", "0")
    graphs, inputs = Graphs(), [t.detach() for t in given(((6, 5), (5, 7), (7,)))]
    torch.testing.assert_close(torch.compile(mlp, backend=graphs.backend)(*inputs), mlp(*inputs))
    assert graphs.left()


def test_inductor_runs_it() -> None:
    assert isinstance(config.post_grad_custom_pre_pass, FuseNeighbours)
    seen = []
    whole = FuseNeighbours(("cpu",), before=None)

    class Kept(FuseNeighbours):
        def __call__(self, graph):
            whole(graph)
            seen.append([str(n.target) for n in graph.nodes if n.op == "call_function"])

    inputs = [t.detach() for t in given(((6, 5), (5, 7), (7,)))]
    with config.patch(post_grad_custom_pre_pass=Kept(), fx_graph_cache=False):
        torch.testing.assert_close(torch.compile(mlp)(*inputs), mlp(*inputs))
    (targets,) = seen
    assert len(targets) == 2, "a call and its output"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "softmax" else pytest.mark.slow) for n in EXAMPLES])
def test_beside_every_example(name: str) -> None:
    example, f, graphs = EXAMPLES[name], compiled(name), Graphs()
    inputs = [t.requires_grad_() for t in example.inputs()]

    def beside(f):
        return lambda *x: F.relu(f(*[torch.sin(t) * 2 for t in x])) + 0.5

    y = torch.compile(beside(f), backend=graphs.backend, fullgraph=True)(*inputs)
    found = [y, *torch.autograd.grad(total(y), inputs)]
    y = beside(example.torch)(*inputs)
    for ours, theirs in zip(found, [y, *torch.autograd.grad(total(y), inputs)], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not [t for t in graphs.left() if "relu" in t], "what follows the call is part of it"


def reshaped(x, w, b):
    rows = torch.relu(x + 1).reshape(-1, 5)
    y = NORM(rows, w, b).reshape(x.shape)
    return y.to(torch.float32) * 2, y.to(torch.float32) + x


def test_views_trade_places() -> None:
    """The operations on both sides are taken, each once, and nothing but views is left."""
    graphs, inputs = Graphs(), [t.detach() for t in given(((2, 3, 5), (5,), (5,)))]
    torch.testing.assert_close(
        torch.compile(reshaped, backend=graphs.backend, fullgraph=True)(*inputs), reshaped(*inputs)
    )
    assert set(graphs.left()) == {"aten.reshape.default"}
    (program,) = graphs.programs()
    assert len(program.outputs) == 2 and show(program.program).count("relu") == 1


def test_views_that_stay() -> None:
    """Of what is not contiguous, or has another shape."""

    def f(x, w, b, other):
        y = NORM(x, w, b).reshape(2, 3, 5)
        return y + other.transpose(0, 1), y * other[0, 0, 0], NORM((x * other.sum((0, 1))).reshape(6, 5), w, b)

    graphs, inputs = Graphs(), [t.detach() for t in given(((6, 5), (5,), (5,), (3, 2, 5)))]
    torch.testing.assert_close(torch.compile(f, backend=graphs.backend, fullgraph=True)(*inputs), f(*inputs))
    assert "aten.add.Tensor" in graphs.left()


LOSS = tilec.compile("""
function (X[R, V], T[R]) -> (Y) {
    L[r : R] = logsumexp(X[r, v]);
    P[r : R] = +(X[r, T[r]]);
    Y[] = +(L[r] - P[r]);
}""")


def test_what_is_widened_is_kept_in_16_bits() -> None:
    """The cast that a loss and its gradient read is part of both."""
    f = lambda x, w, t: LOSS((x @ w).float(), t)  # noqa: E731
    graphs = Graphs()
    given = [torch.randn(6, 4).bfloat16(), torch.randn(4, 9).bfloat16().requires_grad_(), torch.arange(6)]
    y = torch.compile(f, backend=graphs.backend, fullgraph=True)(*given)
    expected = f(*given)
    torch.testing.assert_close(y, expected)
    for a, b in zip(*(torch.autograd.grad(z, given[1:2]) for z in (y, expected)), strict=True):
        torch.testing.assert_close(a, b)
    assert not [t for t in graphs.left() if "convert" in t]
    assert not [t for t in graphs.left(1) if "convert" in t]
    assert all("float32(X[" in show(p.program) for k in (0, 1) for p in graphs.programs(k))


def test_casts_that_stay() -> None:
    """Those of a product of matrices."""
    graphs = Graphs()
    f = lambda a, b: PRODUCT(torch.sin(a).float(), b) + F.softmax(b, 1)  # noqa: E731
    a, b = torch.randn(6, 6).bfloat16(), torch.randn(6, 6, requires_grad=True)
    torch.compile(f, backend=graphs.backend, fullgraph=True)(a, b).sum().backward()
    assert all("float32(A[" not in show(p.program) for k in (0, 1) for p in graphs.programs(k))


def test_what_would_lie_otherwise_stays():
    """A sum lies as its first operand, which is row-major; a call's result of both would lie channels last."""
    f = tilec.compile("function (X[N, C, H, W]) -> (Y) { Y[n, c, y, x : N, C, H, W] = X[n, c, y, x] * c; }")
    x, z = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5)
    for operation, left in ((lambda x, z: z + f(x), ["aten.add.Tensor"]), (lambda x, z: f(x).exp(), [])):
        graphs = Graphs()
        found, wanted = torch.compile(operation, fullgraph=True, backend=graphs.backend)(x, z), operation(x, z)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()
        assert graphs.left() == left


def stacked(x, w, b, m):
    """Residual connections around norms of rows, as transformers have them: each sum is read twice."""
    for _ in range(2):
        x = x + 0.5 * torch.sin(NORM(x.reshape(-1, x.shape[-1]), w, b).reshape(x.shape) @ m)
    return x, NORM(x.reshape(-1, x.shape[-1]), w, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 5), (7, 1, 3)])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_what_others_read_too_is_an_output(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    graphs, inputs = Graphs(), given((shape, shape[-1:], shape[-1:], 2 * shape[-1:]), dtype)
    found = torch.compile(stacked, backend=graphs.backend, fullgraph=True)(*inputs)
    expected = stacked(*inputs)
    bounds = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **bounds)
    gradients = (torch.autograd.grad(total(y), inputs) for y in (found, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, **{k: 4 * v for k, v in bounds.items()})
    assert not [t for t in graphs.left() if "add" in t or "sin" in t]
    sums = [p for p in graphs.programs() if len(p.outputs) > 1 and "X = " in show(p.program)]
    assert len(sums) == 2, "the sum is stored by the call that it is made for"


def test_what_is_read_before_the_call_stays() -> None:
    """And so does what a product of matrices reads, and what is not of an input's shape."""

    def f(x, w, b):
        h = torch.sin(x)
        y = NORM(h * h.sum(), w, b)
        return y + h, PRODUCT(torch.relu(x), x.T) + torch.relu(x).sum()

    graphs, inputs = Graphs(), [t.detach() for t in given(((6, 5), (5,), (5,)))]
    found = torch.compile(f, backend=graphs.backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(found, f(*inputs))
    assert "aten.sin.default" in graphs.left() and "aten.relu.default" in graphs.left()


HEADS = tilec.compile("""
function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F]) -> (O) {
    S[b, h, i, j : B, H, N, M] = sum(Q[b, h, i, e] * K[b, h, j, e]);
    L[b, h, i : B, H, N] = logsumexp(i - j >= 0 ? S[b, h, i, j]);
    O[b, h, i, f : B, H, N, F] = sum(i - j >= 0 ? exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
}""")


def heads(x, w):
    b, n, c = x.shape
    q, k, v = (t.view(b, n, 2, c // 2).transpose(1, 2) for t in (x @ w).chunk(3, -1))
    return HEADS(q, k, v).transpose(1, 2).reshape(b, n, c)


@pytest.mark.parametrize("dynamic", slow_but((False, True), (False,)))
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 5, 4), (3, 1, 6)])
@pytest.mark.one_in(2)
def test_gradients_of_heads_are_written_as_they_are_joined(shape: tuple[int, ...], dynamic: bool) -> None:
    graphs, inputs = Graphs(), given((shape, (shape[-1], 3 * shape[-1])))
    found = torch.compile(heads, backend=graphs.backend, fullgraph=True, dynamic=dynamic)(*inputs)
    torch.testing.assert_close(found, heads(*inputs))
    for a, b in zip(*(torch.autograd.grad(total(y), inputs) for y in (found, heads(*inputs))), strict=True):
        torch.testing.assert_close(a, b)
    if shape[1] > 1 and not dynamic:
        after = graphs.left(1)
        assert not any(
            "permute" in t for t in after[after.index("aten.clone.default") : after.index("aten.cat.default")]
        )


def test_orders_that_stay() -> None:
    """Of outputs that are read as they are too, that are permuted but not copied, and whose innermost axis moves."""
    f = tilec.compile("function (X[N, D, E]) -> (Y) { Y[n, d, e : N, D, E] = 2 * X[n, d, e]; }")
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    ways = {
        lambda x: (lambda y: (y.transpose(0, 1).contiguous(), y.sum(0)))(f(x)): 1,
        lambda x: f(x).transpose(0, 1): 1,
        lambda x: f(x).transpose(1, 2).contiguous(): 1,
        lambda x: f(x).transpose(0, 1).contiguous(): 0,
        lambda x: f(x).transpose(0, 1).reshape(4, 15).cos(): 0,
    }
    for way, permuted in ways.items():
        graphs = Graphs()
        torch.testing.assert_close(torch.compile(way, backend=graphs.backend, fullgraph=True)(x), way(x))
        assert sum("permute" in t for t in graphs.left()) >= permuted, graphs.left()
        assert permuted or not any("permute" in t for t in graphs.left()), graphs.left()
