"""The device runner's own workings, with the torch backend on the CPU in the place of a device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import gpu_cases
import gpu_examine
import numpy as np
import pytest
import run as runner
import torch
from conformance.cases import tables
from gpu_cases import make, plan
from gpu_examine import Settings, Verdict, difference, examine, laid_out, poisoned_memory
from gpu_magnitude import magnitudes
from gpu_programs import SIZED
from support.programs import FAMILIES

import tilec
from tilec.bench import workers

HERE = Settings(seed=1, backend="torch", device="cpu")


def test_a_plan_holds_everything_and_is_the_seeds() -> None:
    names = plan(1, runner.DTYPES)
    assert names == plan(1, runner.DTYPES) != plan(2, runner.DTYPES)
    assert sorted(names) == sorted(plan(2, runner.DTYPES)) and len(names) == len(set(names)) > 5000
    begun = {tuple(name.split("/")[:2]) for name in names}
    assert begun == {("table", t) for t in tables()} | {("sized", n) for n in SIZED} | {("random", f) for f in FAMILIES}
    assert {name.split("/")[-1] for name in names[:100]} == set(runner.DTYPES)
    assert all("matmul/" in name for name in plan(1, runner.DTYPES, only="matmul/"))
    assert not any("/" in name for name in SIZED) and all(len(entries) > 5 for entries in tables().values())


@pytest.mark.parametrize("kind", ["sized", "random/chains", "table/values", "table/infinite", "table/indexed"])
def test_a_name_and_a_seed_say_all(kind: str) -> None:
    name = next(n for n in plan(1, ("float32",)) if n.startswith(kind))
    first, again = make(name, 1), make(name, 1)
    assert (first.source, first.layouts) == (again.source, again.layouts)
    for a, b in zip(first.arrays, again.arrays, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    others = [make(name, seed) for seed in range(2, 6)]
    assert any([a.tobytes() for a in o.arrays] != [a.tobytes() for a in first.arrays] for o in others)


def test_sizes_are_awkward_and_small_for_the_interpreter() -> None:
    names = [n for n in plan(1, ("float32",)) if n.startswith("sized")][:12]
    sizes = {n for name in names for a in make(name, 1).arrays for n in a.shape}
    assert sizes & {127, 129, 131, 257} and 1 in sizes
    small = [a.size for name in names for a in make(name, 1, small=True).arrays]
    assert max(small) < 20_000


def test_a_sample_is_ok() -> None:
    names = [n for n in plan(1, runner.DTYPES) if n.startswith("random")][:12]
    verdicts = {name: examine(name, HERE) for name in names}
    assert {n: v for n, v in verdicts.items() if v.status not in runner.GOOD} == {}
    assert sum(v.status == "ok" for v in verdicts.values()) > 9


@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_sized_programs_are_ok(step: int) -> None:
    """Every sixteenth, or each of them, at the interpreter's sizes."""
    small = Settings(seed=1, backend="torch", device="cpu", small=True)
    verdicts = {name: examine(f"sized/{name}/0/float32", small) for name in list(SIZED)[::step]}
    assert {n: v for n, v in verdicts.items() if v.status != "ok"} == {}


# what a backend may get wrong: the outputs, or the inputs, as it leaves them
Fault = Callable[[list[torch.Tensor], list[torch.Tensor], int], None]


