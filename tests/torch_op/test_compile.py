"""Calls that torch compiles, exports or only looks at: fullgraph, in training, over many sizes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import func
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tilec
from tests.support.tiers import slow_but
from tests.support.torch_programs import EXAMPLES, compiled
from tests.torch_op.test_neighbours import Graphs
from tests.torch_op.test_transforms import TRANSFORMS, batch, every, flat, loss, sampled, tangents


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_whole(f, **how):
    return torch.compile(f, fullgraph=True, backend="aot_eager", **how)


def trained(f, inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(f(*inputs).square().sum(), inputs)


def exported(f, inputs):
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return f(*inputs)

    return torch.export.export(Module(), tuple(inputs)).module()


def sizes(f, reference, example, device, **how):
    whole = compiled_whole(lambda *x: 2 * f(*x), **how)
    given = [example.inputs(device=device, more=more) for more in (0, 1, 3)]
    return [trained(whole, x) for x in given], [trained(lambda *x: 2 * reference(*x), x) for x in given]


def exported_tangents(f, reference, inputs):
    try:
        module = exported(lambda *x: func.jvp(f, x, tangents(x)), inputs)
    except AssertionError as error:
        with pytest.raises(type(error)):  # before torch 2.13
            exported(lambda *x: func.jvp(reference, x, tangents(x)), inputs)
        pytest.skip(f"torch does not export its own: {error}")
    return module(*inputs), func.jvp(reference, tuple(inputs), tangents(inputs))


WAYS = {
    "forward": lambda f, r, e, x: (compiled_whole(lambda *x: f(*x) + 1)(*x), r(*x) + 1),
    "backward": lambda f, r, e, x: (trained(compiled_whole(lambda *x: 2 * f(*x)), x), trained(lambda *x: 2 * r(*x), x)),
    "new sizes": lambda f, r, e, x: sizes(f, r, e, x[0].device),
    "dynamic": lambda f, r, e, x: sizes(f, r, e, x[0].device, dynamic=True),
    "func.grad": lambda f, r, e, x: (
        compiled_whole(lambda *x: func.grad(loss(f), every(x))(*x))(*x),
        func.grad(loss(r), every(x))(*x),
    ),
    "func.grad after a call": lambda f, r, e, x: (
        f(*x),
        compiled_whole(lambda *x: func.grad(loss(f))(*x))(*x),
    )[1:] + (func.grad(loss(r))(*x),),
    "vmap": lambda f, r, e, x: (compiled_whole(lambda *x: func.vmap(f)(*x))(*batch(x)), func.vmap(r)(*batch(x))),
    "jvp": lambda f, r, e, x: (
        compiled_whole(lambda *x: func.jvp(f, x, tangents(x)))(*x),
        func.jvp(r, tuple(x), tangents(x)),
    ),
    "jacrev": lambda f, r, e, x: (compiled_whole(lambda *x: func.jacrev(f)(*x))(*x), func.jacrev(r)(*x)),
    "export": lambda f, r, e, x: (exported(f, x)(*x), r(*x)),
    "training of what is exported": lambda f, r, e, x: (trained(exported(f, x), x), trained(r, x)),
    "func.grad of what is exported": lambda f, r, e, x: (func.grad(loss(exported(f, x)))(*x), func.grad(loss(r))(*x)),
    "export of vmap": lambda f, r, e, x: (exported(func.vmap(f), batch(x))(*batch(x)), func.vmap(r)(*batch(x))),
    "export of jvp": lambda f, r, e, x: exported_tangents(f, r, x),
    "make_fx of a gradient": lambda f, r, e, x: (
        make_fx(lambda *x: func.grad(loss(f))(*x))(*x)(*x),
        func.grad(loss(r))(*x),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), list(sampled(EXAMPLES, WAYS, 7)))
@pytest.mark.one_in(7)
def test_as_torch_does(name: str, way: str) -> None:
    example = EXAMPLES[name]
    found, expected = WAYS[way](compiled(name), example.torch, example, example.inputs())
    for ours, theirs in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_a_trace_before_dispatch() -> None:
    """Transforms under such a trace, which torch.export makes, leave calls in the graph and no results."""
    f, x = compiled("softmax"), EXAMPLES["softmax"].inputs()
    graph = make_fx(lambda x: torch.func.grad(loss(f))(x), pre_dispatch=True)(*x).graph
    assert sum(n.target is torch.ops.tilec.call.default for n in graph.nodes) == 2


def test_one_graph_for_sizes_of_a_class() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    softmax = compiled("softmax")
    whole = torch.compile(lambda x: softmax(x) + 1, dynamic=True, fullgraph=True, backend=counter)
    for n in range(2, 30):
        x = torch.randn(n, n + 1)
        torch.testing.assert_close(whole(x), torch.softmax(x, -1) + 1)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_fake_and_meta(name: str) -> None:
    """Shapes, types and devices without data, gradients included."""
    inputs = EXAMPLES[name].inputs(torch.float32)
    expected = EXAMPLES[name].torch(*inputs)
    if not EXAMPLES[name].integers:  # whose data stay where they are
        y = compiled(name)(*[t.to("meta").requires_grad_() for t in inputs])
        assert (y.shape, y.dtype, y.device.type) == (expected.shape, expected.dtype, "meta")
        y.sum().backward()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [mode.from_tensor(t).requires_grad_() for t in inputs]
        y = compiled(name)(*given)
        assert (y.shape, y.dtype, y.stride()) == (expected.shape, expected.dtype, y.contiguous().stride())
        assert [g.shape for g in torch.autograd.grad(y.sum(), given)] == [t.shape for t in inputs]


def test_sizes_that_are_numbers() -> None:
    f = tilec.compile("function (X[N], K[]) -> (Y) { Y[i, k : N, K] = X[i] * k; }")
    whole = compiled_whole(lambda x, k: f(x, k) + 1)
    x = torch.randn(3)
    for k in (2, 3, 5):
        torch.testing.assert_close(whole(x, k), x[:, None] * torch.arange(k) + 1)
    with FakeTensorMode() as mode, pytest.raises(tilec.InputMistake, match="pass an int for K"):
        f(mode.from_tensor(x), mode.from_tensor(torch.tensor(3)))


@pytest.mark.parametrize(
    ("source", "theirs"),
    [
        ("Y = 2 * X + S;", lambda x, s: 2 * x + s),
        ("Y = X * S;", lambda x, s: x * s),
        (
            "function (X[N, M], S[M]) -> (Y) { Y[i, j : N, M] = +(X[k, j] * S[j]), i - k < N; }",
            lambda x, s: x.cumsum(0) * s,
        ),
        ("function (X[N, M], S[M]) -> (Y) { Z = X + S; Y = reshape(Z, N, M); }", lambda x, s: x + s),
    ],
)
@pytest.mark.one_in(3)
def test_what_no_gradient_reads_may_change_with_open_sizes(source: str, theirs) -> None:
    f = tilec.compile(source)

    def residual(function):
        def call(x, s):
            h = torch.sin(x)
            h += function(h, s)
            return h

        return call

    whole = compiled_whole(residual(f), dynamic=True)
    for rows in (5, 6):
        x, s = torch.linspace(-1, 2, 4 * rows).view(rows, 4), torch.linspace(1, 2, 4)
        for given in ([x], [x, s]):
            leaves = [t.clone().requires_grad_() for t in given]
            if len(leaves) == 2 and "*" in source and "2 *" not in source:  # the gradient by S reads X
                continue
            every = (*leaves, s)[:2]
            found, wanted = (torch.autograd.grad(h(*every).square().sum(), leaves) for h in (whole, residual(theirs)))
            torch.testing.assert_close(found, wanted)


def test_a_number_may_change() -> None:
    f = tilec.compile("Y = X * S;")
    whole = compiled_whole(lambda x, s: f(x, s))
    for s in (2.0, 3.0, 4.5):
        torch.testing.assert_close(whole(torch.ones(3), s), torch.full((3,), s))


def test_a_number_stays_open() -> None:
    """One graph serves all that are finite, and zeros keep their sign: a guard on a value takes them for equal."""
    f, counter, x = (
        tilec.compile("Y = X * S;"),
        CompileCounterWithBackend("aot_eager"),
        torch.ones(3, requires_grad=True),
    )
    whole = torch.compile(lambda x, s: f(x, s), backend=counter, fullgraph=True, dynamic=True)
    for s in (2.0, 3.0, 0.0, -0.0, 1e-30, 4.5):
        y = whole(x, s)
        assert torch.equal(y, x * s) and torch.equal(torch.signbit(y), torch.signbit(x * s))
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), s))
    assert counter.frame_count == 1


def test_functions_of_one_text() -> None:
    """What has run for a graph runs again, though another function of this text is gone: a capture must not compile."""
    from tilec.torch_op.text import function_of, text_of

    earlier, f = (tilec.compile("Y = 3 * X + 17")._specialiser for _ in range(2))
    assert text_of(earlier) == text_of(f)
    text, run = text_of(f), weakref.ref(function_of(text_of(f)))
    del earlier
    gc.collect()
    assert run() is not None and function_of(text) is run()
    del f
    gc.collect()
    assert run() is None


def test_a_function_of_another_process() -> None:
    """An exported graph holds its programs."""
    from tilec.torch_op.text import _functions, _made, function_of, text_of

    f = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])").grad("A")
    text = text_of(f._specialiser)
    assert function_of(text) is f._specialiser
    _functions.pop(text), _made.pop(text, None)
    other = function_of(text)
    assert other is not f._specialiser and other.program == f.program


def test_in_place_on_an_output() -> None:
    i, k = (t.requires_grad_() for t in EXAMPLES["convolution"].inputs())
    y = compiled("convolution")(i, k)
    y += 1
    found = torch.autograd.grad(torch.nn.functional.relu_(y).sum(), i)[0]
    expected = torch.autograd.grad(torch.relu(EXAMPLES["convolution"].torch(i, k) + 1).sum(), i)[0]
    torch.testing.assert_close(found, expected)


SIZES = (
    *("(N - 3)/2", "((N == 3) == (N == 4)) + 1", "(N > 4 ? N : 3) - 7/N", "~max(N > 3, N > 5) + 2"),
    *("(N - 9)/2 + 4", "~N + 12", "N == 4", "(N > 3) + (N > 5)", "max(N > 3, N - 5)"),
)


@pytest.mark.parametrize("size", slow_but(SIZES, SIZES[:2]))
def test_size_arithmetic_with_open_sizes(size: str) -> None:
    """What may be negative, and what is compared, is decided as torch decides it: by the size at hand."""
    f = tilec.compile(f"function (X[N]) -> (Y) {{ Y[i : {size}] = +(X[i + k]), k < 2; }}")
    whole = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (4, 3, 7, 11):
        x = torch.arange(n).double().requires_grad_()
        found, wanted = whole(x), f(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x))


@pytest.mark.filterwarnings("ignore")
def test_training_of_what_is_exported_with_open_sizes() -> None:
    f, example = compiled("softmax"), EXAMPLES["softmax"]

    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    shapes = ({0: torch.export.Dim("n")},)
    module = torch.export.export(Module(), tuple(example.inputs()), dynamic_shapes=shapes).module()
    larger = example.inputs(more=5)
    torch.testing.assert_close(trained(module, larger), trained(example.torch, larger))


def levels_are_exported() -> bool:
    """Whether what torch exports enters the level that its dual numbers belong to: torch 2.11's does not."""
    x = torch.ones(2)
    try:
        exported(lambda x: TRANSFORMS["dual numbers"](torch.sin, x), (x,))(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ("dual numbers", "forward-mode jacobian"))
