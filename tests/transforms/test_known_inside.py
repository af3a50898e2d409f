"""What asks in branches whether an element lies inside, where it does at every point: the guard goes."""

import pytest
import torch

import tilec
from tilec.ir.program import Inside, walk
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import bind_flat

# a product with an element of another half, and whether it lies inside everywhere
CASES = {
    "halves": ("i < N/2 ? X[i + N/2] : X[i - N/2]", True),
    "halves, the other way round": ("i >= N/2 ? X[i - N/2] : X[i + N/2]", True),
    "negative": ("0 - i > 0 - N/2 ? X[i + N/2] : X[i - N/2]", True),
    "thirds": ("i < N/3 ? X[i + 1] : i < N - 2 ? X[i + 2] : X[i - 1]", True),
    "one beyond the end": ("i <= N/2 ? X[i + N/2] : X[i - N/2]", False),
    "one before the beginning": ("i < N/2 - 1 ? X[i + N/2] : X[i - N/2]", False),
    "of an element": ("X[0] < 0 ? X[i] : X[N - 1 - i]", True),
    "of twice the place": ("2*i < N ? X[i + N/2] : X[i - N/2]", True),
    "never one branch": ("i < 0 ? X[i - 1] : X[i]", True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [6, 12, 24])
@pytest.mark.covering  # the rule is exact in the size, so that each case is asked at one of them
def test_guards_in_branches(name: str, size: int) -> None:
    body, everywhere = CASES[name]
    source = f"function (X[N], W[N]) -> (Y) {{ Y[i : N] = W[i] * ({body}); }}"
    flat = bind_flat(parse(source), {n: TensorType((size,), "float32") for n in "XW"}, {})
    asks = any(isinstance(e, Inside) for s in flat.statements for e in walk(*s.roots))
    assert asks is not everywhere
    x, w = (torch.randn(size, requires_grad=True) for _ in range(2))
    f = tilec.compile(source)
    wanted = torch.as_tensor(tilec.interpret(source, x.detach().numpy(), w.detach().numpy()))
    torch.testing.assert_close(f(x, w).double(), wanted.double())
    assert torch.autograd.gradcheck(f, (x.double(), w.double()))


COUNTED = {
    "a remainder": "sum[m](X[0] * in(X[J[m] % N]))",
    "a remainder of what is further on": "logsumexp[m](X[1] * in(X[J[m + 1] % N]))",
    "a remainder of an element's element": "prod[m](X[2] * in(X[J[J[m]] % N]))",
    "an asked guard": "sum[m](pad(in(X[J[m] % N]), 0) != 0 ? X[m])",
    "elements that cancel": "sum[m](X[m + J[m] - J[m]])",
    "a remainder beside its place": "sum[m](X[m + J[m] % 2])",
    "an element times 0": "logsumexp[m](X[m + 0*J[m]] * X[0*J[m + 1]])",
    "an element's element times 0": "sum[m](X[0] + X[0*J[J[m]]])",
}


@pytest.mark.parametrize("name", COUNTED)
def test_elements_that_say_how_many_points(name: str) -> None:
    """An index whose value does not depend on an element still has points only where the element is."""
    source = f"function (X[N], J[M]) -> (Y) {{ Y[] = {COUNTED[name]}; }}"
    x, j = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 5, -2])
    f = tilec.compile(source)
    assert torch.allclose(f(x, j).detach(), torch.as_tensor(tilec.interpret(source, x.detach().numpy(), j.numpy())))
    assert torch.autograd.gradcheck(lambda y: f(y, j), (x,))
