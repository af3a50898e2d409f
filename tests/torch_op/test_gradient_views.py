"""Gradients that are cotangents under other axes are views of them, in a backward pass alone."""

from __future__ import annotations

from random import Random

import pytest
import torch

import tilec

# program, shapes, which gradients are views, and what torch code has the same values
VIEWS = {
    "turned": ("(X[B, I, J]) -> (Y) { Y[b, j, i : B, J, I] = X[b, i, j]; }", [(2, 3, 4)], (True,), lambda x: x.mT),
    "summed": ("(X[A, B, C]) -> (Y) { Y[a, c : A, C] = +(X[a, b, c]); }", [(2, 3, 4)], (True,), lambda x: x.sum(1)),
    "summed and turned": ("(X[A, B, C]) -> (Y) { Y[c, a : C, A] = +(X[a, b, c]); }", [(2, 3, 4)], (True,),
                          lambda x: x.sum(1).T),
    "all summed": ("(X[A, B]) -> (Y) { Y[] = +(X[a, b]); }", [(2, 3)], (True,), lambda x: x.sum()),
    "an axis of size 1": ("(X[A, 1, C]) -> (Y) { Y[a, c : A, C] = X[a, 0, c]; }", [(2, 1, 3)], (False,),
                          lambda x: x[:, 0]),
    "an axis of size 1 more": ("(X[A, C]) -> (Y) { Y[a, 0, c : A, 1, C] = X[a, c]; }", [(2, 3)], (True,),
                               lambda x: x[:, None]),
    "a residual": ("(X[N, M], R[N, M]) -> (Y) { Y = X * X + R; }", [(2, 3), (2, 3)], (False, True),
                   lambda x, r: x * x + r),
    "a bias": ("(X[N, M], B[M]) -> (Y) { Y[j, i : M, N] = X[i, j] + B[j]; }", [(2, 3), (3,)], (True, False),
               lambda x, b: (x + b).T),
    "a part": ("(X[N]) -> (Y) { Y[i : N - 1] = X[i + 1]; }", [(4,)], (False,), lambda x: x[1:]),
    "a diagonal": ("(X[N, N]) -> (Y) { Y[i : N] = X[i, i]; }", [(3, 3)], (False,), lambda x: x.diagonal()),
    "a cast": ("(X[N]) -> (Y) { Y = float64(X); }", [(4,)], (False,), lambda x: x.double()),
    "twice": ("(X[N, M]) -> (Y, Z) { Y[j, i : M, N] = X[i, j]; Z[j, i : M, N] = X[i, j]; }", [(2, 3)], (False,),
              lambda x: (x.T, x.T)),
    "nothing": ("(X[N, M]) -> (Y) { Y[j, i : M, N] = X[i, j]; }", [(0, 3)], (True,), lambda x: x.T),
}  # fmt: skip


def as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_are_views_of_cotangents(name):
    source, shapes, views, formula = VIEWS[name]
    f = tilec.compile(f"function {source}")
    dtype = torch.float32 if name == "a cast" else torch.float64
    for _ in range(3):  # later calls take a shorter way, and other sizes share a class
        inputs = [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]
        results = as_tuple(f(*inputs))
        cotangents = [torch.randn_like(r) for r in results]
        memory = {c.untyped_storage().data_ptr() for c in cotangents}
        found = torch.autograd.grad(results, inputs, cotangents)
        wanted = torch.autograd.grad(as_tuple(formula(*inputs)), inputs, cotangents)
        for g, w, view in zip(found, wanted, views, strict=True):
            torch.testing.assert_close(g, w)
            assert (g.untyped_storage().data_ptr() in memory) == (view or not g.numel())
        shapes = [tuple(n + 9 if n > 1 else n for n in s) for s in shapes]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("a cast", "nothing")])
def test_their_derivatives(name):
    source, shapes, _, _ = VIEWS[name]
    f = tilec.compile(f"function {source}")
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(f, inputs, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_batched_grad=True)


