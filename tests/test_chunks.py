"""States that are computed again in chunks of time: the same gradients, in memory that grows with the root of time."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from support.chunks import (
    AVERAGE,
    CHUNKED,
    FORWARD,
    PLAIN,
    SHUFFLING,
    TANH,
    Peak,
    gradients,
    inputs_for,
    kept_states,
)
from support.tiers import slow_but

import tilec
from tests.support.saved import kept_bytes
from tilec.backends.common.tiled_program import TiledProgram

BUDGET = "TILEC_STATE_BUDGET"
ROUGH = {torch.float64: (1e-11, 1e-12), torch.float32: (2e-5, 2e-5), torch.bfloat16: (0.03, 0.03)}


@pytest.mark.parametrize("dtype", ROUGH, ids=str)
@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.covering
@pytest.mark.one_in(13)
def test_the_same_gradients(name: str, dtype: torch.dtype, monkeypatch) -> None:
    source, shapes = CHUNKED[name]
    inputs = inputs_for(shapes(41), dtype)
    wanted = gradients(tilec.compile(source), inputs)
    monkeypatch.setenv(BUDGET, "1")
    function = tilec.compile(source)
    assert kept_states(function, *inputs)
    runs = []
    run = TiledProgram.__call__
    monkeypatch.setattr(TiledProgram, "__call__", lambda self, given: runs.append(self) or run(self, given))
    found = gradients(function, inputs)
    assert len(runs) == 3, "values, the recorded gradient and the one called by hand"
    relative, absolute = ROUGH[dtype]
    for got, right in zip(found, wanted, strict=True):
        assert got.dtype == right.dtype and got.shape == right.shape
        torch.testing.assert_close(
            got, right, rtol=relative, atol=absolute * max(1.0, float(right.detach().abs().max()))
        )


LATER = {
    "some times alone": ("L[b] = sum(H[t, b] * H[t, b]), t - 100 < 200;", [(400, 2)]),
    "an input of fewer times": ("L[b] = sum(H[t, b] * Y[t, b]);", [(400, 2), (200, 2)]),
}


@pytest.mark.filterwarnings("ignore::tilec.TileWarning")  # that the shorter input ends before time does is meant
@pytest.mark.parametrize("name", [*LATER, "an output of fewer times", "three steps back, shifted"])
@pytest.mark.one_in(3)
def test_chunks_in_the_middle_of_time(name: str, monkeypatch) -> None:
    """Of many chunks, those in which something begins, ends or is cut off are others than their neighbours."""
    if name in LATER:
        loss, shapes = LATER[name]
        more = ", Y[S, B]" if len(shapes) > 1 else ""
        source = f"function (X[T, B]{more}) -> (L) {{ H[t, b : T, B] = tanh(H[t - 1, b] + X[t, b]); {loss} }}"
        inputs = inputs_for(shapes)
    else:
        source, made = CHUNKED[name]
        inputs = inputs_for(made(200))
    wanted = gradients(tilec.compile(source), inputs)
    monkeypatch.setenv(BUDGET, "1")
    function = tilec.compile(source)
    assert kept_states(function, *inputs)
    for got, right in zip(gradients(function, inputs), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9 * max(1.0, float(right.detach().abs().max())))


@pytest.mark.parametrize("name", PLAIN)
def test_what_does_not_fall_into_chunks_stays(name: str, monkeypatch) -> None:
    source, shapes = PLAIN[name]
    inputs = inputs_for(shapes(41))
    wanted = gradients(tilec.compile(source), inputs)
    monkeypatch.setenv(BUDGET, "1")
    function = tilec.compile(source)
    assert not kept_states(function, *inputs)
    for got, right in zip(gradients(function, inputs), wanted, strict=True):
        assert torch.equal(got, right)


def results(found) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def printed(source: str) -> dict[str, str]:
    """The files that `source()` of a program in chunks consists of."""
    names = re.findall(r"^# (\w+)\.py$", source, re.MULTILINE)
    texts = re.split(r"^# \w+\.py$", source, flags=re.MULTILINE)[1:]
    return dict(zip(names, texts, strict=True))


@pytest.mark.parametrize("name", slow_but(("a tanh network", "a Markov model", "two layers"), ("two layers",)))
def test_the_text_runs_alone(name: str, tmp_path: Path, monkeypatch) -> None:
    """The printed files give the call's own bits."""
    source, shapes = CHUNKED[name]
    inputs = [t.detach() for t in inputs_for(shapes(41))]
    monkeypatch.setenv(BUDGET, "1")
    function = tilec.compile(source)
    given = [*inputs, *(torch.ones_like(o) for o in results(function(*inputs)))]
    files = printed(function.grad().lower(*given).source())
    assert len(files) > 2
    for title, text in files.items():
        (tmp_path / f"{title}.py").write_text(text)
        monkeypatch.delitem(sys.modules, title, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found = runpy.run_path(str(tmp_path / "program.py"))["program"](*given)
    for title in files:
        monkeypatch.delitem(sys.modules, title, raising=False)
    wanted = results(function.grad()(*given))
    assert len(found) == len(wanted) and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_chunks_of_one_program_are_a_loop(monkeypatch) -> None:
    """The text does not grow with time, and what it does not hold any more is let go of."""
    source, shapes = CHUNKED["a tanh network"]
    monkeypatch.setenv(BUDGET, "1")
    lines = []
    for steps in (60, 600):
        given = [tilec.spec(shape) for shape in [*shapes(steps), (2, 3)]]
        lines.append(printed(tilec.compile(source).grad().lower(*given).source())["program"].splitlines())
    assert len(lines[0]) == len(lines[1]) and sum("for " in line for line in lines[0]) == 2
    assert any(line.startswith("        del ") and "_part" in line for line in lines[0])


def test_where_sums_have_the_same_order_so_have_bits(monkeypatch) -> None:
    """The states and cotangents of a network that shuffles are those of the whole recurrence."""
    inputs = inputs_for([(41, 2, 3), (2, 3)], torch.float32)
    wanted = gradients(tilec.compile(SHUFFLING), inputs)
    monkeypatch.setenv(BUDGET, "1")
    got = gradients(tilec.compile(SHUFFLING), inputs)
    assert all(torch.equal(a, b) for a, b in zip(got[1:], wanted[1:], strict=True))


@pytest.mark.parametrize("steps", slow_but([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 16, 17, 19], (0, 1, 9)))
@pytest.mark.one_in(2)
def test_any_number_of_steps(steps: int, monkeypatch) -> None:
    """No chunks, one more step than chunks, a last chunk of any length."""
    inputs = inputs_for([(steps, 2), (2,)])
    wanted = gradients(tilec.compile(AVERAGE), inputs)
    monkeypatch.setenv(BUDGET, "1")
    function = tilec.compile(AVERAGE)
    assert bool(kept_states(function, *inputs)) == (steps >= 8)
    for got, right in zip(gradients(function, inputs), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["a tanh network", "two layers", "three steps back, shifted", "a Markov model"])
@pytest.mark.one_in(4)
def test_derivatives_of_any_order(name: str, monkeypatch) -> None:
    monkeypatch.setenv(BUDGET, "1")
    source, shapes = CHUNKED[name]
    function, inputs = tilec.compile(source), inputs_for(shapes(17))
    assert kept_states(function, *inputs)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.one_in(3)
def test_by_one_input_alone(place: int, monkeypatch) -> None:
    monkeypatch.setenv(BUDGET, "1")
    function, inputs = tilec.compile(TANH), inputs_for([(19, 2, 3), (3, 3), (3, 3), (2, 3)])
    for k, x in enumerate(inputs):
        x.requires_grad_(k == place)
    assert kept_states(function, *inputs) == ["H_kept"]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def test_the_rule(monkeypatch) -> None:
    """States that are outputs are kept; others are computed again whole while all of them are within the budget."""
    shapes = ((3, 3), (40, 3), (3,))
    whole = tilec.compile(FORWARD)
    assert [s.name for s in whole.saved(*map(tilec.spec, shapes))] == ["P", "E", "F0", "Z"]
    monkeypatch.setenv(BUDGET, str(40 * 3 * 4))
    assert tilec.compile(FORWARD).saved(*map(tilec.spec, shapes)) == whole.saved(*map(tilec.spec, shapes))
    monkeypatch.setenv(BUDGET, str(40 * 3 * 4 - 1))
    chunked = tilec.compile(FORWARD)
    said = chunked.saved(*map(tilec.spec, shapes))
    assert [s.name for s in said] == ["P", "E", "F0", "Z", "F_kept"]
    assert said[-1].shape == (5, 1, 3)
    inputs = inputs_for(shapes, torch.float32)
    assert sum(s.bytes for s in said) == kept_bytes(lambda: chunked(*inputs))
    states = "function (X[T]) -> (H) { H[t : T] = tanh(H[t - 1] + X[t]); }"
    assert [s.name for s in tilec.compile(states).saved(tilec.spec((4000,)))] == ["H"]


def test_chunks_are_as_long_as_the_budget_allows(monkeypatch) -> None:
    """An eighth of it; the root of the number of steps at least."""
    monkeypatch.setenv(BUDGET, str(8 * 500 * 2 * 4))
    kept = tilec.compile(AVERAGE).saved(tilec.spec((10000, 2)), tilec.spec((2,)))[-1]
    assert kept.shape == (19, 1, 2)
    monkeypatch.setenv(BUDGET, str(8 * 50 * 2 * 4))
    kept = tilec.compile(AVERAGE).saved(tilec.spec((10000, 2)), tilec.spec((2,)))[-1]
    assert kept.shape == (89, 1, 2)


@pytest.mark.parametrize("by_hand", slow_but((False, True), (False,)), ids=["recorded", "called by hand"])
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("a Markov model", 64),
        pytest.param("a tanh network", 256, marks=pytest.mark.slow),
        pytest.param("a Markov model", 1024, marks=pytest.mark.slow),
        pytest.param("a tanh network", 1024, marks=pytest.mark.slow),
    ],
)
@pytest.mark.covering
def test_memory_grows_with_the_root_of_time(name: str, steps: int, by_hand: bool, monkeypatch) -> None:
    """Beside inputs and gradients, sixteen times the steps take about four times the memory; whole, sixteen times."""
    source, shapes = CHUNKED[name]

    def most(count: int) -> int:
        function, inputs = tilec.compile(source), inputs_for(shapes(count), torch.float32)
        d = torch.ones(() if name == "a Markov model" else (2, 3))
        with Peak(inputs) as peak:
            if by_hand:
                with torch.no_grad():
                    found = function.grad()(*inputs, d)
            else:
                found = torch.autograd.grad(function(*inputs), inputs, d)
        return peak.most - sum(x.nbytes for x in found)

    monkeypatch.setenv(BUDGET, "1")
    short, long = most(steps), most(16 * steps)
    assert long < 5.5 * short
    monkeypatch.setenv(BUDGET, "1GiB")
    assert most(16 * steps) > 3 * long
