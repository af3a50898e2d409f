"""Random indices, expressions and nested aggregations."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from support.inputs import LARGE, Inputs, Options, Scope, Text, rank, row_of

AGGREGATIONS = {
    "f": ("sum", "sum", "sum", "sum", "prod", "max", "min", "assign", "logsumexp", "mean"),
    "i": ("sum", "sum", "prod", "max", "min", "assign", "argmax", "argmin"),
    "b": ("any", "all", "max", "min", "assign"),
}
SMOOTH = (
    "sin({})", "cos({})", "tanh({})", "sigmoid({})", "atan({})", "silu({})", "softplus({})", "gelu({})", "erf({})",
    "expm1(tanh({}))", "exp(-({0} * {0}))", "sqrt(1 + {0} * {0})", "log(2 + {0} * {0})", "rsqrt(1 + {0} * {0})",
    "log1p({0} * {0})", "recip(2 + {0} * {0})", "asin(0.5 * tanh({}))", "acos(0.5 * tanh({}))", "sinh(tanh({}))",
    "cosh(tanh({}))", "tan(tanh({}))", "pow({}, 2)", "pow(1 + {0} * {0}, 0.5)", "pow(2, tanh({}))",
)  # fmt: skip
EXACT = ("relu({})", "abs({})", "sign({})", "ident({})", "floor({})", "ceil({})", "round(0.5 * {})", "floor({} / 2)")
SMOOTH_PAIRS = ("logaddexp({}, {})", "atan2({}, 3 + abs({}))", "({0} / (2 + {1} * {1}))")


class Expressions(Inputs):
    """Writes expressions, which make the inputs that they want to read."""

    # index expressions

    def index(self, scope: Scope, n: int) -> str:
        """An index into a dimension of size n."""
        text, row, bare = self._index(scope, n)
        if row is not None and scope.constrains:
            scope.rows.append(row)
        for v in row or ():
            scope.used.setdefault(v)
        if bare is not None:
            scope.bare.setdefault(bare, set()).add(n)
        return text

    def _variable(self, scope: Scope) -> str:
        fresh = [v for v in scope.variables if v not in scope.used]
        v = fresh[0] if fresh and self.chance(70) else self.pick(scope.variables)
        scope.used.setdefault(v)
        return v

    def _index(self, scope: Scope, n: int) -> tuple[str, dict[str, Fraction] | None, str | None]:
        if not scope.variables or self.chance(3):
            return str(self.integer(-1, n) if self.chance(20) else self.integer(0, max(0, n - 1))), {}, None
        shape = self.integer(0, 99)
        if self.options.quasi_affine and self.chance(50):
            shape = self.integer(88, 94)
        if shape >= 95 and scope.dynamic:
            self.features.add("gather")
            access = self.access(scope, self.gather_tensor(n))
            if self.chance(20):  # inside wherever the element is, or the same for all elements
                return self.pick((f"{access} % {max(1, n)}", f"clamp({access}, 0, {n - 1})", f"0*{access}")), None, None
            return access + self.pick(("", "", " + 1", " - 1")), None, None
        v = self._variable(scope)
        if shape < 50:
            return v, {v: Fraction(1)}, v
        c = self.pick((0, -1, 1, 0, 2, 1, -2, 0, 3))
        tail = f" + {c}" if c > 0 else f" - {-c}" if c < 0 else ""
        if shape < 58:
            return v + tail, {v: Fraction(1)}, None
        if shape < 66:
            a = self.pick((2, 3, -1, -2, 0))
            return f"{a}*{v}{tail}", {v: Fraction(a)}, None
        if shape < 70:
            at = self.size_text(n) if self.chance(50) else str(n)
            return f"{at} - 1 - {v}", {v: Fraction(-1)}, None
        if shape < 88:
            w = self._variable(scope)
            # by its text a bound `A[k + 0*q]` is `A[k]`, which constrains a k that the list of `sum[q](...)` leaves out
            a, b = self.pick((1, 1, 2, 3, -1)), self.pick((1, -1, 2, -2, 1 if scope.depth else 0))
            row = {v: Fraction(a)}
            row[w] = row.get(w, Fraction(0)) + b
            text = f"{a}*{v} {'-' if b < 0 else '+'} {abs(b)}{w}{tail}"
            if shape < 80:
                return text, row, None
            self.features.add("rational index")
            d = self.pick((2, 3))
            if shape < 86:
                return f"({text})/{d}", {k: x / d for k, x in row.items()}, None
            known = [name for name in self.sizes if name.startswith("N")]
            half = f"{self.pick(known)}/2" if known else "3/2"
            return f"{v}/{d} - {w}/{d} + {half}", row_of((v, Fraction(1, d)), (w, Fraction(-1, d))), None
        inner = self.pick((f"{v}{tail}", f"{v}{tail}", f"({v}{tail})/2", f"2*{v}{tail}"))
        if shape < 92 and n:
            self.features.add("%")
            return f"({inner}) % {self.pick((n, max(1, n - 1), n + 1))}", None, None
        if shape < 94:
            self.features.add("extremum")
            word = self.pick(("abs", "max", "min"))
            other = "" if word == "abs" else f", {self.pick(('0', '1', str(n - 1), f'1 - {v}'))}"
            return f"{self.pick(('', '', f'{n} - 1 - '))}{word}({inner}{other})", None, None
        if shape < 95:
            self.features.add("clamp")
            return f"clamp({inner}, {self.integer(-1, 1)}, {self.pick((n - 1, n, max(0, n - 2)))})", None, None
        return v, {v: Fraction(1)}, v

    def gather_tensor(self, n: int) -> str:
        """An integer tensor whose elements index a dimension of size n, some of them out of range."""
        small = {name: t for name, t in self.tensors.items() if t.category == "i" and t.exact and t.magnitude <= 4}
        fit = [name for name, t in small.items() if t.shape]
        if fit and self.chance(50):
            return self.pick(fit)
        smooth, self.options = self.options, Options()
        low = -1 if self.chance(30) else 0
        name = self.new_input("i", tuple(self.size() for _ in range(self.pick((1, 1, 2)))), (low, n + 1 + low))
        self.options = smooth
        return name

    def access(self, scope: Scope, name: str) -> str:
        indices = [self.index(scope, n) for n in self.tensors[name].shape]
        return f"{name}[{', '.join(indices)}]"

    # expressions

    def leaf(self, scope: Scope | None, category: str, exact: bool) -> Text:
        """A tensor's element (or, in an elementwise statement, a tensor), or a number."""
        form = self.integer(0, 99)
        if form >= 92:
            return self.number(category)
        if form >= 84 and category == "i":
            if scope is None or not scope.variables:
                if self.sizes:
                    return Text(self.pick(list(self.sizes)), "i", True, 5)
            else:
                v = self.pick(list(scope.used) or scope.variables)
                scope.used.setdefault(v)
                self.features.add("index as value")
                return Text(v, "i", True, 10)
        if scope is None:
            return self.whole(category, exact)
        return self.element(scope, category, exact, form)

    def element(self, scope: Scope, category: str, exact: bool, form: int = 0) -> Text:
        """A tensor's element, perhaps padded or tested for being inside, as `form` says."""
        name = self.tensor(category, exact)
        known = self.tensors[name]
        if known.category != category:  # an exact floating value was asked for where there are none
            return Text(f"float64({self.access(scope, name)})", category, True, known.magnitude)
        if form >= 76 and known.category in "fi":
            return self.padded(scope, name)
        if form >= 72:
            self.features.add("in")
            inside = f"in({self.access(scope, name)})"
            if known.category == "i":
                return Text(inside, "i", True, 1)
            if known.category == "b":
                return Text(f"({inside} == 1)", "b", True, 1)
            return Text(f"({self.access(scope, name)} * {inside})", "f", known.exact, known.magnitude)
        return Text(self.access(scope, name), category, known.exact, known.magnitude)

    def number(self, category: str) -> Text:
        if category == "b":
            return Text(f"({self.integer(0, 3)} < 2)", "b", True, 1)
        if category == "i":
            return Text(str(self.integer(0, 4)), "i", True, 4)
        return Text(self.pick(("0.5", "2.0", "1.5", "3.0")), "f", True, 4)

    def padded(self, scope: Scope, name: str) -> Text:
        self.features.add("pad")
        known = self.tensors[name]
        constrains, scope.constrains = scope.constrains, False
        access = self.access(scope, name)
        scope.constrains = constrains
        if self.chance(20):
            inside = f"pad(in({access}), 0)"
            return Text(inside if known.category == "i" else f"(0.5 * {inside})", known.category, True, 1)
        value = self.number(known.category) if self.chance(80) else self.leaf(scope, known.category, known.exact)
        exact = known.exact and value.exact
        return Text(f"pad({access}, {value})", known.category, exact, max(known.magnitude, value.magnitude))

    def whole(self, category: str, exact: bool) -> Text:
        """A tensor that broadcasts with the statement's shape so far."""
        fit = [
            name
            for name, t in self.tensors.items()
            if t.category == category and (t.exact or not exact) and self._broadcasts(t.shape)
        ]
        if not fit:
            others = [name for name, t in self.tensors.items() if t.exact and self._broadcasts(t.shape)]
            if not others or self.options.smooth:
                return self.number(category)
            name = self.pick(others)
            known = self.tensors[name]
            self.shape = np.broadcast_shapes(self.shape, known.shape)
            cast = {"f": "float64({})", "i": "int64({})", "b": "({} != 0)"}[category]
            return Text(cast.format(name), category, True, known.magnitude)
        name = self.pick(fit[-5:])
        known = self.tensors[name]
        if category == "i" and known.shape and self.chance(15):
            self.features.add("index()")
            axis = self.integer(0, len(known.shape) - 1)
            if self.chance(50):
                return Text(f"shape({name}, {axis})", "i", True, 5)
            self.shape = np.broadcast_shapes(self.shape, known.shape)
            return Text(f"index({name}, {axis})", "i", True, 5)
        self.shape = np.broadcast_shapes(self.shape, known.shape)
        return Text(name, category, known.exact, known.magnitude)

    def _broadcasts(self, shape: tuple[int, ...]) -> bool:
        try:
            return len(np.broadcast_shapes(self.shape, shape)) < 4
        except ValueError:
            return False

    def expression(self, scope: Scope | None, category: str, depth: int, exact: bool = False) -> Text:
        """An expression of a category; `exact` if its last place must be certain."""
        before = self._state(scope)
        result = self._expression(scope, category, depth, exact)
        if exact and (result.magnitude > LARGE or not result.exact):
            self._forget(scope, before)
            result = self.leaf(scope, category, True)
            if not result.exact:
                self._forget(scope, before)
                return self.number(category)
        if result.magnitude > LARGE:
            result = Text(result.text, category, False, LARGE)
        return result

    def _state(self, scope: Scope | None) -> tuple:
        """What writing an expression changes beside its text; `_forget` takes it back."""
        own = None
        if scope is not None:
            own = dict(scope.used), list(scope.rows), {v: set(sizes) for v, sizes in scope.bare.items()}
        return own, list(self.pending), self.shape

    def _forget(self, scope: Scope | None, state: tuple) -> None:
        own, self.pending, self.shape = state
        if scope is not None:
            scope.used.clear()
            scope.used.update(own[0])
            scope.rows[:] = own[1]
            scope.bare.clear()
            scope.bare.update(own[2])

    def _expression(self, scope: Scope | None, category: str, depth: int, exact: bool) -> Text:
        if depth <= 0 or self.chance(25):
            return self.leaf(scope, category, exact)
        if (scope is None or scope.depth < 1 and scope.variables) and self.chance(12):
            return self.nested(scope, category, exact)
        if self.chance(15):
            c = self.condition(scope)
            a, b = self.branches(scope, category, depth, exact)
            self.features.add("?:")
            if "[" in a.text and "[" in b.text and scope is not None:
                self.features.add("accesses in both branches")
            text = f"({c} ? {a} : {b})" if self.chance(70) else f"cond({c}, {a}, {b})"
            return Text(text, category, a.exact and b.exact, max(a.magnitude, b.magnitude))
        return {"f": self._floating, "i": self._integral, "b": self._boolean}[category](scope, depth, exact)

    def branches(self, scope: Scope | None, category: str, depth: int, exact: bool) -> list[Text]:
        """Two branches; only what bounds a variable in both counts."""
        texts, bounding = [], []
        for _ in "ab":
            count = 0 if scope is None else len(scope.rows)
            texts.append(self.expression(scope, category, depth - 1, exact))
            if scope is not None:
                bounding.append(scope.rows[count:])
                del scope.rows[count:]
        if scope is not None:
            scope.rows += [row for row in bounding[0] if row in bounding[1]]
        return texts

    def condition(self, scope: Scope | None) -> Text:
        if self.options.smooth or self.options.special or self.chance(50):
            if scope is not None and scope.variables:
                v = self.pick(list(scope.used) or scope.variables)
                scope.used.setdefault(v)
                return Text(f"({v} {self.pick(('<', '>=', '!='))} {self.integer(0, 2)})", "b", True, 1)
            return self.number("b")
        return self.expression(scope, "b", 1, True)

    def _pair(self, scope, category, depth, exact) -> tuple[Text, Text]:
        a = self.expression(scope, category, depth - 1, exact)
        other = category
        if category == "f" and not self.options.smooth and self.chance(15):
            other = "i"
        return a, self.expression(scope, other, 0 if self.chance(60) else depth - 1, exact)

    def draw(self, scope: Scope | None, function: str) -> str:
        """A random number: over whole tensors by position or by a counter, elsewhere by a counter."""
        self.features.add("draw")
        if scope is None and self.chance(50):
            return f"{function}({self.integer(-2, 2)})"
        return f"{function}({self.integer(-2, 2)}, {self.expression(scope, 'i', 1, True)})"

    def _floating(self, scope: Scope | None, depth: int, exact: bool) -> Text:
        if not exact and self.chance(4):
            return Text(self.draw(scope, self.pick(("rand", "randn"))), "f", False, 7)
        form = self.integer(0, 99)
        simple = self.options.special or exact
        if form < 60 or self.options.special:
            a, b = self._pair(scope, "f", depth, exact)
            both = a.exact and b.exact
            op = self.pick(("*", "*", "*", "+", "-", "max", "min") if not self.options.smooth else ("*", "+", "-"))
            if op == "*":
                text = f"{a} * {b}" if self._atomic(a, b) else f"({a}) * ({b})"
                return Text(text, "f", both, a.magnitude * b.magnitude)
            magnitude = a.magnitude + b.magnitude
            if op in ("max", "min"):
                return Text(f"{op}({a}, {b})", "f", both, magnitude)
            return Text(f"({a} {op} ({b}))", "f", both, magnitude)
        a = self.expression(scope, "f", depth - 1, exact)
        if form < 66:
            return Text(f"(-{a})" if self.chance(50) else f"({a}) * 0.5", "f", a.exact, a.magnitude)
        if (form < 80 or simple) and not self.options.smooth:
            function = self.pick(EXACT)
            if not a.exact and function.startswith(("sign", "floor", "ceil", "round")):
                function = "relu({})"
            return Text(function.format(f"({a})"), "f", a.exact, a.magnitude + 1)
        if form < 84:
            b = self.expression(scope, "f", depth - 1)
            return Text(self.pick(SMOOTH_PAIRS).format(f"({a})", f"({b})"), "f", False, a.magnitude + b.magnitude + 2)
        return Text(self.pick(SMOOTH).format(f"({a})"), "f", False, a.magnitude**2 + 2)

    @staticmethod
    def _atomic(*texts: Text) -> bool:
        return all(not set(t.text) & set(" -?") for t in texts)

    def _integral(self, scope: Scope | None, depth: int, exact: bool) -> Text:
        form = self.integer(0, 99)
        a = self.expression(scope, "i", depth - 1, True)
        if form < 60:
            b = self.expression(scope, "i", 0, True)
            op = self.pick(("*", "+", "-", "max", "min"))
            text = f"{op}({a}, {b})" if op in ("max", "min") else f"(({a}) {op} ({b}))"
            return Text(text, "i", True, a.magnitude * b.magnitude + a.magnitude + b.magnitude)
        if form < 75:
            c = self.integer(1, 4)
            text = self.pick((f"(({a}) / {c})", f"(({a}) % {c})", f"(({a}) / -{c})", f"(-({a}))", f"abs({a})"))
            return Text(text, "i", True, a.magnitude + 4)
        if form < 85:
            b = self.expression(scope, "i", 0, True)
            op = self.pick(("&", "|", "^"))
            return Text(f"(({a}) {op} ({b}))", "i", True, 4 * max(a.magnitude, b.magnitude))
        if form < 90:
            return Text(f"(({a}) {self.pick(('<<', '>>'))} {self.integer(0, 2)})", "i", True, 4 * a.magnitude)
        if form < 95:
            b = self.expression(scope, "b", depth - 1, True)
            return Text(f"(({a}) + int64({b}))", "i", True, a.magnitude + 1)
        b = self.expression(scope, "f", 0, True)
        return Text(f"(({a}) + int32({b}))", "i", True, a.magnitude + b.magnitude)

    def _boolean(self, scope: Scope | None, depth: int, exact: bool) -> Text:
        form = self.integer(0, 99)
        if form < 65:
            category = self.pick("fi")
            a, b = (self.expression(scope, category, min(depth - 1, 1), True) for _ in "ab")
            op = self.pick(("<", ">", "<=", ">=", "==", "!="))
            return Text(f"(({a}) {op} ({b}))", "b", True, 1)
        if self.chance(10):
            return Text(f"({self.draw(scope, 'rand')} < 0.5)", "b", True, 1)
        a = self.expression(scope, "b", depth - 1, True)
        if form >= 90:
            return Text(f"(~{a})", "b", True, 1)
        b = self.expression(scope, "b", depth - 1, True)
        return Text(f"({a} {self.pick(('&', '|', '^'))} {b})", "b", True, 1)

    def nested(self, outer: Scope | None, category: str, exact: bool) -> Text:
        """An aggregation inside an expression, over variables of its own and some of the outer ones."""
        self.features.add("nested")
        own = ["p", "q"][: self.integer(1, 2)]
        free = [] if outer is None else list(outer.used)[:2]
        fresh = [] if outer is None else [v for v in outer.variables if v not in outer.used]
        left = fresh[:1] if self.chance(30) else []
        scope = Scope(own + free + left, 1 if outer is None else outer.depth + 1, used=dict.fromkeys(free))
        aggregation = self.pick(tuple(a for a in AGGREGATIONS[category] if a != "assign"))
        aggregation, body = self.aggregated(scope, aggregation, category, exact)
        inner = [v for v in scope.used if v in own]
        rows = [{k: c for k, c in row.items() if k in own} for row in scope.rows]
        for v in inner:
            if rank(rows) == len(inner):
                break
            row = {v: Fraction(1)}
            if rank([*rows, row]) > rank(rows):
                rows.append(row)
                self.pending.append(f"{v} < {self.integer(0, 3)}")
        self.features.add(aggregation)
        exact_result, magnitude = self._outcome(aggregation, body)
        listed = ""
        for v in left:
            if v in scope.used and outer is not None:  # it belongs to the statement
                outer.used.setdefault(v)
                outer.rows.append({v: Fraction(1)})
                self.pending.append(f"{v} < {self.integer(1, 3)}")
                listed = f"[{', '.join(inner)}]"
        if listed or self.chance(30) or len(inner) > 1 and outer is not None:
            self.features.add("binding list")
            listed = f"[{', '.join(inner)}]"
        return Text(f"{aggregation}{listed}({body})", category, exact_result, magnitude)

    def aggregated(self, scope: Scope, aggregation: str, category: str, exact: bool) -> tuple[str, Text]:
        """A body for an aggregation that gives a value of the category."""
        wanted, must = category, exact
        if aggregation in ("argmax", "argmin"):
            wanted, must = self.pick("fi"), True
        elif aggregation in ("any", "all"):
            wanted, must = self.pick("bif") if not self.options.special else "b", True
        elif aggregation == "logsumexp":
            must = False
        elif aggregation in ("sum", "prod") and category == "i" and self.chance(15):
            wanted = "b"
        if aggregation in ("mean", "logsumexp") and exact:
            aggregation = "sum"
        if aggregation in ("max", "min") and not self.options.smooth:
            must = True
        before = self._state(scope)
        body = self.expression(scope, wanted, 0 if aggregation == "prod" and exact else self.integer(0, 2), must)
        if "[" not in body.text:  # an aggregation needs something to aggregate over
            self._forget(scope, before)
            body = self.element(scope, wanted, must)
        if self.chance(12) and not (self.options.smooth and aggregation in ("max", "min")):
            self.features.add("guard")
            body = Text(f"{self.condition(scope)} ? ({body})", body.category, body.exact, body.magnitude)
        return aggregation, body

    def _outcome(self, aggregation: str, body: Text) -> tuple[bool, float]:
        if aggregation in ("sum",):
            return body.exact and body.magnitude * 256 <= LARGE, min(body.magnitude * 64, LARGE)
        if aggregation == "prod":
            return body.exact and body.category != "f", LARGE
        if aggregation in ("mean", "logsumexp"):
            return False, body.magnitude + 5
        if aggregation in ("max", "min"):  # infinite where nothing comes: no longer a small number
            return False, body.magnitude
        return (body.exact, body.magnitude) if aggregation == "assign" else (True, 256)
