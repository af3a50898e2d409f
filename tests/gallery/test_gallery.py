"""Every operation of the gallery, forward and gradient, against PyTorch in float64."""

from __future__ import annotations

import re
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
@pytest.mark.one_in(7)
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
    assert gallery.find("rms") == ["rms_norm"]
    with pytest.raises(tilec.NameMistake, match="no operation `rms`") as caught:
        gallery.load("rms")
    assert caught.value.hint == "did you mean `rms_norm`?"


FIRST_DAY = {  # what people come for, in their words
    "batched product with bias and GELU": "batched_matmul_bias_gelu",
    "causal depthwise convolution": "causal_depthwise_convolution",
    "rotary embedding": "rotary",
    "RMS norm": "rms_norm",
    "causal attention": "causal_attention",
    "attention, ALiBi, window": "alibi_window_attention",
    "gated recurrence": "gated_recurrence",
    "linear attention": "linear_attention",
    "distances": "distances",
    "nearest neighbours": "nearest_neighbour",
    "embedding": "embedding",
    "scatter-add": "scatter_add",
    "bilinear resize": "bilinear_resize",
    "max pool with ceiling": "max_pool_ceiling",
    "edit distance": "edit_distance",
    "CTC": "ctc",
    "mixture gating": "mixture_of_experts",
    "group convolution": "grouped_convolution",
    "smoothed cross-entropy": "smoothed_cross_entropy",
    "pixel shuffle": "pixel_shuffle",
    "im2col": "im2col",
    "Sobel with reflection": "sobel",
    "histogram": "histogram",
    "kernel regression": "kernel_regression",
    "complex arithmetic by parts": "complex_matmul",
    "cosine similarity": "cosine_similarity",
    "segment sum": "segment_sum",
    "CSR": "csr_product",
    "Sinkhorn": "sinkhorn",
    "periodic stencil": "periodic_stencil",
    "prefix sums with reset": "sum_with_reset",
}


@pytest.mark.parametrize("words", FIRST_DAY)
def test_what_people_come_for_is_found(words: str) -> None:
    assert FIRST_DAY[words] in gallery.find(words)


def test_pages_count_the_operations() -> None:
    root = gallery._FOLDER.parents[1]
    for page in ("README.md", "docs/tools.md", "docs/tutorial.md", "docs/quickstart.ipynb"):
        text = (root / page).read_text()
        (told,) = re.findall(r"some (\d+)0 operations\b", text)
        assert int(told) == round(len(gallery.names()) / 10), page


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