def test_a_gradient_by_hand_has_its_own_memory():
    f = tilec.compile(f"function {VIEWS['turned'][0]}")
    x, d = torch.randn(2, 3, 4), torch.randn(2, 4, 3)
    found = f.grad()(x, d)
    assert torch.equal(found, d.mT)
    assert found.untyped_storage().data_ptr() != d.untyped_storage().data_ptr()


@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("source", ["O[i : N] = X[i] + Y[0, i]", "O[i : N] = 0 * X[i] + Y[0, i]"])
def test_a_cotangent_that_is_given_twice_stays(source, way, monkeypatch, request):
    """Torch adds the second gradient to the first one, which is the leaf's own: no view of what the caller holds."""
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if way == "native":
        request.getfixturevalue("library")
    f = tilec.compile(f"function (X[N], Y[M, N]) -> (O) {{ {source}; }}")
    for n in (5, 5, 5, 12, 17):
        x, y, g = torch.randn(n), torch.randn(1, n, requires_grad=True), torch.ones(n)
        for _ in range(2):
            f(x, y).backward(g)
        assert torch.equal(g, torch.ones(n)) and torch.equal(y.grad, torch.full((1, n), 2.0))


def test_gradients_of_leaves_do_not_share_memory():
    """What accumulates a gradient keeps its own: it is changed in place by optimizers and clipping."""
    f = tilec.compile(f"function {VIEWS['a residual'][0]}")
    x, r, q = (torch.randn(2, 3, requires_grad=True) for _ in range(3))
    (f(x, r) + q).square().sum().backward()
    assert len({t.grad.untyped_storage().data_ptr() for t in (x, r, q)}) == 3


# programs, shapes of X and W, and what becomes of the outputs
SHARED = {
    "a row and a column": ("Y[j, i] = X[i, j] + W[j, i]", (4, 1), (1, 4), lambda y: y),
    "turned, as the input lies": ("Y[j, i] = X[i, j] + W[j, i]", (4, 3), (3, 4), lambda y: y),
    "both turned": ("Y[j, i] = X[i, j] - V[i, j] + W[i, j]", (4, 1), (4, 1), lambda y: y),
    "outputs that are added": ("A = X; B[j, i] = W[i, j];", (4, 1), (1, 4), lambda y: y[0] + y[1]),
    "views of outputs that are added": ("A = X; B = W;", (3, 4), (3, 4), lambda y: y[0].view(-1) + y[1].view(-1)),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in SHARED
        for way in ("native", "python", "compiled")
        if (name, way) != ("views of outputs that are added", "compiled")  # cotangents are traced apart
    ],
)
@pytest.mark.one_in(2)
def test_gradients_of_one_cotangent_do_not_share_memory(name, way, monkeypatch, request):
    """Each of several leaves would take a view of it for its own, and add to them all in the next pass."""
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if way == "native":
        request.getfixturevalue("library")
    source, x_shape, w_shape, then = SHARED[name]
    f = tilec.compile(source)
    shapes = [{"X": x_shape, "W": w_shape, "V": x_shape}[n] for n in f.inputs]
    inputs = [torch.randn(s) for s in shapes]
    inputs = [t.mT.contiguous().mT if name.startswith("turned") and k == 0 else t for k, t in enumerate(inputs)]
    for t in inputs:
        t.requires_grad_()
    torch._dynamo.reset()
    called = torch.compile(f, backend="aot_eager") if way == "compiled" else f
    for _ in range(3):  # later passes take a shorter way
        for t in inputs:
            t.grad = None
        for times in (1.0, 2.0):
            (2 * then(called(*inputs))).sum().backward()
            for t, sign in zip(inputs, (1, -1, 1) if len(inputs) == 3 else (1, 1), strict=True):
                assert torch.equal(t.grad, torch.full_like(t, 2 * sign * times))


