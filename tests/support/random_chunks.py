"""Random programs around recurrences over time, long enough to fall into chunks, with inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def steps(n: int) -> str:
    return "t" if not n else f"t {'+' if n > 0 else '-'} {abs(n)}"


@st.composite
def timed_programs(draw):
    """(source, arrays): one or two recurrences, what they are made of, and outputs made of them."""
    length, lanes = draw(st.integers(12, 32)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    first = draw(st.booleans())  # does time stand before the lanes?
    ways = st.sampled_from([1, 1, 1, -1])
    inputs: dict[str, np.ndarray] = {}
    statements: list[str] = []
    means: list[str] = []
    sizes = f"{length}, {lanes}" if first else f"{lanes}, {length}"

    def place(time: str, lane: str = "i") -> str:
        return f"[{time}, {lane}]" if first else f"[{lane}, {time}]"

    def tensor(*shape: int) -> str:
        name = f"A{len(inputs)}"
        inputs[name] = random.uniform(0.2, 0.9, size=shape) * random.choice([-1, 1], size=shape)
        return name

    def timed(n: int = length) -> str:
        return tensor(n, lanes) if first else tensor(lanes, n)

    def feed(known: list[str]) -> str:
        kind = draw(st.sampled_from(["input", "shifted", "longer", "lane", "number", "time", "known", "made"]))
        by = draw(st.integers(-2, 2))
        if kind == "known" and means and draw(st.booleans()):
            return means[0]
        if kind == "known" and known:
            return f"{draw(st.sampled_from(known))}{place(steps(by))}"
        if kind == "made":
            name = f"B{len(statements)}"
            statements.append(f"{name}{place('t')[:-1]} : {sizes}] = sin({timed()}{place(steps(by))});")
            return f"{name}{place(steps(draw(st.integers(-1, 1))))}"
        if kind == "longer":
            return f"{timed(length + draw(st.integers(1, 3)))}{place(steps(abs(by)))}"
        made = {"lane": lambda: f"{tensor(lanes)}[i]", "number": lambda: "0.5", "time": lambda: "sin(0.3 * t)"}
        return made.get(kind, lambda: f"{timed()}{place(steps(by if kind == 'shifted' else 0))}")()

    def read(name: str, way: int) -> str:
        lane = draw(st.sampled_from(["i", "i", f"(i - 1) % {lanes}", "i - 1"]))
        return f"{name}{place(steps(-way * draw(st.sampled_from([1, 1, 1, 2, 3]))), lane)}"

    def recurrence(name: str, known: list[str]) -> None:
        way = draw(ways)
        terms = [f"{feed(known)} * {read(name, way)}"]
        kind = draw(st.sampled_from(["none", "none", "sum", "logsumexp", "two"]))
        if kind in ("sum", "logsumexp"):
            other = f"{tensor(lanes, lanes)}[j, i]"
            operator = "*" if kind == "sum" else "+"
            terms.append(f"0.3 * {kind}({name}{place(steps(-way), 'j')} {operator} {other})")
        elif kind == "two":
            terms.append(f"0.4 * {read(name, way)}")
        terms.append(feed(known))
        guard = draw(st.sampled_from(["", "", f"{feed(known)} > 0 ? "]))
        inits = ["", " init sin(0.5 * t + i)", " init H0[i]", " init H1[t + 3, i]"]
        init = draw(st.sampled_from(inits))
        if "H0" in init:
            init = init.replace("H0", tensor(lanes))
        if "H1" in init:
            init = init.replace("H1", tensor(3, lanes))
        within = draw(st.sampled_from(["", "", "", f", {steps(-2)} < {length - 3}"]))
        statements.append(f"{name}{place('t')[:-1]} : {sizes}] = {guard}tanh({' + '.join(terms)}){within}{init};")

    recurrence("H", [])
    known = ["H"]
    if draw(st.booleans()):
        if draw(st.integers(0, 3)) == 0:
            statements.append(f"M[i : {lanes}] = mean(H{place('t')});")
            means.append("M[i]")
        recurrence("G", known)
        known.append("G")
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        k, h = len(outputs), draw(st.sampled_from(known))
        name = f"Y{k}"
        at = draw(st.integers(0, length - 1))
        body = f"{h}{place(steps(draw(st.integers(-1, 1))))} * {feed(known)}"
        made = {
            "last": f"{name}[i] = {h}{place(str(draw(st.sampled_from([0, length - 1]))))};",
            "at": f"{name}[i : {lanes}] = {h}{place(str(at))} * {h}{place(str(length - 1))};",
            "sum": f"{name}[i : {lanes}] = sum({body});",
            "all": f"{name} = sum({body});",
            "log": f"{name}[i : {lanes}] = logsumexp({body});",
            "max": f"{name} = max({body});",
            "mean": f"{name}[i : {lanes}] = mean({body});",
            "each": f"{name}[t : {length}] = +({body});",
            "spread": f"{name} = sum(({h}{place('t')} - {name}M[i]) * ({h}{place('t')} - {name}M[i]));",
        }
        kind = draw(st.sampled_from(list(made)))
        if kind == "spread":
            statements.append(f"{name}M[i : {lanes}] = mean({h}{place('t')});")
        statements.append(made[kind])
        outputs.append(name)
    declared = ", ".join(f"{name}[{', '.join(map(str, a.shape))}]" for name, a in inputs.items())
    text = "\n    ".join(statements)
    return f"function ({declared}) -> ({', '.join(outputs)}) {{\n    {text}\n}}", list(inputs.values())