def off(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    outputs[0].view(-1)[0] *= 1.001


def unwritten(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    outputs[0].view(-1)[-1] = torch.empty(1)[0]


def another_type(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    outputs[0] = outputs[0].double()


def another_shape(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    outputs[0] = outputs[0][None]


def unsteady(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    outputs[0].view(-1)[0] *= 1 + call * 2.0**-20


def writes_an_input(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    inputs[0].view(-1)[0] += 1


def raises(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    raise IndexError("no such tile")


def refuses(outputs: list[torch.Tensor], inputs: list[torch.Tensor], call: int) -> None:
    raise tilec.Unsupported("not on this device")


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "values": (off, "wrong", "1 of "),
    "memory that nothing wrote": (unwritten, "wrong", ": nan for "),
    "type": (another_type, "wrong", "torch.float64 of shape"),
    "shape": (another_shape, "wrong", "torch.float32 of shape (1, "),
    "another answer each time": (unsteady, "wrong", "a second call gives other bits"),
    "an input": (writes_an_input, "wrong", "the input A was written to"),
    "an exception": (raises, "error", "IndexError: no such tile"),
    "what it cannot do": (refuses, "unsupported", "not on this device"),
}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault, bool], None]:
    """Put a fault into the values or into the gradient of the backend called "broken"."""
    compile_ = tilec.compile

    def install(fault: Fault, in_gradient: bool) -> None:
        class Broken(tilec.Function):
            faulty = not in_gradient
            calls = 0

            def __call__(self, *inputs):
                results = super().__call__(*inputs)
                outputs = list(results) if isinstance(results, tuple) else [results]
                if self.faulty:
                    fault(outputs, list(inputs), self.calls)
                    self.calls += 1
                return tuple(outputs)

            def grad(self, wrt=None):
                found = super().grad(wrt)
                made = Broken(found.program, found.source, specialiser=found._specialiser)
                made.faulty = in_gradient
                return made

        def compile(source: str, *, backend: str | None):
            made = compile_(source, backend="torch")
            return Broken(made.program, source) if backend == "broken" else made

        monkeypatch.setattr(gpu_examine.tilec, "compile", compile)

    return install


@pytest.mark.parametrize("where", ["value", "gradient"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, where: str, broken) -> None:
    what, status, text = FAULTS[fault]
    broken(what, where == "gradient")
    verdict = examine("sized/matmul/0/float32", Settings(seed=2, backend="broken", device="cpu", small=True))
    assert verdict.status == status and text in verdict.text, verdict
    if status == "wrong":
        assert verdict.text.startswith(where) and "O[i, j : I, J] = +(A[i, k] * X[k, j]);" in verdict.text


def test_what_should_be_refused_is(monkeypatch: pytest.MonkeyPatch, broken) -> None:
    source = "function (A[N]) -> (O) { O[0*i : 1] = A[i]; }"
    monkeypatch.setitem(gpu_cases.MAKERS, "table", lambda *_: (source, [np.ones(3)], True))
    assert examine("table/x/0/0/float32", HERE).status == "refused"

    def write_anyway(self, *inputs):
        return torch.ones(1)

    monkeypatch.setattr(tilec.Function, "__call__", write_anyway)
    verdict = examine("table/x/0/0/float32", HERE)
    assert verdict.status == "wrong" and "should be refused" in verdict.text


def test_compiled_for_a_target() -> None:
    """Values and gradient, without a device; the torch backend has no targets."""
    compiled = Settings(seed=1, target="sm_90")
    assert examine("sized/matmul/0/bfloat16", compiled) == Verdict("ok")
    assert examine("sized/histogram/0/bfloat16", compiled) == Verdict("ok")
    assert examine("sized/matmul/0/bfloat16", Settings(seed=1, target="sm_1")).status == "unsupported"
    assert "--target sm_90 --case" in runner.command("x", compiled)


def test_faults_of_the_device_end_the_process(broken) -> None:
    def fault(outputs, inputs, call):
        raise RuntimeError("CUDA error: misaligned address")

    broken(fault, False)
    with pytest.raises(RuntimeError, match="misaligned"):
        examine("sized/matmul/0/float32", Settings(backend="broken", device="cpu", small=True))


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


INF, NAN = math.inf, math.nan
GOOD = {
    "equal": ((1, 2), (1, 2), (1, 2)),
    "both infinite": ((INF, -INF), (INF, -INF), (INF, -INF)),
    "both not a number": ((NAN, 1), (NAN, 1), (NAN, 1)),
    "as rough as torch": ((1.01, 100), (1.01, 100), (1, 100)),
    "past what torch can hold": ((1, 5), (1, INF), (1, 1e39)),
    "last place": ((1.0000001, 1), (1, 1), (1, 1)),
}
BAD = {
    "off": ((1.001, 1), (1, 1), (1, 1)),
    "not a number": ((NAN, 1), (1, 1), (1, 1)),
    "infinite": ((INF, 1), (1, 1), (1, 1)),
    "finite for infinite": ((1, 1), (INF, 1), (INF, 1)),
    "the other infinity": ((-INF, 1), (INF, 1), (INF, 1)),
    "finite for not a number": ((1, 1), (NAN, 1), (NAN, 1)),
}


@pytest.mark.parametrize("case", [*GOOD, *BAD])
def test_differences(case: str) -> None:
    got, roughly, exact = (GOOD | BAD)[case]
    found = difference(numbers(*got), numbers(*roughly), numbers(*exact, dtype=torch.float64))
    assert bool(found) == (case in BAD), found


def test_differences_of_integers_and_types() -> None:
    whole = torch.tensor([1, 2, 3])
    assert difference(whole, whole, whole) == ""
    assert "at [2]: 4.0 for 3.0" in difference(torch.tensor([1, 2, 4]), whole, whole)
    assert difference(torch.tensor([1, 2, 4]), torch.tensor([1, 2, 5]), whole) == "", "torch's rounded type says 5"
    assert "torch.int32" in difference(whole.int(), whole, whole)
    assert difference(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.bool), torch.zeros(0)) == ""
    exact = torch.tensor([0.1, 100.0], dtype=torch.float64)
    half = exact.half()
    assert difference(half, half, exact) == ""
    assert difference(half + 0.5, half, exact) != ""


def test_what_cancels_may_be_off_by_a_rounding_of_the_terms() -> None:
    got, nothing = torch.tensor([2.0**-23]), torch.zeros(1)
    exact = nothing.double()
    assert difference(got, nothing, exact) != ""
    assert difference(got, nothing, exact, terms=torch.tensor([2.0])) == ""
    assert difference(got, nothing, exact, terms=torch.tensor([1.9])) != ""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("O = A * B - B * A;", [12.0, 2.0]),
        ("O[i : N] = +(A[i] - A[j]);", [7.0, 5.0]),
        ("T = A - B; O = T * T;", [25.0, 4.0]),
        ("O = exp(A - A) - 1;", [2.0, 2.0]),
        ("O[i : N] = O[i - 1] - A[i] init 3 - A[0];", [7.0, 8.0]),
        ("O[i : N] = sin(O[i - 1] - A[i]) init 3 - A[0];", [math.sin(1), math.sin(1 - math.sin(1))]),
        ("O[] = <(A[i] - B[i]);", 5.0),
        ("O[i : 3] = pad(A[i], 3 - 1.5) default D;", [2.0, 1.0, 1.5]),
    ],
)
def test_magnitudes_of_terms(body: str, wanted: object) -> None:
    f = tilec.compile(f"function (A[N], B[N], D[3]) -> (O) {{ {body} }}")
    given = [torch.tensor(x, dtype=torch.float64) for x in ([2.0, -1.0], [3.0, -1.0], [0.0, 0.0, 0.0])]
    (found,) = magnitudes(f, given)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("layout", sorted({*gpu_cases.LAYOUTS}))
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2, 1, 3), (0, 3)])
def test_layouts_change_no_element(layout: str, shape: tuple[int, ...]) -> None:
    t = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    placed = laid_out(t, layout, "cpu")
    assert torch.equal(placed, t)
    if len(shape) > 1 and t.numel() and layout not in ("contiguous", "expanded"):
        assert placed.stride() != t.stride()
    ones = laid_out(torch.ones(4, 5), layout, "cpu")
    assert torch.equal(ones, torch.ones(4, 5)) and (0 in ones.stride()) == (layout == "expanded")