def turned_sum(random: Random) -> tuple[str, list[torch.Tensor]]:
    """A sum or two of inputs under permuted axes, and leaves that lie in any order."""
    axes, size = "ijk"[: random.randint(2, 3)], {v: random.choice((1, 1, 2, 3)) for v in "ijk"}
    leaves, statements = [], []
    for name in "YZ"[: random.randint(1, 2)]:
        terms = []
        for _ in range(random.randint(1, 3)):
            index = random.sample(axes, len(axes))
            terms.append(f"X{len(leaves)}[{', '.join(index)}]")
            order = random.sample(range(len(axes)), len(axes))
            lying = torch.zeros([size[index[a]] for a in order])
            leaves.append(lying.permute([order.index(a) for a in range(len(axes))]).requires_grad_())
        sizes = ", ".join(str(size[v]) for v in axes)
        statements.append(f"{name}[{', '.join(axes)} : {sizes}] = {' + '.join(terms)};")
    return " ".join(statements), leaves


@pytest.mark.parametrize("way", ["native", "python"])
def test_random_sums_of_turned_inputs_accumulate(way, monkeypatch, request):
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if way == "native":
        request.getfixturevalue("library")
    random = Random(0)
    for _ in range(40):
        source, leaves = turned_sum(random)
        f = tilec.compile(source)
        for _ in range(3):  # later passes take a shorter way
            for t in leaves:
                t.grad = None
            for times in (1.0, 2.0):
                (2 * sum(as_tuple(f(*leaves)))).sum().backward()
                assert all(torch.equal(t.grad, torch.full_like(t, 2 * times)) for t in leaves), source


def test_a_missing_cotangent_and_torch_func():
    f = tilec.compile("function (X[N, M], R[M, N]) -> (Y, Z) { Y[j, i : M, N] = X[i, j]; Z = R; }")
    x, r = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3), (3, 2)))
    y, _ = f(x, r)
    by_x, by_r = torch.autograd.grad(y.sum(), (x, r), allow_unused=True)
    assert torch.equal(by_x, torch.ones(2, 3, dtype=torch.float64))
    assert by_r is None or not by_r.any()
    xs, weights = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    found = torch.func.vmap(torch.func.grad(lambda x: (f(x, r)[0] * weights).sum()))(xs)
    assert torch.equal(found, weights.T.expand(5, 2, 3))


def test_inputs_of_which_the_shape_alone_is_read_take_the_fast_path(monkeypatch):
    """A backward pass that needs the shape of something it did not keep goes straight to what runs as well."""
    from tilec.torch_op import recorded

    f = tilec.compile("function (X[N, D], T[M]) -> (Y) { Y[m, d : M, D] = X[T[m], d]; }")
    x, t = torch.randn(7, 3, requires_grad=True), torch.tensor([2, 0, 2, 6])
    cotangent = torch.randn(4, 3)
    wanted = torch.zeros(7, 3).index_add(0, t, cotangent)
    for _ in range(2):
        (found,) = torch.autograd.grad(f(x, t), x, cotangent)
    monkeypatch.setattr(recorded.Recorded, "pulled_back", None)  # what is unusual goes there
    (found,) = torch.autograd.grad(f(x, t), x, cotangent)
    torch.testing.assert_close(found, wanted)


LAYOUTS = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "reversed": lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "expanded": lambda t: t[:1].expand(t.shape),
    "row-major": lambda t: t,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("text", ["Y = X + Z", "Y = X * Z", "Y = exp(X) - Z"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_of_gradients_that_are_traced(text, layout):
    """Contiguous whatever operands and cotangent lie like; an eager call's may lie otherwise, and are equal."""
    f, g = tilec.compile(text), torch.Generator().manual_seed(0)
    x, z, c = (torch.randn(2, 3, 4, dtype=torch.float64, generator=g) for _ in range(3))
    z, c = (LAYOUTS[layout](t) for t in (z, c))
    x, z = (t.detach().requires_grad_() for t in (x, z))
    torch._dynamo.reset()
    found, wanted = (h(x, z) for h in (torch.compile(f, fullgraph=True, backend="aot_eager"), f))
    torch.testing.assert_close(found, wanted)
    assert found.is_contiguous()
    for ours, eager in zip(*(torch.autograd.grad(y, (x, z), c) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.is_contiguous()
