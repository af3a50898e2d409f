"""Sums of exponentials whose weight repeats its elements, as the gradient of a sum over the result does."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.runtime.compiled import explained

LOG_PRODUCT = "function (A[I, K], X[K, J]) -> (O) { O[i, j : I, J] = logsumexp(A[i, k] + X[k, j]); }"


@pytest.mark.parametrize("sizes", [(77, 129, 33), (256, 128, 64), (432, 64, 64), (256, 64, 48)])
@pytest.mark.parametrize("strides", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.covering
def test_repeated_weights(sizes: tuple[int, int, int], strides: tuple[int, int]) -> None:
    """They are read once, not at one address throughout a block, which Triton 3.6 compiles at few sizes."""
    i, k, j = sizes
    kernels = gradient_kernels(sizes, [(k, 1), (j, 1), strides])
    assert len(kernels) == 1
    still = {axis for axis, stride in zip(("row", "col"), strides, strict=True) if not stride}
    reads = [line for line in kernels[0].splitlines() if "tl.load(DO" in line]
    assert reads and not any("* 0" in line for line in reads), still


@pytest.mark.parametrize("sizes", [(77, 129, 33), (256, 128, 64)])
@pytest.mark.parametrize("strides", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.covering
def test_repeated_operands(sizes: tuple[int, int, int], strides: tuple[int, int]) -> None:
    """A weight that repeated elements are in keeps the layout that it is computed in, without which Triton 3.6 does not
    compile its kernel at most sizes."""
    i, k, j = sizes
    (text,) = gradient_kernels(sizes, [strides, (j, 1), (j, 1)])
    assert "expand_dims(weight, 2)" in text
    (text,) = gradient_kernels(sizes, [(k, 1), (j, 1), (j, 1)])
    assert "expand_dims" not in text


def gradient_kernels(sizes: tuple[int, int, int], strides: list[tuple[int, int]]) -> list[str]:
    """The texts of the products that a log product's gradients are, for inputs and a cotangent of these strides."""
    i, k, j = sizes
    gradient = tilec.compile(LOG_PRODUCT, backend="triton").grad()
    lowered = gradient.lower(tilec.spec((i, k)), tilec.spec((k, j)), tilec.spec((i, j)), target="sm_90")
    plan = lowered._executable._make_plan(strides, Setting(), {})
    return [str(launch.file.text) for launch in plan.launches() if "_weighted_dot" in launch.kernel]


def test_what_does_not_compile_is_told_of_launches_in_one() -> None:
    specs = tilec.spec((64, 64)), tilec.spec((64, 64)), tilec.spec((64, 64))
    plan = tilec.compile(LOG_PRODUCT, backend="triton").grad().lower(*specs, target="sm_90")._executable.plan
    launch = next(launch for launch in plan.launches() if len(launch.statements) > 1 and launch.file.own)
    message = str(explained(launch, RuntimeError("reason")))
    assert all(f"{name}[" in message for name in launch.statements)
    try:
        raise RuntimeError("at a call:\n    ^") from TypeError("the cause")
    except RuntimeError as error:
        assert "does not compile: the cause" in str(explained(launch, error))


@pytest.mark.parametrize("lane", ["n", "(n - 1) % N"])
@pytest.mark.parametrize("strides", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.covering
def test_recurrences_with_repeated_cotangents_compile(lane: str, strides: tuple[int, int]) -> None:
    """Their steps have tests of their own beside those of a block's tails."""
    source = f"function (X[T, N], W[N]) -> (H) {{ H[t, n : T, N] = tanh(H[t - 1, {lane}] * W[n] + X[t, n]); }}"
    gradient = tilec.compile(source, backend="triton").grad()
    lowered = gradient.lower(tilec.spec((3, 2)), tilec.spec((2,)), tilec.spec((3, 2)), target="sm_90")
    executable = lowered._executable
    executable._shown[Setting()] = executable._make_plan([(2, 1), (1,), strides], Setting(), {})
    assert lowered.asm("ptx")


@pytest.mark.parametrize(("strides", "apart"), [((64, 1), False), ((1, 256), True)])
def test_transposed_cotangents(strides: tuple[int, int], apart: bool) -> None:
    """A weight of tensors that memory runs along differently keeps the layout that it is computed in, without which
    Triton 3.6 does not compile its kernel."""
    (text,) = gradient_kernels((256, 64, 64), [(64, 1), (64, 1), strides])
    assert ("expand_dims(weight, 2)" in text) is apart
