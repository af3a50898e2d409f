"""Random statements over few values of what is summed, cut into pieces and computed value by value, at small sizes."""

import random

import pytest
from support.agreement import agree, run, tensors
from support.scale import scaled

import tilec
from tilec.backends.torch import windows
from tilec.backends.torch.expr import pieces


def draw(rng: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    """A program and the shapes of its inputs."""
    n, k, rows = rng.randrange(4, 10), rng.choice((2, 3)), rng.choice((1, 2))
    size = {"i": n, "j": rows, "k": k}
    shapes: list[tuple[int, ...]] = []

    def element(*index: str) -> str:
        shapes.append(tuple(size.get(e, n) for e in index))
        return f"A{len(shapes) - 1}[{', '.join(index)}]"

    def place() -> str:
        c = rng.randrange(n)
        return rng.choice(
            ("i + k", "i - k", "i", f"clamp(i + k, 0, {n - 1})", f"clamp(i - k, {c}, {n - 1})", f"(i + k + {c}) % {n}",
             f"max(i + k - 1, {c})", f"{n - 1} - i", f"min(i, {c})", "2*i + k")
        )  # fmt: skip

    def factor() -> str:
        match rng.randrange(6):
            case 0:
                return element("k")
            case 1:
                return element("j", place())
            case 2:
                return element(place(), "k")
            case 3:
                return rng.choice(("2.0", "(k + 1)", f"in({element(place())})"))
        return element(place())

    a, b = factor(), factor()
    test = rng.choice((f"i < {n // 2}", "k == 0", "i % 2 == 0"))
    body = rng.choice((a, f"{a} * {b}", f"{a} + {b}", f"{test} ? {a} : {b}", f"{test} ? {a} * {b}"))
    written = rng.choice(("i + k", "i + k, j", "j, i + k", "i", "i, j", "i - k", "2*i + k"))
    extent = ", ".join(str(size.get(e, n)) for e in written.split(", "))
    aggregation = rng.choice(("+", "+", "+", "<", "mean"))
    declared = ", ".join(f"A{d}[{', '.join(map(str, s))}]" for d, s in enumerate(shapes))
    limits = ", ".join(f"{v} < {m}" for v, m in size.items() if v in f"{written} {body}")
    return f"function ({declared}) -> (O) {{ O[{written} : {extent}] = {aggregation}({body}), {limits}; }}", shapes


def test_values_one_by_one_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_FEWEST_ELEMENTS", 0)
    monkeypatch.setattr(pieces, "_FEWEST_ELEMENTS", 0)
    taken = 0
    for seed in range(scaled(48)):
        source, shapes = draw(random.Random(seed))
        try:
            tilec.compile(source)
        except tilec.TileError:  # a branch that bounds nothing
            continue
        inputs = tensors(*shapes, seed=seed)
        agree(source, *inputs)
        taken += ", out=" in run(source, inputs)[1]
    assert taken > 2
