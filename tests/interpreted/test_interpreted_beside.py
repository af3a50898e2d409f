"""A plan that is made beside the forward pass is the one that the backward pass runs."""

import os

import pytest
import torch

import tilec
from tilec.calls import beside

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


def test_the_plan_is_made_once(monkeypatch):
    monkeypatch.setattr(beside, "may_begin", lambda devices: True)
    f = tilec.compile("L[i] = logsumexp(X[i, j] * W[j])", backend="triton")
    x, w = torch.randn(6, 9).requires_grad_(), torch.randn(9).requires_grad_()
    y = f(W=w, X=x)
    (recorded,) = f.specialiser.recorded.values()
    (thread,) = recorded.beside
    thread.join()
    ((function, _),) = recorded._gradients.values()
    (prepared,) = function._prepared.values()
    assert len(prepared.executable._calls) == 1
    d = torch.randn(6)
    found = torch.autograd.grad(y, (x, w), d)
    assert len(prepared.executable._calls) == 1
    a, b = (t.detach().requires_grad_() for t in (x, w))
    want = torch.autograd.grad(torch.logsumexp(a * b, 1), (a, b), d)
    assert all(torch.allclose(g, e, atol=1e-5) for g, e in zip(found, want, strict=True))
