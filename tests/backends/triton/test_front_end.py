"""Triton's front end goes through the lines of our loops once, and the code is the same."""

from __future__ import annotations

import ast
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.tiers import slow_but

import tilec
from tilec.backends.triton.runtime import front_end

pytest.importorskip("triton")

LOOPS = """
for i in range(4):
    a = i
    for j in range(a):
        b += j
    if a > 2:
        c, (d, e) = f(g)
        x[0] = h
"""
CAUSAL = """function (Q[N, D], K[M, D], V[M, F]) -> (O) {
    S[i, j : N, M] = +(Q[i, d] * K[j, d]);
    L[i : N] = logsumexp(i - j >= 0 ? S[i, j]);
    O[i, f : N, F] = +(i - j >= 0 ? exp(S[i, j] - L[i]) * V[j, f]);
}"""
TAPS = """function (I[N, H, W, C], DO[N, H, W, C]) -> (DK) {
    DK[j, i, c : 3, 3, C] = +(DO[n, y, x, c] * I[n, j + y - 1, i + x - 1, c]);
}"""
CONVOLUTION = """function (I[N, H, W, CI], K[3, 3, CI, CO]) -> (O) {
    O[n, y, x, o : N, H, W, CO] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);
}"""
RECURRENCE = "function (A[T, D], X[T, D]) -> (H) { H[t, d : T, D] = max(A[t, d] * H[t - 1, d], X[t, d]); }"
PROGRAMS = {
    "causal": (CAUSAL, ((256, 64),) * 3),
    "taps": (TAPS, ((4, 24, 24, 64),) * 2),
    "convolution": (CONVOLUTION, ((8, 28, 28, 64), (3, 3, 64, 64))),
    "recurrence": (RECURRENCE, ((64, 64),) * 2),
}  # fmt: skip


def test_names_that_a_loop_assigns() -> None:
    body = ast.parse(LOOPS).body[0].body  # type: ignore[attr-defined]
    assert front_end.carried_names(body, ["z", "e", "b", "x", "j", "g", "a"]) == ["e", "b", "j", "a"]


@pytest.mark.parametrize("name", slow_but(PROGRAMS, ("causal", "taps")))  # loops of tiles, and unrolled ones
def test_code_is_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, shapes = PROGRAMS[name]
    inputs = [tilec.spec(s, "float16") for s in shapes]
    lowered = tilec.compile(source, backend="triton").lower(*inputs, target="sm_90")
    looked: list[int] = []
    carried = front_end.carried_names
    monkeypatch.setattr(front_end, "carried_names", lambda *given: (looked.append(1), carried(*given))[1])
    texts = []
    for modules, replaced in ((front_end.KERNEL_MODULES, True), ("of nobody", False)):
        looked.clear()
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / modules))
        monkeypatch.setattr(front_end, "KERNEL_MODULES", modules)
        texts.append(re.sub(r"(?m)^.*(\.loc|//).*$\n", "", lowered.asm("ptx")))
        assert bool(looked) == replaced
    assert texts[0] == texts[1]


def test_kernels_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time has its IR made, and each says that it is past that, once."""
    inside, most, told = [0], [0], []

    def make(fn: object, *given: object) -> object:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        if given:
            raise ValueError("a mistake")
        return fn

    generator = SimpleNamespace(ast_to_ttir=make)
    front_end.one_at_a_time(generator)  # type: ignore[arg-type]
    ours, theirs = (
        SimpleNamespace(fn=SimpleNamespace(__module__=m)) for m in (f"{front_end.KERNEL_MODULES}.x", "theirs")
    )

    def go(number: int) -> None:
        with leaving_noted(number):
            if number % 2:
                assert generator.ast_to_ttir(ours) is ours
            else:
                with pytest.raises(ValueError, match="mistake"):
                    generator.ast_to_ttir(ours, 1)
            assert told.count(number) == 1

    def leaving_noted(number: int):
        return front_end.leaving(lambda: told.append(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go, range(8)))
    assert most == [1] and sorted(told) == list(range(8))
    assert generator.ast_to_ttir(theirs) is theirs
    with leaving_noted(8):
        assert 8 not in told
    assert told.count(8) == 1
