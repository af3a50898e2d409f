"""Programs of chains, run by the NumPy interpreter of block programs, beside torch in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from support.block_interpreter import rounded, run_kernel

import tilec
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.codegen.visits import block_shapes, build_lists, visits_of
from tilec.backends.common.chains.recognise import Chained, chained
from tilec.ir.program import Program, Statement
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition

COSINE = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
    A[b, i, e : B, N, E] = Q[b, i, e] * rsqrt(sum(Q[b, i, d] * Q[b, i, d]));
    C[b, j, e : B, M, E] = K[b, j, e] * rsqrt(sum(K[b, j, d] * K[b, j, d]));
    S[b, i, j : B, N, M] = 10 * sum(A[b, i, e] * C[b, j, e]);
    L[b, i : B, N] = logsumexp(S[b, i, j]);
    O[b, i, f : B, N, F] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}"""


@dataclass(frozen=True)
class Attention:
    """`text` of a function of Q, K, V and `others`; `scores`: of float64 tensors S, rows, columns and the others, with
    -inf where nothing is to be seen; `weights` of scores instead of their softmax."""

    text: str
    scores: object
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    weights: object = None
    integers: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ("Q", "K", "V")


def softmax(body: str, guard: str = "", inputs: str = "") -> str:
    seen = f"{guard} ? " if guard else ""
    return f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]{inputs}) -> (O) {{
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
        X[b, i, j] = {body};
        L[b, i] = logsumexp({seen}X[b, i, j]);
        O[b, i, f] = sum({seen}exp(X[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""


def _hidden(s: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return s.masked_fill(~seen, -torch.inf)


PLAIN = "0.25 * S[b, i, j]"
VARIANTS = {
    "full": Attention(softmax(PLAIN), lambda s, i, j: s / 4),
    "causal": Attention(softmax(PLAIN, "i >= j"), lambda s, i, j: _hidden(s / 4, i >= j)),
    "window": Attention(softmax(PLAIN, "i >= j & i - j < 20"), lambda s, i, j: _hidden(s / 4, (i >= j) & (i - j < 20))),
    "ahead": Attention(softmax(PLAIN, "2 * i < 3 * j + 9"), lambda s, i, j: _hidden(s / 4, 2 * i < 3 * j + 9)),
    "alibi": Attention(
        softmax(f"{PLAIN} + Slope[b] * (j - i)", "i >= j", ", Slope[B]"),
        lambda s, i, j, slope: _hidden(s / 4 + slope[:, None, None] * (j - i), i >= j),
        (("Slope", ("B",)),),
    ),
    "slopes": Attention(
        softmax(f"{PLAIN} + 0.03125 * Slope[b] * (j - i)", "i >= j", ", Slope[B]"),
        lambda s, i, j, slope: _hidden(s / 4 + slope[:, None, None] / 32 * (j - i), i >= j),
        (("Slope", ("B",)),),
        wrt=("Q", "K", "V", "Slope"),
    ),
    "bias": Attention(
        softmax(f"{PLAIN} + Bias[i, j]", "", ", Bias[N, M]"),
        lambda s, i, j, bias: s / 4 + bias,
        (("Bias", ("N", "M")),),
        wrt=("Q", "K", "V", "Bias"),
    ),
    "relative": Attention(
        softmax(f"{PLAIN} + R[i - j + M]", "", ", R[P]"),
        lambda s, i, j, r: s / 4 + r[i - j + s.shape[2]],
        (("R", ("P",)),),
    ),
    "capped": Attention(
        softmax("3 * tanh(S[b, i, j] / 3)", "i >= j"), lambda s, i, j: _hidden(3 * (s / 3).tanh(), i >= j)
    ),
    "documents": Attention(
        softmax(PLAIN, "D[b, i] == C[b, j]", ", D[B, N], C[B, M]"),
        lambda s, i, j, d, c: _hidden(s / 4, d[:, :, None] == c[:, None]),
        (("D", ("B", "N")), ("C", ("B", "M"))),
        integers=("D", "C"),
    ),
    "sigmoid": Attention(
        """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
            S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
            O[b, i, f] = sum(i >= j ? V[b, j, f] / (1 + exp(3 - S[b, i, j] / 4)));
        }""",
        lambda s, i, j: _hidden(s / 4, i >= j),
        weights=lambda x: torch.sigmoid(x - 3),
    ),
    "linear": Attention(
        """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
            S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
            O[b, i, f] = sum(i >= j ? S[b, i, j] * V[b, j, f]);
        }""",
        lambda s, i, j: s.masked_fill(i < j, 0),
        weights=lambda x: x,
    ),
    "divided": Attention(
        """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
            S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]) / 4;
            W[b, i, j] = exp(S[b, i, j] - max(S[b, i, l]));
            O[b, i, f] = sum(W[b, i, j] / sum(W[b, i, l]) * V[b, j, f]);
        }""",
        lambda s, i, j: s / 4,
    ),
}


@dataclass
class Ran:
    """Values by name, the outputs of each kernel that ran, and the lengths of the lists of blocks."""

    values: dict[str, np.ndarray]
    kernels: list[tuple[str, ...]] = field(default_factory=list)
    visited: list[np.ndarray] = field(default_factory=list)


def inputs_of(a: Attention, dtype: str, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    g = np.random.default_rng(seed)
    shapes = {"Q": ("B", "N", "E"), "K": ("B", "M", "E"), "V": ("B", "M", "F"), **dict(a.others)}
    sizes = {**sizes, "P": sizes["N"] + sizes["M"]}
    made = {n: rounded(g.standard_normal([sizes[d] for d in s]), dtype) for n, s in shapes.items()}
    made.update((n, g.integers(0, 3, [sizes[d] for d in dict(a.others)[n]]).astype(np.int32)) for n in a.integers)
    return made


def types_of(a: Attention, dtype: str, arrays: dict[str, np.ndarray]) -> dict[str, TensorType]:
    return {n: TensorType(x.shape, "int32" if n in a.integers else dtype) for n, x in arrays.items()}


def run(
    program: Program,
    types: dict[str, TensorType],
    arrays: dict[str, np.ndarray],
    tiling: Tiling,
    listed: bool = True,
) -> Ran:
    """The program with its chains interpreted, everything else in float32 by torch. `listed`: kernels walk lists of
    blocks where there are such."""
    lowering = lower(program, types, {})
    found = chained(lowering.stages["flat"], lowering.types)
    ran = Ran(dict(arrays))
    done: set[str] = set()
    for s in found.program.statements:
        if s.output in done:
            continue
        if s.output in found.kernels:
            kernel = found.kernels[s.output]
            visits = visits_of(kernel, found.types) if listed else None
            if visits is not None:
                lists = build_lists("lists", visits, kernel, found.types, tiling)
                empty = {n: np.empty(s, np.int32) for n, s in block_shapes(visits, kernel, tiling).items()}
                ran.values.update(run_kernel(lists, {**ran.values, **empty}))
                ran.visited.append(ran.values[visits.counts])
            made = build_kernel("chain", kernel, found.types, tiling, visits)
            shapes = {o: np.empty(found.types[o].shape, np.float32) for o in kernel.outputs}
            ran.values.update(run_kernel(made, {**ran.values, **shapes}))
            ran.kernels.append(kernel.outputs)
            done |= {m.output for m in kernel.statements}
        else:
            ran.values[s.output] = _alone(s, found, ran.values)
    return ran


def _alone(s: Statement, found: Chained, values: dict[str, np.ndarray]) -> np.ndarray:
    from tilec.ir.evaluate import evaluate
    from tilec.ir.program import Input, reads

    names = [n for n in reads(s) if n in values]
    program = Program(None, tuple(Input(n, found.types[n].shape) for n in names), (s.output,), (s,))
    (value,) = evaluate(program, [values[n] for n in names])
    return rounded(np.asarray(value), found.types[s.output].dtype)


def reference(
    a: Attention, arrays: dict[str, np.ndarray], cotangent: np.ndarray
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The value and the gradients in float64."""
    t = {n: torch.tensor(x).double() if n not in a.integers else torch.tensor(x) for n, x in arrays.items()}
    for n in a.wrt:
        t[n].requires_grad_()
    s = t["Q"] @ t["K"].mT
    i, j = torch.arange(s.shape[1])[:, None], torch.arange(s.shape[2])
    scores = a.scores(s, i, j, *(t[n] for n, _ in a.others))  # type: ignore[operator]
    if a.weights is not None:
        w = a.weights(scores)  # type: ignore[operator]
    else:
        w = torch.softmax(scores, -1)
        w = torch.where((scores == -torch.inf).all(-1, keepdim=True), torch.zeros_like(w), w)
    o = w @ t["V"]
    return o, list(torch.autograd.grad(o, [t[n] for n in a.wrt], torch.tensor(cotangent).double()))


def both_ways(a: Attention, dtype: str, sizes: dict[str, int], tiling: Tiling):
    """Value and gradients by interpreted kernels and by torch, and the kernels of each pass."""
    arrays = inputs_of(a, dtype, sizes)
    types = types_of(a, dtype, arrays)
    program = tilec.compile(a.text).program
    parts = partition(program, a.wrt, types, {}, True)
    forward = run(parts.forward or program, types, arrays, tiling)
    cotangent = rounded(np.random.default_rng(1).standard_normal(forward.values["O"].shape), dtype)
    given = {n: forward.values[n] for n in parts.backward.values}
    given |= {n: arrays[n] for n in parts.backward.shapes} | {"DO": cotangent}
    backward = run(parts.backward.program, dict(parts.backward.types), given, tiling)
    mine = [forward.values["O"], *(backward.values[o] for o in parts.backward.program.outputs)]
    value, gradients = reference(a, arrays, cotangent)
    return mine, [x.detach().numpy() for x in (value, *gradients)], forward.kernels, backward.kernels


def turn_off(monkeypatch) -> None:
    """Let statements that a chain would take go the way of those that it does not."""
    off = lambda program, types: Chained(program, types, {})  # noqa: E731
    monkeypatch.setattr("tilec.backends.triton.fusion.groups.chained", off)
    monkeypatch.setattr("tilec.pipeline.widen_statistics", lambda program, inputs: program)
