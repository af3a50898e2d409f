"""Random Tile programs with inputs: valid by construction, small, and exact where they can be.

A program is drawn statement by statement. What is known of each tensor (shape, category, whether its values are small
integers held exactly) steers what may be done with it: comparisons, truncation and argmax read exact values only, so
that a last-place difference between two correct implementations never shows as a different answer.
"""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
from hypothesis import Phase
from hypothesis import strategies as st
from support.expressions import AGGREGATIONS, Expressions
from support.inputs import LARGE, Case, Known, Options, Scope, Text, rank, row_of

__all__ = ["AGGREGATIONS", "PHASES", "Case", "Options", "programs"]

# programs are small as they are drawn; making a failing one smaller takes minutes, so it is asked for
PHASES = tuple(Phase) if os.environ.get("TILEC_RANDOM_SHRINK") else (Phase.explicit, Phase.generate)
TAPE = 600  # bytes of choices; most programs need fewer
SYMBOLS = {"sum": "+", "prod": "*", "max": ">", "min": "<", "assign": "="}


class Writer(Expressions):
    """Draws one program, statement by statement."""

    # statements

    def contraction(self) -> None:
        category = "f" if self.options.smooth or self.options.special else self.pick("ffffib")
        aggregation = self.pick(AGGREGATIONS[category])
        self.pending = []
        variables = ["i", "j", "k", "l"][: self.integer(1, 3 + self.chance(30))]
        scope = Scope(list(variables))
        outputs, sizes, implied = self.left(scope, aggregation)
        if aggregation == "assign":
            scope.variables = [v for v in variables if v in scope.used]
        aggregation, body = self.aggregated(scope, aggregation, category, False)
        constraints = self.constraints(scope, outputs)
        if implied:
            found = [scope.bare.get(v, set()) for v in outputs]
            implied = all(len(f) == 1 for f in found)
            if implied:
                sizes = [next(iter(f)) for f in found]
                self.features.add("sizes left out")
        default = self.default(tuple(sizes), category, aggregation)
        name = f"T{len(self.outputs)}"
        texts = "" if implied else f" : {', '.join(self.size_text(n) for n in sizes)}" if sizes else ""
        left = f"{name}[{', '.join(outputs)}{texts}]"
        word = SYMBOLS.get(aggregation, aggregation) if self.chance(60) else aggregation
        right = f"{word}({body})"
        if aggregation == "assign" and outputs and "?" not in body.text and self.chance(50):
            right = body.text
        self.features |= {aggregation, "contraction"}
        tail = "".join(f", {c}" for c in constraints) + default + (" no_defract" if self.chance(5) else "")
        self.statements.append(f"{left} = {right}{tail};")
        exact, magnitude = self._outcome(aggregation, body)
        if default:
            magnitude = max(magnitude, self.tensors[default.split()[-1]].magnitude)
            exact = exact and self.tensors[default.split()[-1]].exact
        category = body.category if aggregation == "assign" else category
        self.outputs.append(name)
        self.tensors[name] = Known(tuple(sizes), category, exact, magnitude)

    def left(self, scope: Scope, aggregation: str) -> tuple[list[str], list[int], bool]:
        """Output index, sizes, and whether the sizes may perhaps be left out."""
        count = min(self.pick((1, 2, 1, 2, 0, 3)), len(scope.variables))
        sizes = [self.size() for _ in range(count)]
        form = self.integer(0, 99)
        if form < 65 or aggregation == "assign" and form < 80:
            if aggregation == "assign" and not count:
                count, sizes = 1, [self.size()]
            outputs = scope.variables[:count]
            for v in outputs:
                scope.used.setdefault(v)
                scope.rows.append({v: Fraction(1)})
            return outputs, sizes, self.chance(25)
        self.features.add("scattered output")
        dynamic = aggregation in ("sum", "prod", "max", "min") and form >= 90
        inner = Scope(scope.variables, used=scope.used, rows=scope.rows, dynamic=dynamic)
        return [self.index(inner, n) for n in sizes], sizes, False

    def constraints(self, scope: Scope, outputs: list[str]) -> list[str]:
        """Some of the writer's fancy, and those that bound what is still unbounded."""
        result = list(dict.fromkeys(self.pending))
        used = list(scope.used)
        if used and self.chance(20):
            v, w = self.pick(used), self.pick(used)
            a, b = self.pick((1, 1, 2, -1)), self.pick((0, 1, -1, 2))
            d = self.pick(("", "", "/2"))
            bound = self.pick((str(self.integer(0, 5)), "5/2", self.size_text(3)))
            result.append(f"({a}*{v} {'-' if b < 0 else '+'} {abs(b)}*{w} + {self.integer(0, 2)}){d} < {bound}")
            row = row_of((v, Fraction(a)), (w, Fraction(b)))
            scope.rows.append(row)
            self.features.add("constraint")
        if used and self.chance(35):
            v = used[0] if used[0] in outputs else self.pick(used)
            w, n = self.pick(used), self.integer(1, 4)
            form = self.pick((f"{v}", f"{v} - {w}", f"{n} - {v}", f"{w} - {v} + 1", f"{v} - 1"))
            if form != f"{v} - {v}":
                result.append(f"{form} < {self.pick((str(n), self.size_text(3)))}")
                self.features.add("second constraint")
        for v in used:
            if rank([*scope.rows, {v: Fraction(1)}]) > rank(scope.rows):
                scope.rows.append({v: Fraction(1)})
                result.append(f"{v} < {self.integer(1, 3)}")
        return result

    def default(self, sizes: tuple[int, ...], category: str, aggregation: str) -> str:
        if not self.chance(12) or aggregation in ("any", "all", "argmax", "argmin"):
            return ""
        self.features.add("default")
        fit = [name for name, t in self.tensors.items() if t.shape == sizes and t.category == category]
        return f" default {self.pick(fit) if fit else self.new_input(category, sizes)}"

    def elementwise(self) -> None:
        category = "f" if self.options.smooth or self.options.special else self.pick("fffib")
        if not self.tensors or self.chance(30):
            self.new_input(category, tuple(self.size() for _ in range(self.integer(0, 3))))
        self.shape, self.pending = (), []
        body = self.expression(None, category, 3)
        if self.shape == () and category in "fi":
            other = self.whole(category, False)
            body = Text(f"({body}) + {other}", category, body.exact and other.exact, body.magnitude + other.magnitude)
        constraints = "".join(f", {c}" for c in dict.fromkeys(self.pending))
        self.features.add("elementwise")
        self.assign(f"{body}{constraints}", Known(self.shape, body.category, body.exact, body.magnitude))

    def assign(self, text: str, known: Known) -> None:
        name = f"T{len(self.outputs)}"
        self.statements.append(f"{name} = {text};")
        self.outputs.append(name)
        self.tensors[name] = known

    def structural(self) -> None:
        category = "f" if self.options.smooth else self.pick("ffi")
        kind = self.pick(("reshape", "gather", "scatter", "simple_reduce"))
        self.features.add(kind)
        if kind == "reshape":
            name = self.tensor(category, False)
            known = self.tensors[name]
            total = int(np.prod(known.shape))
            shape = self.pick(((total,), (1, total), (total, 1), known.shape[::-1], (2, total // 2), ()))
            if int(np.prod(shape)) != total or not shape:
                shape = (total,)
            sizes = ", ".join(self.size_text(n) for n in shape)
            self.assign(f"reshape({name}, {sizes})", Known(shape, category, known.exact, known.magnitude))
        elif kind == "gather":
            name = self.tensor(category, False, (1, 2, 3))
            known = self.tensors[name]
            indices = self.gather_tensor(known.shape[0])
            shape = (*self.tensors[indices].shape, *known.shape[1:])
            self.assign(f"gather({name}, {indices})", Known(shape, category, known.exact, known.magnitude))
        elif kind == "scatter":
            name = self.tensor(category, False, (1, 2))
            known = self.tensors[name]
            indices = self.gather_tensor(known.shape[0])
            lead = self.tensors[indices].shape
            rest = tuple(self.size() for _ in range(self.integer(0, 1)))
            source = self.new_input(category, lead + rest)
            like = self.new_input("f", (self.size(), *rest))
            self.assign(f"scatter({source}, {indices}, {like})", Known(self.tensors[like].shape, category, True, 64))
        else:
            name = self.tensor(category, False, (1, 2, 3))
            known = self.tensors[name]
            target = tuple(1 if self.chance(40) else n for n in known.shape)[self.integer(0, 1) :]
            like = self.new_input("f", target)
            exact = known.exact and known.magnitude < LARGE / 64
            self.assign(f"simple_reduce({name}, {like})", Known(target, category, exact, known.magnitude * 64))

    def keyed(self) -> None:
        """Rows by the matrix of their key, or sums of products at keys."""
        rows = ["t", "k"][: self.pick((1, 1, 2))]
        size = {v: self.size() for v in (*rows, "c", "o")}
        count = self.size()
        place = self._element("i", rows, size, (-1, count + 1))
        last = max(count - 1, 0)
        key = self.pick(
            (place, place, place, f"{place} + 1", f"({place} + t) % {last + 1}", f"clamp({place}, 0, {last})")
        )
        size[key] = count
        summed = self.chance(35)
        factors = [(*rows, "c"), (*rows, "o") if summed else (key, "c", "o")]
        factors += [f for f in (tuple(rows), (key, "o"), ("o",), (rows[0],)) if self.chance(15)]
        before = {*self.arrays}
        body = " * ".join(self._element("f", f, size) for f in factors)
        if self.chance(80):  # most of one type
            self.arrays |= {n: a.astype("float64") for n, a in self.arrays.items() if n not in before}
        guard = self.pick(("t > 0 ? ", "c < 2 ? ", f"{place} < 2 ? ")) if self.chance(15) else ""
        outputs = [key, "c", "o"] if summed else [*rows[: 1 if self.chance(30) else 2], "o"]
        if self.chance(30):
            outputs.reverse()
        shape = tuple(size[v] for v in outputs)
        name, sizes = f"T{len(self.outputs)}", ", ".join(map(self.size_text, shape))
        self.statements.append(f"{name}[{', '.join(outputs)} : {sizes}] = +({guard}{body});")
        self.outputs.append(name)
        magnitude = 4.0 ** len(factors) * int(np.prod([n for v, n in size.items() if v != key]))
        self.tensors[name] = Known(shape, "f", not (self.options.smooth or self.options.special), magnitude)
        self.features.add("keyed product")

    def _element(self, category: str, index, size: dict[str, int], values: tuple[int, int] | None = None) -> str:
        """One of a new input, whose axes may stand in the other order."""
        index = list(reversed(index) if self.chance(30) else index)
        return f"{self.new_input(category, tuple(size[v] for v in index), values)}[{', '.join(index)}]"

    def program(self) -> Case:
        for _ in range(self.integer(1, self.options.statements)):
            if self.chance(8):
                self.size_input()
            if self.chance(8):
                self.size_statement()
            getattr(self, self.pick(self.options.kinds))()
        returned = [o for o in self.outputs if o == self.outputs[-1] or self.chance(50)]
        inputs = ", ".join(self.declared.values())
        body = "\n".join(f"    {s}" for s in self.statements)
        source = f"function ({inputs}) -> ({', '.join(returned)}) {{\n{body}\n}}\n"
        return Case(source, dict(self.arrays), frozenset(self.features))


FAMILIES = {
    "mixed": Options(),
    "contractions": Options(kinds=("contraction",), statements=2),
    "elementwise": Options(kinds=("elementwise", "structural", "contraction"), statements=5),
    "smooth": Options(smooth=True),
    "special": Options(special=True),
    "chains": Options(statements=8),
    "quasi-affine": Options(quasi_affine=True, statements=2),
    "keyed": Options(kinds=("keyed", "keyed", "elementwise"), statements=3),
}


def programs(options: Options) -> st.SearchStrategy[Case]:
    """Valid programs with inputs. One may still be refused for two writers (WriteConflict) when its shapes are known.

    All choices are one draw: Hypothesis would repeat whole programs where it can copy parts of an example.
    """
    return st.binary(min_size=TAPE, max_size=TAPE).map(lambda tape: Writer(tape, options).program())
