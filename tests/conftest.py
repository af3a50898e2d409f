"""Tiers, Hypothesis profiles and golden files."""

import gc
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("TILEC_FULL_TRACEBACK", "1")  # where a test fails, the frames say why
os.environ.setdefault("TILEC_NATIVE", "0")  # results must not depend on what is built; `library` is what uses it
PATIENCE = 300  # seconds: a minute of one core, after what is more urgent
GOLDEN = Path(__file__).parent / "golden"
gc.disable()  # until all that tests need is imported, none of which is ever let go

if os.environ.get("TRITON_INTERPRET") == "1":
    from support import quick_interpreter, races

    quick_interpreter.hasten()
    races.look_for_races()

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what comes out now")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Of each test marked `covering`, all cases but as few as hold every value of every parameter are slow; of one
    marked `one_in(n)`, of what is left then all but every n-th and those that a parameter of few values needs to have
    each of them."""
    for cases in _marked(items, "covering"):
        missing = {value for item in cases for value in _values(item)}
        while missing:
            first = max(cases, key=lambda item: len(missing & _values(item)))
            missing -= _values(first)
            cases.remove(first)
        for item in cases:
            item.add_marker(pytest.mark.slow)
    for cases in _marked(items, "one_in"):
        (n,) = cases[0].get_closest_marker("one_in").args
        for item in set(cases) - set(_every(n, cases)):
            item.add_marker(pytest.mark.slow)


def _every(n, cases):
    """Every n-th case, and the first ones with values that none of those has, of parameters that have no more values
    than those are cases."""
    kept = cases[::n]
    few = len(kept)
    for name in cases[0].callspec.params if hasattr(cases[0], "callspec") else ():
        first = {id(item.callspec.params[name]): item for item in reversed(cases)}
        if len(first) <= few:
            held = {id(item.callspec.params[name]) for item in kept}
            kept += [item for value, item in first.items() if value not in held]
    return kept


def _marked(items, marker):
    """The cases of each test with this marker that are not slow yet."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker(marker) and not item.get_closest_marker("slow"):
            groups[item.path, item.originalname].append(item)
    return groups.values()


def pytest_collection_finish(session):
    """What is there by now stays: the collector need not go through all of torch again and again, nor often through
    what tests leave. And the library for calls is compiled beside the tests that come before its own."""
    if any("built" in item.fixturenames or "native" in _parameters(item).values() for item in session.items):
        from tilec.native import build

        if not build.library_path().exists():
            build.start_build()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 10, 50)


collected: list[int] = []  # generations, since the last test


def _collected(phase, info):
    if phase == "stop":
        collected.append(info["generation"])


gc.callbacks.append(_collected)


def pytest_runtest_logfinish():
    """What a whole collection has left is not looked at again by those that tests ask for: it is what caches hold."""
    if 2 in collected:
        gc.freeze()
    collected.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """What a test draws without a generator of its own does not depend on the tests before it."""
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` writes the whole stack down for devices not yet in use
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def pytest_terminal_summary(terminalreporter, config):
    """Which files take longest, where many are run."""
    spent = defaultdict(float)
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "duration")):
        spent[report.nodeid.split("::")[0]] += report.duration
    longest = sorted(spent, key=spent.__getitem__, reverse=True)[: config.getoption("durations") or 0]
    if len(spent) > len(longest) > 0:
        terminalreporter.section(f"slowest {len(longest)} files of {sum(spent.values()):.0f} s")
        for name in longest:
            terminalreporter.write_line(f"{spent[name]:.2f}s {name}")


def _parameters(item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _values(item) -> set[tuple[str, int]]:
    return {(name, id(value)) for name, value in item.callspec.params.items()}


@pytest.fixture(scope="session")
def built():
    """The library for calls, which all processes of a run wait for once: one of them compiles it."""
    from tilec.native import build

    if build.compiler() is None:
        pytest.skip("there is no C++ compiler")
    path = build.library_path()
    patience = time.monotonic() + PATIENCE
    while path.with_suffix(".busy").exists() and time.monotonic() < patience:
        time.sleep(0.2)
    if not path.exists():
        build.build_library()


@pytest.fixture
def library(built, monkeypatch):
    """The library, in use."""
    from tilec.native import built_native

    monkeypatch.setenv("TILEC_NATIVE", "1")
    found = built_native()
    assert found is not None
    return found


@pytest.fixture
def golden(request):
    """Compare a text with the file of that name under tests/golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {name}: make it with --update-golden"
        assert text == path.read_text(), f"{name} has changed; --update-golden accepts what comes out now"

    return check
