"""Programs in mathematical notation, as LaTeX (amsmath) that MathJax and KaTeX render too.

A statement whose left side has one bare variable for each dimension is an equation, `C_{i, j} = sum over k`; any other
left side is an accumulation, an arrow under the aggregation's sign. What stands under the sign of a sum is its
variables, its constraints (`0 <= e < c`) and its condition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilec.ir.aggregations import AGGREGATIONS, LOGICAL
from tilec.ir.functions import COMPARISONS, FUNCTIONS
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    index_variables,
    rebuild,
)

LATEX_SIGNS = {"sum": r"\sum", "prod": r"\prod", "max": r"\max", "min": r"\min", "any": r"\bigvee", "all": r"\bigwedge"}
ARROWS = {"sum": "+", "prod": r"\times", "assign": ""}
INFIX = {
    "add": "+", "sub": "-", "eq": "=", "ne": r"\neq", "lt": "<", "gt": ">", "le": r"\le", "ge": r"\ge",
    "and": r"\wedge", "or": r"\vee", "xor": r"\oplus", "shl": r"\ll", "shr": r"\gg", "mod": r"\bmod",
}  # fmt: skip
AROUND = {
    "abs": r"\left|{0}\right|", "floor": r"\left\lfloor {0} \right\rfloor", "ceil": r"\left\lceil {0} \right\rceil",
    "round": r"\left\lfloor {0} \right\rceil", "sqrt": r"\sqrt{{{0}}}", "rsqrt": r"\frac{{1}}{{\sqrt{{{0}}}}}",
    "recip": r"\frac{{1}}{{{0}}}", "div": r"\frac{{{0}}}{{{1}}}", "ident": "{0}",
}  # fmt: skip
KNOWN = frozenset("exp log sin cos tan sinh cosh tanh max min".split())
LATEX_NAMES = {
    "asin": r"\arcsin",
    "acos": r"\arccos",
    "atan": r"\arctan",
    "sign": r"\operatorname{sgn}",
    "sigmoid": r"\sigma",
}
OF_ONE = frozenset(("assign", "sum", "prod", "max", "min", "logsumexp"))  # of one value: that value
COMMA = r",\; "
LOOSEST_LATEX, TIGHTEST_LATEX = 0, 99
SUM_PRECEDENCE = FUNCTIONS["add"].precedence


def latex(what: Program | Statement | Expr) -> str:
    """A program as an `aligned` environment, a statement as one equation, an expression as a formula."""
    if isinstance(what, Program):
        lines = " \\\\\n".join(_statement(s, " &") for s in what.statements)
        if not lines:
            lines = ",\\ ".join(_name(o) for o in what.outputs)
        return f"\\begin{{aligned}}\n{lines}\n\\end{{aligned}}"
    return _statement(what, "") if isinstance(what, Statement) else _text(what)


def _statement(s: Statement, align: str) -> str:
    text, conditions = statement_parts(s, align)
    return text + (f" \\qquad {conditions}" if conditions else "")


def statement_parts(s: Statement, align: str = "") -> tuple[str, str]:
    """The equation or accumulation, and what holds for it: ranges, conditions and what stands elsewhere ("" for none).
    `align` stands before the sign, as amsmath's `&`."""
    body, names = _numeric(s.body), [i.name for i in s.index or () if isinstance(i, Index)]
    if s.index is None:
        return f"{_name(s.output)}{align or ' '}= {body}", ""
    left = _element(s.output, s.index)
    own = [v for v in index_variables(s.body, *s.guards) if v not in index_variables(*s.index)]
    spans = zip(s.index, s.sizes or (), strict=False)
    extent = [f"0 \\le {_text(i)} < {_size(n)}" for i, n in spans if not isinstance(i, Int)]
    if len(set(names)) == len(s.index):
        right = _aggregated(s.aggregation, s.body, own, s.guard, s.constraints)
        text = f"{left}{align or ' '}= {right}"
    else:
        sign = ARROWS.get(s.aggregation, LATEX_SIGNS.get(s.aggregation, f"\\mathrm{{{s.aggregation}}}"))
        arrow = f"\\overset{{{sign}}}{{\\longleftarrow}}" if sign else r"\longleftarrow"
        text = f"{left}{align or ' '}{arrow} {body}"
        extent += [_text(s.guard)] if s.guard is not None else []
        extent += [_constraint(c) for c in s.constraints]
    if s.default is not None:
        extent.append(f"{_name(s.default)} \\text{{ elsewhere}}")
    if s.init is not None:
        extent.append(f"{left} = {_text(s.init)} \\text{{ outside}}")
    return text, COMMA.join(extent)


def _aggregated(
    name: str, body: Expr, bound: Sequence[str], guard: Expr | None, constraints: Sequence[Constraint]
) -> str:
    """An aggregation's sign with what stands under it, and its body."""
    conditions = [*([_text(guard)] if guard is not None else []), *map(_constraint, constraints)]
    if not bound and name in OF_ONE:
        if not conditions or name == "assign":
            return _numeric(body) + (f" \\quad \\text{{if }} {COMMA.join(conditions)}" if conditions else "")
        otherwise = _float(float(AGGREGATIONS[name].identity)) if name != "sum" else "0"
        return _cases(_numeric(body), COMMA.join(conditions), otherwise)
    rows = [", ".join(map(_variable, bound))] if bound else []
    rows += [_constraint(c) for c in constraints]
    rows += [_text(guard)] if guard is not None else []
    under = "\\substack{" + " \\\\ ".join(rows) + "}" if len(rows) > 1 else "".join(rows)
    sign = LATEX_SIGNS.get(name, f"\\operatorname*{{{name}}}")
    wide = isinstance(body, Call) and (own := FUNCTIONS[body.function].precedence) and own <= SUM_PRECEDENCE
    if _is_condition(body) and name not in LOGICAL:
        inside = _numeric(body)
    else:
        inside = f"\\left({_text(body)}\\right)" if wide or AGGREGATIONS[name].symbol is None else _text(body)
    return f"{sign}_{{{under}}} {inside}" if under else f"{sign} {inside}"


