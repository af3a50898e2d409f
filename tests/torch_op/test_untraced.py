"""torch.compile compiles the frames that run in its regions: none of ours, whose meaning it would change."""

from __future__ import annotations

import re

import pytest
import torch
from torch._dynamo import compiled_autograd

import tilec
from tests.support.torch_programs import EXAMPLES
from tilec import late

SHIFTED = "function (X[T, N], S) -> (H) { H[t, n : T, N] = tanh(H[t - 1, n] * rand(S, t) + X[t, n]); }"


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def recurrence(f) -> tuple[torch.Tensor, list[torch.Tensor]]:
    inputs = [t.requires_grad_() for t in EXAMPLES["recurrence"].inputs()]
    return f(*inputs).cos().sum(), inputs


def assert_right(inputs: list[torch.Tensor]) -> None:
    value, expected = recurrence(EXAMPLES["recurrence"].torch)
    value.backward()
    torch.testing.assert_close([t.grad for t in inputs], [t.grad for t in expected])


def test_backward_in_a_compiled_region() -> None:
    """States lie in memory that NumPy shares, which Dynamo takes for a copy."""

    @torch.compile(backend="eager")
    def step(value):
        value.backward()
        return value * 1

    f = tilec.compile(EXAMPLES["recurrence"].source)
    for _ in range(3):  # the node is another one for calls like those before
        value, inputs = recurrence(f)
        step(value)
        assert_right(inputs)


@pytest.mark.parametrize(("backend", "dynamic"), [("eager", False), ("aot_eager", True)])
def test_compiled_autograd_takes_backward_passes_whole(backend: str, dynamic: bool) -> None:
    f = tilec.compile(EXAMPLES["recurrence"].source)
    for _ in range(3):
        value, inputs = recurrence(f)
        with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True), dynamic=dynamic):
            value.backward()
        assert_right(inputs)


def test_arguments_that_no_graph_takes() -> None:
    f, x = tilec.compile(SHIFTED), EXAMPLES["recurrence"].inputs()[0]
    whole = torch.compile(lambda x, s: f(x, s) + 1, backend="aot_eager")
    ours, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    for _ in range(3):
        torch.testing.assert_close(whole(x, ours), f(x, theirs) + 1)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f, a: f(A=a, BB=a), "no input is called BB; hint: did you mean `B`"),
        (lambda f, a: f(a, A=a), "A is given twice"),
        (lambda f, a: f(B=a), "nothing is given for A"),
    ],
)
def test_names_that_do_not_fit_say_so_in_a_graph(call, told: str) -> None:
    """What writes the hint is no code that Dynamo takes down."""
    f, a = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])"), torch.ones(2, 2)
    with pytest.raises(Exception, match=re.escape(told)):
        torch.compile(lambda a: call(f, a), fullgraph=True, backend="eager")(a)


def test_names_that_fit_in_a_graph() -> None:
    f, a, b = tilec.compile("C[i, j] = sum(A[i, k] * B[k, j])"), torch.rand(2, 3), torch.rand(3, 4)
    for call in (lambda a, b: f(B=b, A=a), lambda a, b: f(a, B=b)):
        torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(a, b), a @ b)


def test_code_that_is_gone_is_not_remembered(monkeypatch):
    monkeypatch.setattr(late, "_listener", None)  # as before torch's compiler is imported
    monkeypatch.setattr(late, "_untraced", {})
    kept, dropped = (compile("1", name, "eval") for name in ("kept", "dropped"))
    for code in (kept, dropped):
        late.leave_untraced(code)
    del code, dropped
    told: list = []
    assert len(late._untraced) == 1
    late.tell_of_untraced(told.append)
    assert told == [kept]
