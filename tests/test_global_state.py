"""What a program computes depends on nothing that torch keeps for the whole process."""

from __future__ import annotations

import contextlib

import pytest
import torch

import tilec


@contextlib.contextmanager
def setting(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def deterministic(on: bool):
    return setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, on)


STATES = {
    "default dtype float16": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float16),
    "default dtype float64": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default device": lambda: setting(lambda: None, torch.set_default_device, "meta"),
    "a device's context": lambda: torch.device("meta"),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": lambda: deterministic(True),
    "one thread": lambda: setting(torch.get_num_threads, torch.set_num_threads, 1),
    "three threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 3),
}
X, W, H = (torch.float32, 5, 4), (torch.float32, 4, 5), (torch.bfloat16, 9)
PLACES = (torch.int64, 5)
PROGRAMS = {  # and what they are given: element type and shape, or a number
    "random numbers": ("function (X[N, M], S[]) -> (Y) { Y = rand(S) < 0.5 ? X : randn(S); }", X, 7),
    "draws by counter": ("function (X[N, M], S[]) -> (Y) { Y[i, j : N, M] = rand(S, 7*i + j) * X[i, j]; }", X, 7),
    "literals": ("function (X[N, M]) -> (Y, Z) { Y = exp(2.0) * X; Z = sqrt(3.5) / 3; }", X),
    "integers made floating": (
        "function (I[N]) -> (Y, Z) { Y[] = mean(I[i]); Z[i : N] = sqrt(I[i]) + 0.5 * i; }",
        PLACES,
    ),
    "a product": ("function (X[N, M], W[M, N]) -> (Y) { Y[i, j : N, N] = +(X[i, k] * W[k, j]); }", X, W),
    "a log product": ("function (X[N, M], W[M, N]) -> (Y) { Y[i, j : N, N] = logsumexp(X[i, k] + W[k, j]); }", X, W),
    "a convolution": ("function (X[N, M], K[3]) -> (Y) { Y[n, x : N, M] = +(X[n, x + k - 1] * K[k]); }", X, (X[0], 3)),
    "a recurrence": ("function (X[N, M]) -> (Y) { Y[t, i : N, M] = tanh(0.5 * Y[t - 1, i] + X[t, i]); }", X),
    "a turn": ("function (X[N, M]) -> (Y) { Y[t, i : N, M] = 0.5 * Y[t - 1, (i + 1) % M] + X[t, i] init i; }", X),
    "a scan": ("function (X[N, M]) -> (Y) { Y[i, j : N, M] = +(X[k, j]), i - k < N; }", X),
    "a scan of maxima": ("function (X[N, M]) -> (Y) { Y[i, j : N, M] = >(X[k, j]), k - i < N; }", X),
    "a scatter": ("function (X[N, M], I[N]) -> (Y) { Y[I[i], j : 3, M] = +(X[i, j]); }", X, PLACES),
    "scattered products": ("function (X[N, M], I[N]) -> (Y) { Y[I[i], j : 3, M] = *(X[i, j]); }", X, PLACES),
    "a gather": ("function (X[N, M], I[N]) -> (Y) { Y[i, j : N, M] = X[I[i], j], i < 3 default X; }", X, PLACES),
    "argmax": ("function (X[N, M]) -> (Y, Z) { Y[i : N] = argmax(X[i, j]); Z[i : N] = any(X[i, j] > 1); }", X),
    "16 bits": ("function (X[N], W[N]) -> (Y) { Y[] = sum(X[j] * W[j]) / 3; }", H, H),
    "numbers alone": ("function (S[], T[]) -> (Y) { Y = S * 0.5 + T; }", 2.5, 3),
    "nothing": ("function () -> (Y) { Y[i : 5] = i * 0.5; }",),
}


def given(specs) -> list:
    generator = torch.Generator().manual_seed(0)
    made: list = []
    for spec in specs:
        if not isinstance(spec, tuple):
            made.append(spec)
        elif spec[0] is torch.int64:
            made.append(torch.arange(spec[1]) % 3)
        else:
            made.append(torch.randn(spec[1:], generator=generator, dtype=torch.float64).to(spec[0]))
    return made


def outcomes(source: str, inputs: list) -> list[torch.Tensor]:
    """The outputs, those of a recorded call and its gradients where torch records, and those of the gradient."""
    f = tilec.compile(source)
    results = called(f, inputs)
    floating = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if floating and any(r.is_floating_point() for r in results):
        cotangents = [r.clone() for r in results]
        found = list(called(f.grad(), [*inputs, *cotangents]))
        if torch.is_grad_enabled():
            leaves = [t.clone().requires_grad_() if any(t is x for x in floating) else t for t in inputs]
            recorded = called(f, leaves)
            found += [r.detach() for r in recorded]
            pairs = [(r, c) for r, c in zip(recorded, cotangents, strict=True) if r.requires_grad]
            asked = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
            found += torch.autograd.grad([r for r, _ in pairs], asked, [c for _, c in pairs])
        else:
            found += [r.clone() for r in results] + found
        results = [*results, *found]
    return results


def called(f, inputs) -> list[torch.Tensor]:
    results = f(*inputs)
    return [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(4)
def test_every_state_gives_the_same_bits(name):
    source, *specs = PROGRAMS[name]
    inputs = given(specs)
    wanted = outcomes(source, inputs)
    for state, enter in STATES.items():
        with enter():
            found = outcomes(source, inputs)
        for a, b in zip(found, wanted, strict=True):
            assert (a.dtype, a.device) == (b.dtype, b.device), state
            if "thread" in state and "convolution" in name:  # torch's own kernel divides its sums among threads
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            else:
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)), state
