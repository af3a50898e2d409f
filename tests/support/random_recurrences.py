"""Random recurrences, with inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

NAMES = "tij"
SCHEDULES = {
    1: ((1,), (-1,)),
    2: ((1, 0), (0, 1), (-1, 0), (1, 1), (1, -1), (2, 1)),
    3: ((1, 0, 0), (0, 0, 1), (1, 1, 0)),
}


def shifted(v: str, by: int) -> str:
    return v if not by else f"{v} {'+' if by > 0 else '-'} {abs(by)}"


@st.composite
def recurrences(draw, smooth=False, gathers=False):
    """(source, arrays). A schedule is drawn first, then reads that suit it; `gathers`: some of them at lanes that
    integers among the arrays name."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    tau = draw(st.sampled_from(SCHEDULES[rank]))
    sizes = [draw(st.integers(1 if smooth else 0, 4)) for _ in range(rank)]
    variables = NAMES[:rank]
    random = np.random.default_rng(draw(st.integers(0, 999)))
    inputs: dict[str, np.ndarray] = {}

    def tensor(shape):
        name = f"A{len(inputs)}"
        inputs[name] = random.uniform(0.2, 1.0, size=shape) * random.choice([-1, 1], size=shape)
        return name

    def other():
        kind = draw(st.sampled_from(["same", "shifted", "lane", "scalar", "number", "index"]))
        if kind == "scalar":
            return f"{tensor(())}[]"
        if kind == "number":
            return draw(st.sampled_from(["0.5", "2", "0.25"]))
        if kind == "index":
            return f"(0.1 * {draw(st.sampled_from(variables))})"
        if kind == "lane":
            k = draw(st.integers(0, rank - 1))
            return f"{tensor((sizes[k],))}[{variables[k]}]"
        by = [draw(st.integers(-1, 1)) if kind == "shifted" else 0 for _ in variables]
        return f"{tensor(sizes)}[{', '.join(map(shifted, variables, by))}]"

    def offsets():
        found = draw(
            st.tuples(*[st.integers(-2, 2)] * rank).filter(
                lambda d: sum(a * b for a, b in zip(tau, d, strict=True)) >= 1
            )
        )
        return found

    def read():
        d = offsets()
        parts = []
        for k, v in enumerate(variables):
            index = shifted(v, -d[k])
            wraps = tau[k] == 0 and sizes[k] and draw(st.integers(0, 2)) == 0
            parts.append(f"({index}) % {sizes[k]}" if wraps else index)
        text = f"H[{', '.join(parts)}]"
        return f"pad({text}, {other()})" if draw(st.integers(0, 5)) == 0 else text

    def nested():
        free = [k for k in range(rank) if tau[k] == 0]
        if not free:
            steps = zip(variables, tau, strict=True)
            back = [shifted(v, -2 * c) + {1: " - k", -1: " + k"}.get(c // abs(c), "") for v, c in steps]
            return f"sum({tensor((2,))}[k] * H[{', '.join(back)}])"
        k = draw(st.sampled_from(free))
        d = offsets()
        if gathers and draw(st.booleans()):
            count = draw(st.sampled_from([1, 1, 0, 3]))
            at = f"A{len(inputs)}"
            inputs[at] = random.integers(-1, sizes[k] + 1, size=count)
            parts = [f"{at}[k]" if m == k else shifted(v, -d[m]) for m, v in enumerate(variables)]
            chosen = draw(st.sampled_from(["", f"{at}[k] == {variables[k]} ? "]))
            otherwise = " : 0.0" if chosen else ""
            return f"sum({chosen}H[{', '.join(parts)}] * {tensor((count,))}[k]{otherwise})"
        parts = ["k" if m == k else shifted(v, -d[m]) for m, v in enumerate(variables)]
        weight = f"{tensor((sizes[k], sizes[k]))}[k, {variables[k]}]"
        name = draw(st.sampled_from(["sum", "sum", "logsumexp", "max", "mean"]))
        operator = "*" if name in ("sum", "mean") else "+"
        bound = "" if draw(st.booleans()) else f"k != {variables[k]} ? "
        return f"{name}({bound}H[{', '.join(parts)}] {operator} {weight})"

    def term():
        kind = draw(st.sampled_from(["read", "read", "scaled", "nested", "other", "function", "two"]))
        if kind == "scaled":
            return f"{other()} * {read()}"
        if kind == "nested":
            return nested()
        if kind == "other":
            return other()
        if kind == "function":
            name = draw(st.sampled_from(["tanh", "sin", "sigmoid"] if smooth else ["tanh", "relu", "abs", "sigmoid"]))
            return f"{name}({read()} + {other()})"
        if kind == "two":
            name = draw(st.sampled_from(["logaddexp", "max", "min"]))
            return f"{name}({read()}, {other()})"
        return read()

    body = " + ".join([f"0.5 * {read()}", *(term() for _ in range(draw(st.integers(1, 2))))])
    guard = f"{other()} > 0 ? " if draw(st.integers(0, 4)) == 0 else ""
    init = draw(st.sampled_from(["", "value", "tensor", "sum"]))
    if init == "value":
        init = f" init {draw(st.sampled_from([variables[0], '1.5', f'0.1 * {variables[-1]} - 1']))}"
    elif init:
        k = draw(st.integers(0, rank - 1))
        init = (
            f" init {tensor((sizes[k] + 1,))}[{variables[k]} + 1]"
            if init == "tensor"
            else f" init sum({tensor((sizes[-1], 2))}[{variables[-1]}, {draw(st.sampled_from('km'))}])"
        )
    source = f"H[{', '.join(variables)} : {', '.join(map(str, sizes))}] = {guard}{body}{init};"
    declared = ", ".join(f"{name}[{', '.join(map(str, a.shape))}]" for name, a in inputs.items())
    return f"function ({declared}) -> (H) {{ {source} }}", list(inputs.values())
