"""Random windows of several axes, taken one axis after the other: values and gradients as of the whole."""

import random

import pytest
import torch
from support.scale import scaled

import tilec
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.transforms.lower import separate_windows as module


def draw(rng: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    """A program and the shapes of its inputs."""
    axes = rng.choice((2, 2, 2, 3))
    lengths, taps = [rng.randrange(5, 12) for _ in range(axes)], [rng.randrange(1, 5) for _ in range(axes)]
    steps, apart = [rng.choice((1, 1, 1, 2)) for _ in range(axes)], [rng.choice((1, 1, 2, -1)) for _ in range(axes)]
    shifts = [rng.randrange(-3, 4) for _ in range(axes)]
    places = [f"{s}*y{k} + {a}*j{k} + {c}" for k, (s, a, c) in enumerate(zip(steps, apart, shifts, strict=True))]
    points = [f"y{k}" for k in range(axes)]
    sizes = [rng.randrange(3, 9) for _ in range(axes)]
    written = rng.random() < 0.3
    inside, outside = (points, places) if written else (places, points)
    aggregation = rng.choice("+++><")
    body = f"X[n, {', '.join(inside)}]"
    if rng.random() < 0.3:
        body = rng.choice((f"{body} * {body}", f"exp(0.1 * {body})", f"{body} * S[n]"))
    weights = [k for k in range(axes) if aggregation == "+" and rng.random() < 0.8]
    inputs = ["X[B, " + ", ".join(f"L{k}" for k in range(axes)) + "]"] + (["S[B]"] if "S[" in body else [])
    shapes = [(2, *lengths)] + ([(2,)] if "S[" in body else [])
    inputs += [f"K{k}[{'B, ' if k % 2 else ''}T{k}]" for k in weights]
    shapes += [(2, taps[k]) if k % 2 else (taps[k],) for k in weights]
    body += "".join(f" * K{k}[{'n, ' if k % 2 else ''}j{k}]" for k in weights)
    limits = ", ".join(f"j{k} < {taps[k]}" for k in range(axes) if k not in weights)
    index, extent = f"n, {', '.join(outside)}", f"B, {', '.join(map(str, sizes))}"
    statement = f"O[{index} : {extent}] = {aggregation}({body}){', ' * bool(limits)}{limits};"
    return f"function ({', '.join(inputs)}) -> (O) {{ {statement} }}", shapes


def test_one_axis_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = 0
    for seed in range(scaled(12)):
        text, shapes = draw(random.Random(seed))
        generator = torch.Generator().manual_seed(seed)
        given = [torch.rand(s, generator=generator, dtype=torch.float64) + 0.1 for s in shapes]
        found = []
        for fewest, spared in ((0, -100.0), (10**12, 32.0)):
            monkeypatch.setattr(module, "FEWEST", fewest)
            monkeypatch.setattr(module, "SPARED", spared)
            f = tilec.compile(text, backend="torch")
            types = {
                n: TensorType(tuple(x.shape), "float64") for n, x in zip(f.program.input_names(), given, strict=True)
            }
            divided += fewest == 0 and len(lower(f.program, types, {}).stages["flat"].statements) > 1
            leaves = [x.clone().requires_grad_() for x in given]
            value = f(*leaves)
            weights = torch.rand(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            finite = torch.where(value.isfinite(), value, 0)
            found.append([value.detach(), *torch.autograd.grad((finite * weights).sum(), leaves, allow_unused=True)])
        for x, y in zip(*found, strict=True):
            assert (x is None) == (y is None), text
            if x is not None:
                torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10, msg=text)
    assert divided > scaled(3)
