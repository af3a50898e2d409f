"""Every operation of the gallery, forward and gradient, against PyTorch in float64."""

from __future__ import annotations

import warnings

import pytest
import torch
from references import REFERENCES

import tilec
from tilec import gallery
from tilec.bench.suite.catalog import WORKLOADS
from tilec.cli import main
from tilec.language.format import format_source

RANDOM = {"dropout"}  # a mask of its own: torch draws another


def outputs(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_as_torch(name: str) -> None:
    """Values, and the gradient of every floating input for random gradients of the outputs."""
    arguments = gallery.entry(name).example(seed=3, dtype=torch.float64)
    leaves = [a.requires_grad_() for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilec.TileWarning)
        ours = outputs(gallery.load(name)(*arguments))
    theirs = outputs(REFERENCES[name](*arguments))
    torch.testing.assert_close(ours, theirs, check_dtype=False)
    kept = [n for n, t in enumerate(theirs) if t.requires_grad]
    assert bool(kept) == bool(leaves)
    if leaves:
        weights = [torch.randn_like(theirs[n]) for n in kept]
        found = torch.autograd.grad([ours[n] for n in kept], leaves, weights)
        expected = torch.autograd.grad([theirs[n] for n in kept], leaves, weights)
        torch.testing.assert_close(found, expected)


def test_every_operation_has_a_reference() -> None:
    assert set(gallery.names()) == set(REFERENCES) | RANDOM
    assert len(gallery.names()) >= 60


def test_workloads_are_there() -> None:
    measured = [e.workload for e in map(gallery.entry, gallery.names()) if e.workload]
    assert set(measured) <= set(WORKLOADS) and len(measured) == len(set(measured)) > 60


def test_dropout_keeps_its_mask_in_the_gradient() -> None:
    x, p, seed = gallery.entry("dropout").example(dtype=torch.float64)
    x.requires_grad_()
    y = gallery.load("dropout")(x, p, seed)
    y.sum().backward()
    torch.testing.assert_close(y.detach(), (x * x.grad).detach())
    assert {0.0, 1 / p} == set(x.grad.unique().tolist())


@pytest.mark.parametrize("name", gallery.names())
def test_texts_are_laid_out(name: str) -> None:
    path = next(gallery._FOLDER.glob(f"*/{name}.tile"))
    text = path.read_text()
    assert format_source(text) == text
    assert gallery.entry(name).title.endswith(".")


def test_names_that_are_close() -> None:
    with pytest.raises(tilec.NameMistake, match="did you mean `rotary`"):
        gallery.load("rotry")
    with pytest.raises(tilec.NameMistake, match="`tilec gallery` lists"):
        gallery.load("zzz")


def test_found_by_words() -> None:
    assert "rotary" in gallery.find("position embedding")
    assert gallery.find("no such thing") == []


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gallery", "--find", "attention"]) == 0
    assert "causal_attention" in capsys.readouterr().out
    assert main(["gallery", "softmax"]) == 0
    assert gallery.entry("softmax").source in capsys.readouterr().out
    assert main(["gallery", "softmax", "--grad"]) == 0
    assert "DX" in capsys.readouterr().out
    assert main(["gallery", "--find", "no such thing"]) == 1
    assert main(["gallery", "rotry"]) == 1
    assert "did you mean" in capsys.readouterr().err