@pytest.mark.parametrize("layout", ["inside", "every second"])
def test_what_lies_around_is_poison(layout: str) -> None:
    placed = laid_out(torch.ones(4, 5), layout, "cpu")
    storage = torch.tensor([], dtype=torch.float32).set_(placed.untyped_storage())
    assert storage.isnan().sum() == storage.numel() - 20 and storage[0].isnan() and storage[-1].isnan()


def test_poisoned_memory() -> None:
    with poisoned_memory():
        assert torch.empty(5).isnan().all()
        assert (torch.empty_strided((2, 2), (1, 2), dtype=torch.int32) == 2**31 - 1).all()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workers in this process, which lose cases of one name; the names that they were given."""
    given: list[str] = []

    def in_turn(tasks, work, *, jobs, limit, deadline):
        for name in tasks:
            given.append(name)
            yield name, workers.Lost("took more than 1 s") if "lost" in name else Verdict("ok")

    monkeypatch.setattr(workers, "run", in_turn)
    return given


def test_what_was_done_is_not_done_again(here: list[str], tmp_path: Path) -> None:
    state, lines = tmp_path / "state.jsonl", []
    names = [f"case {n}" for n in range(120)] + ["lost"]
    first = runner.check(names[:70], HERE, state=state, told=lines.append)
    assert first == {"ok": 70} and here == names[:70]
    assert [line.split("]")[0] for line in lines[1:]] == ["[50/70", "[70/70"]
    state.write_text(state.read_text()[:-15])  # the last line was cut short
    counts = runner.check(names, HERE, state=state, told=lines.append)
    assert here[70:] == names[69:] and counts == {"ok": 120, "lost": 1}
    assert any(line.startswith("LOST lost\n    reproduce: python tests/gpu/run.py --seed 1") for line in lines)
    assert runner.check(names, HERE, state=state) == counts and len(here) == 122
    runner.check(names, HERE, state=state, retry=True)
    assert here[122:] == ["lost"]
    runner.check(names[:3], Settings(seed=2, backend="torch", device="cpu"), state=state)
    assert here[123:] == names[:3], "another seed has other cases"


def test_shards_are_parts(here: list[str]) -> None:
    for index in range(3):
        assert runner.main(["--shard", f"{index}/3", "--only", "table/types"]) == 0
    assert sorted(here) == sorted(plan(0, runner.DTYPES, only="table/types")) and len(here) == len(set(here))


@pytest.mark.slow
def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.jsonl"
    options = ["--backend", "torch", "--device", "cpu", "--seed", "3", "--jobs", "1"]
    assert runner.main([*options, "--only", "table/types/3/", "--state", str(state)]) == 0
    assert "[6/6] 6 ok" in capsys.readouterr().out
    entries = [json.loads(line) for line in state.read_text().splitlines() if line]
    assert [entry["status"] for entry in entries] == ["ok"] * 6
    assert runner.main([*options, "--case", "table/types/3/0/float32"]) == 0
    assert capsys.readouterr().out == "table/types/3/0/float32: ok\n"