def _is_condition(e: Expr) -> bool:
    """Is it a comparison, or a combination of those?"""
    if not isinstance(e, Call):
        return False
    return e.function in COMPARISONS or (e.function in ("and", "or", "not") and all(map(_is_condition, e.args)))


def _numeric(e: Expr) -> str:
    """A formula that stands for a value: a condition in Iverson's brackets, 1 where it holds."""
    return f"\\left[{_text(e)}\\right]" if _is_condition(e) else _text(e)


def _operand(e: Expr, least: int) -> str:
    return _numeric(e) if _is_condition(e) else _text(e, least)


def _cases(value: str, condition: str, otherwise: str) -> str:
    rows = f"{value} & \\text{{if }} {condition} \\\\ {otherwise} & \\text{{otherwise}}"
    return f"\\begin{{cases}} {rows} \\end{{cases}}"


def _constraint(c: Constraint) -> str:
    return f"0 \\le {_text(c.expr)} < {_size(c.bound)}"


def _size(e: Expr) -> str:
    """Size arithmetic, whose division drops the remainder."""

    def truncated(e: Expr) -> Expr:
        e = rebuild(e, truncated)
        return Call("floor", (e,)) if isinstance(e, Call) and e.function == "div" else e

    return _text(truncated(e))


def _name(name: str) -> str:
    """A tensor's or dimension's name: letters upright where there are several, digits and what follows `_` below."""
    plain = name.rstrip("'")
    found = re.fullmatch(r"([A-Za-z]+?)_?(\d+|_?\w*)", plain) if len(plain) > 1 else None
    head, tail = (plain, "") if found is None else (found[1], found[2])
    if found is not None and not tail.isdigit() and "_" not in plain:
        head, tail = plain, ""
    elif found is not None and "_" in plain:
        head, _, tail = plain.partition("_")
    text = head if len(head) == 1 else f"\\mathrm{{{head}}}"
    if tail:
        inner = tail if tail.isdigit() or len(tail) == 1 else "\\mathrm{" + tail.replace("_", r"\_") + "}"
        text = f"{{{text}}}_{{{inner}}}"
    return text + "'" * (len(name) - len(plain))


def _variable(name: str) -> str:
    return _name(name).replace(r"\mathrm", r"\mathit")


def _element(tensor: str, index: Sequence[Expr]) -> str:
    name = _name(tensor)
    return "{" + name + "}_{" + ",\\,".join(map(_text, index)) + "}" if index else name


def _text(e: Expr, least: int = LOOSEST_LATEX) -> str:
    """The formula of e, in parentheses where an operator of precedence below `least` would need them."""
    match e:
        case Int():
            return str(e.value)
        case Float():
            return _float(e.value)
        case Index():
            return _variable(e.name)
        case Name():
            return _name(e.name)
        case Access():
            return _element(e.tensor, e.index)
        case Inside():
            return f"\\left[{_text(e.access)} \\text{{ exists}}\\right]"
        case Pad():
            value = _text(e.value)
            return f"{{{_text(e.access)}}}^{{\\mathrm{{else}}\\;{value}}}"
        case Aggregate():
            text = _aggregated(e.aggregation, e.body, e.bound, e.guard, e.constraints)
            least = 0 if AGGREGATIONS[e.aggregation].symbol is None and least < TIGHTEST_LATEX else least
            return f"\\left({text}\\right)" if least > SUM_PRECEDENCE else text
        case Call():
            return _call(e, least)
    raise AssertionError(f"an expression that has no formula: {e!r}")


def _call(e: Call, least: int) -> str:
    name, args = e.function, e.args
    if name in AROUND:
        return AROUND[name].format(*map(_text, args))
    if name == "select":
        c, a, b = map(_text, args)
        cases = _cases(a, c, b)
        return f"\\left({cases}\\right)" if least > LOOSEST_LATEX else cases
    if name == "pow":
        return f"{{{_text(args[0], TIGHTEST_LATEX)}}}^{{{_text(args[1])}}}"
    own = FUNCTIONS[name].precedence
    if not own:
        plain = name.replace("_", r"\_")
        head = LATEX_NAMES.get(name, f"\\{name}" if name in KNOWN else f"\\operatorname{{{plain}}}")
        return f"{head}\\left({', '.join(map(_text, args))}\\right)"
    if name == "mul":
        a, b = _operand(args[0], own), _operand(args[1], own + 1)
        between = r" \cdot " if b[:1].isdigit() else "" if isinstance(args[0], Int) else r" \, "
        text = f"{a}{between}{b}"
    elif len(args) == 1:
        text = ("-" if name == "neg" else r"\neg ") + _text(args[0], own)
    else:
        left = _operand if name in ("add", "sub") else _text
        text = f"{left(args[0], own)} {INFIX[name]} {left(args[1], own + 1)}"
    return f"\\left({text}\\right)" if own < least else text


def _float(value: float) -> str:
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    named = {"inf": r"\infty", "nan": r"\mathrm{NaN}", "3.141592653589793": r"\pi"}
    mantissa, exponent, power = repr(value).partition("e")
    if mantissa in named:
        return named[mantissa]
    return mantissa if not exponent else f"{mantissa} \\cdot 10^{{{int(power)}}}"
