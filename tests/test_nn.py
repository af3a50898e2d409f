"""tilec.nn.Tile: what torch asks of a module, and a training step beside torch's own."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import tilec
from tilec.errors import InputMistake, NameMistake, RankMistake, SizeMistake

LINEAR = "function (X[N, I], W[I, O], B[O]) -> (Y) { H[n, o : N, O] = +(X[n, i] * W[i, o]); Y = tanh(H + B); }"
NORM = (
    "function (X[N, D], W[D], Scale[]) -> (Y) { Y[i, j] = X[i, j] * rsqrt(mean(X[i, k] * X[i, k])) * W[j] * Scale[]; }"
)


def linear(**how) -> tilec.nn.Tile:
    return tilec.nn.Tile(LINEAR, parameters={"W": (3, 2), "B": (2,)}, **how)


def norm() -> tilec.nn.Tile:
    return tilec.nn.Tile(NORM, {"W": (3,)}, {"Scale": torch.tensor(2.0)}, init={"W": torch.nn.init.ones_})


class Linear(torch.nn.Module):
    """The same by hand."""

    def __init__(self, like: tilec.nn.Tile):
        super().__init__()
        self.W, self.B = (torch.nn.Parameter(p.detach().clone()) for p in (like.W, like.B))

    def forward(self, x):
        return torch.tanh(x @ self.W + self.B)


def test_training_steps_equal_those_of_a_module_by_hand() -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(norm(), linear())
    theirs = torch.nn.Sequential(torch.nn.RMSNorm(3, eps=0.0), Linear(ours[1]))
    steps = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (ours, theirs)]
    x = torch.randn(5, 3)
    for _ in range(3):
        losses = []
        for m, scale, step in zip((ours, theirs), (1, 2), steps, strict=True):
            step.zero_grad()
            loss = m[1](scale * m[0](x)).square().sum()
            loss.backward()
            step.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_and_buffers() -> None:
    module = norm()
    assert [n for n, _ in module.named_parameters()] == ["W"] and [n for n, _ in module.named_buffers()] == ["Scale"]
    assert list(module.state_dict()) == ["W", "Scale"]
    assert torch.equal(module.W, torch.ones(3))
    x = torch.randn(2, 3)
    assert torch.equal(module(x), module(X=x))
    assert "parameter W[3]" in repr(module) and "buffer Scale[]" in repr(module)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_their_own(make) -> None:
    module, x = linear(), torch.randn(4, 3)
    other = make(module)
    assert torch.equal(other(x), module(x))
    with torch.no_grad():
        other.W.zero_()
    assert not torch.equal(other(x), module(x))


def test_saved_and_loaded() -> None:
    module, x, file, whole = linear(), torch.randn(4, 3), io.BytesIO(), io.BytesIO()
    torch.save(module.state_dict(), file)
    torch.save(module, whole)
    file.seek(0)
    whole.seek(0)
    other = linear()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), module(x))
    assert torch.equal(torch.load(whole, weights_only=False)(x), module(x))


def test_types_and_devices() -> None:
    module = norm().to(torch.float64)
    assert module.W.dtype is module.Scale.dtype is torch.float64
    assert module(torch.ones(1, 3, dtype=torch.float64)).dtype is torch.float64
    assert linear(dtype=torch.bfloat16).B.dtype is torch.bfloat16


def test_built_on_meta() -> None:
    module = tilec.nn.Tile(LINEAR, {"W": (3, 2), "B": (2,)}, init={"B": torch.nn.init.ones_}, device="meta")
    assert module.W.is_meta
    module.to_empty(device="cpu").reset_parameters()
    assert torch.equal(module.B, torch.ones(2)) and (module.W.abs() <= 3**-0.5).all() and module.W.std() > 0
    with torch.device("meta"):
        assert linear().W.is_meta


def test_the_number_of_summed_elements_says_the_scale() -> None:
    source = "function (X[N, C], K[J, C, O]) -> (Y) { Y[n, o : N - J + 1, O] = +(X[n + j, c] * K[j, c, o]); }"
    kernel = tilec.nn.Tile(source, {"K": (5, 20, 500)}).K
    assert 0.099 < float(kernel.detach().abs().max()) <= 0.1


def test_a_parameter_may_be_shared() -> None:
    first = linear()
    second = tilec.nn.Tile(LINEAR, {"W": first.W, "B": (2,)})
    assert second.W is first.W
    tensor = torch.ones(3, 2)
    third = tilec.nn.Tile(first.function, {"W": tensor}, {"B": tensor[0]})
    assert third.W is not tensor and torch.equal(third.W, tensor) and third.W.requires_grad


@pytest.mark.parametrize(
    "how, error",
    [
        ({"parameters": {"Q": (2,)}}, NameMistake),
        ({"parameters": {"W": (2, 3)}, "buffers": {"W": (2, 3)}}, InputMistake),
        ({"parameters": {"W": (2,)}}, RankMistake),
        ({"parameters": {"W": (2, 3)}, "buffers": {"B": (2,)}}, SizeMistake),
        ({"parameters": {"W": torch.ones(2, 3)}, "init": {"W": torch.nn.init.ones_}}, InputMistake),
    ],
    ids=["unknown", "twice", "rank", "sizes", "init"],
)
def test_refused(how, error) -> None:
    with pytest.raises(error):
        tilec.nn.Tile(LINEAR, **how)


def test_wrong_calls() -> None:
    with pytest.raises(InputMistake):
        linear()(torch.ones(1, 3), torch.ones(1))
    with pytest.raises(InputMistake):
        linear()(torch.ones(1, 3), W=torch.ones(3, 2))


def test_fully_sharded(tmp_path) -> None:
    """In one process: the parameters are sharded ones between calls, and a step is the same."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    module, x = linear(), torch.randn(4, 3)
    other = copy.deepcopy(module)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(other)
        for m in (module, other):
            m(x).square().sum().backward()
        assert type(other.W) is not type(module.W)
        torch.testing.assert_close(other.W.grad.full_tensor(), module.W.grad)
    finally:
        dist.destroy_process_group()