@pytest.mark.parametrize("name", ("softmax", "log product", pytest.param("recurrence", marks=pytest.mark.slow)))
@pytest.mark.covering
def test_tangents_in_what_is_exported(name: str, way: str) -> None:
    """The graph enters a level of forward mode, and makes batches, of which Python knows nothing."""
    inputs, transform = EXAMPLES[name].inputs(), TRANSFORMS[way]
    ours = exported(lambda *x: transform(compiled(name), *x), inputs)
    if not levels_are_exported():
        with pytest.raises(RuntimeError, match="forward AD level"):
            ours(*inputs)
        return
    found = flat(ours(*inputs))
    for ours, theirs in zip(found, flat(transform(EXAMPLES[name].torch, *inputs)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_a_size_that_depends_on_data() -> None:
    softmax, whole = compiled("softmax"), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with whole, pytest.raises(Exception, match="X has a size that depends on data"):
        compiled_whole(lambda x: softmax(x.nonzero().float()))(torch.ones(4))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("divided", [lambda x: x / 4, lambda x: x / (x + 2), lambda x: torch.ops.aten.div.Scalar(x, 4)])
def test_quotients_of_integers_beside_a_call(dtype: torch.dtype, divided) -> None:
    """Tile's are rounded down, torch's are not."""
    f, graphs = tilec.compile("Y[i, j] = X[i, j] * W[j]"), Graphs()
    x, w = torch.arange(12).reshape(4, 3).to(dtype), torch.arange(3.0)
    whole = torch.compile(lambda x, w: f(divided(x), w), backend=graphs.backend, fullgraph=True)
    torch.testing.assert_close(whole(x, w), divided(x) * w)
    assert not any("div" in t for t in graphs.left()), graphs.left()
