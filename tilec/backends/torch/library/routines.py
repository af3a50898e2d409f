"""The table of torch's routines: what each computes, as statements in Tile, and the text of its call.

Each gives what the statements give up to rounding, at infinities and NaN too, or else None, where values are not those
that it is right for; and a row's result depends on no other row, however many threads there are (but the statistics of
a batch whose channels lie side by side, which every thread has a part of). Of a layer norm, a row's gradient may have
an infinity for a NaN where cotangents are infinite, and a row whose variance overflows is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from tilec.backends.torch.library.masks import mask_axes
from tilec.backends.torch.library.match import Occurrence, Pattern
from tilec.language import parse


@dataclass(frozen=True)
class Routine:
    """`call`: text with the names of tensors and numbers, `places`: the dimensions of `j` in the first tensor, and
    `alone`: is the first result alone wanted?
    `alone`: that where it is; `source`: the statements; `roots`: those that are looked for
    in turn, all of which must be there; `gives`, `reads`: results in order, and what the text names, with their axes
    where they are `flat`: of one axis for each variable, where others come as they lie; `marks`:
    functions and aggregations without which it is not there; `fallible`: may it return None? `mask`: a condition and a
    term that stand for any, or for none, and what the condition and the term are of: the text then names `mask`, the
    term where the condition holds and -inf elsewhere, and `terms`: is there a term? `admits`: of a match."""

    call: str
    source: str
    roots: tuple[str, ...]
    gives: tuple[tuple[str, str], ...]
    reads: tuple[tuple[str, str], ...]
    several: str
    marks: tuple[str, ...]
    alone: str = ""
    flat: bool = False
    fallible: bool = False
    mask: tuple[str, str, str] | None = None
    admits: Callable[[Occurrence], bool] = lambda m: m.extent("j") > 0

    @property
    def pattern(self) -> Pattern:
        return _pattern(self.source, self.several, self.mask)


@lru_cache
def _pattern(source: str, several: str, mask: tuple[str, str, str] | None) -> Pattern:
    statements = parse(f"function {source}").statements
    return Pattern({s.output: s for s in statements}, frozenset(several), frozenset((mask or ())[:2]))


def _last(m: Occurrence) -> bool:
    """Are the axes of `j` the last ones, in order?"""
    axes = m.tensors["X"][1]
    return m.extent("j") > 0 and 0 < len(m.axes["j"]) < len(axes) and axes[-len(m.axes["j"]) :] == m.axes["j"]


def _alone(m: Occurrence) -> bool:
    """Does `j` stand for an axis of several elements?"""
    return m.extent("j") > 0 and len(m.axes["j"]) == 1


def _last_alone(m: Occurrence) -> bool:
    return _alone(m) and _last(m)


_SOFTMAX = "M[i : I] = >(X[i,j]); S[i : I] = +(exp(X[i,j] - M[i]));"
_EXPONENTIALS = "Y[i,j : I,J] = exp(X[i,j] - M[i]) / S[i];"
_MOMENTS = (
    "T[i : I] = +(X[i,j]); M[i : I] = T[i] / J; U[i : I] = +((X[i,j] - M[i]) * (X[i,j] - M[i])); V[i : I] = U[i] / J;"
)


def _text(tensor: str) -> str:
    return f"{{{tensor}}}" if tensor else "None"


def _layer_norm(scale: str, shift: str) -> Routine:
    given = "".join(f", {t}[J]" for t in (scale, shift) if t)
    body = "(X[i,j] - M[i]) * rsqrt(V[i] + E[])" + f" * {scale}[j]" * bool(scale) + f" + {shift}[j]" * bool(shift)
    return Routine(
        f"rt.layer_norm_and_statistics({{X}}, {_text(scale)}, {_text(shift)}, {{places}}, {{E}})",
        f"(X[I,J], E[]{given}) -> (Y) {{ {_MOMENTS} Y[i,j : I,J] = {body}; }}",
        ("Y",),
        (("Y", "ij"), ("M", "i"), ("V", "i")),
        (("X", "ij"), *((t, "j") for t in (scale, shift) if t)),
        "ij",
        ("rsqrt",),
        alone=f"torch.layer_norm({{X}}, {{X}}.shape[{{place}}:], {_text(scale)}, {_text(shift)}, {{E}})",
        admits=_last,
    )


def _reciprocal(stored: bool, at: str) -> tuple[str, str, str, tuple[str, ...]]:
    """The reciprocal of a deviation, `stored` as one or as the variance: in Tile, its text in a call, the tensor, and
    the functions that it takes."""
    return (
        (f"R[{at}]", "{R}", "R", ("sub", "sum"))
        if stored
        else (f"rsqrt(V[{at}] + E[])", "torch.rsqrt({V} + {E})", "V", _NORM)
    )


_NORM = ("rsqrt",)


def _layer_norm_gradient(scale: str, stored: bool) -> Routine:
    by = f" * {scale}[j]" * bool(scale)
    r, told, statistic, marks = _reciprocal(stored, "i")
    return Routine(
        f"rt.layer_norm_gradient({{C}}, {{X}}, {{M}}, {told}, {_text(scale)}, {{places}})",
        f"""(X[I,J], E[], G[J], M[I], {statistic}[I], C[I,J]) -> (Y) {{
            A[i : I] = +(C[i,j] * (X[i,j] - M[i]){by});
            D[i : I] = A[i] * -1.0 * {r} * {r} * {r} * 0.5;
            B[i : I] = +(C[i,j]{by});
            Y[i,j : I,J] = C[i,j] * {r}{by} + D[i] / J * (X[i,j] - M[i]) * 2
                + (B[i] * -1.0 * {r} + -1.0 * D[i] / J * (M[i] - M[i]) * 2) / J; }}""",
        ("Y",),
        (("Y", "ij"),),
        (("X", "ij"), ("C", "ij"), ("M", "i"), (statistic, "i"), *(((scale, "j"),) if scale else ())),
        "ij",
        marks,
        admits=_last,
    )


_OPERANDS = (("Q", "brie"), ("K", "bje"), ("V", "bjf"))
_SCORES = "S[b,r,i,j : B,R,I,J] = +(Q[b,r,i,e] * K[b,j,e]); D[b,r,i,j : B,R,I,J] = S[b,r,i,j] * E[]{};"
_WEIGHTS = "P[b,r,i,j : B,R,I,J] = exp(D[b,r,i,j] - L[b,r,i]);"


def _in_order(variables: str, m: Occurrence) -> bool:
    """Do the axes of these variables follow each other in the first tensor, so that nothing is moved?"""
    axes = m.tensors["X"][1]
    return axes == tuple(a for v in variables for a in sorted(m.axes[v], key=axes.index)) and all(m.sizes.values())


def _channel_norms(variables: str, alone: str, summed: str, call: str, stored: bool) -> tuple[Routine, ...]:
    """Norms scaled by channels, with statistics of what is `alone`, `summed` over the others: values, and gradients by
    the input, with the sums of which those of scale and shift are made. `variables`: of the input."""
    channels = variables.strip("ns")
    x, own, of = (",".join(v) for v in (variables, alone, channels))
    shapes = {v: v.upper() if v != "n" else "N" for v in variables}
    size, stat, scale = (",".join(shapes[v] for v in t) for t in (variables, alone, channels))
    each = "".join(f" / {shapes[v]}" for v in summed)
    r, told, statistic, marks = _reciprocal(stored, own)
    centred = f"(X[{x}] - M[{own}])"
    scaled, by_channel = f" * A[{of}]", own == of
    inside, outside = ("", scaled) if by_channel else (scaled, "")
    within, beside = (scaled, "") if stored else (inside, outside)
    given, read = f"X[{size}], A[{scale}], E[]", (("X", variables), ("A", channels))
    sums = f"F[{of} : {scale}] = +(D[{x}] * {centred} * {r});" * (stored or not by_channel)
    sums += f"O[{of} : {scale}] = +(D[{x}]);" * (not by_channel)
    gradient = f"""({given}, M[{stat}], {statistic}[{stat}], D[{size}]) -> (Z) {{ {sums}
        T[{own} : {stat}] = +(D[{x}] * {centred}{within}); U[{own} : {stat}] = +(D[{x}]{inside});
        P[{own} : {stat}] = T[{own}]{beside} * -1.0 * {r} * {r} * {r} * 0.5;
        Z[{x} : {size}] = D[{x}] * {r} * A[{of}] + P[{own}]{each} * {centred} * 2
            + (U[{own}] * -1.0 * {r}{outside} + -1.0 * P[{own}]{each} * (M[{own}] - M[{own}]) * 2){each}; }}"""
    statistics = (("D", variables), *read, ("M", alone), (statistic, alone))

    def routine(
        text: str, source: str, roots: tuple[str, ...], gives: str, reads: tuple[tuple[str, str], ...]
    ) -> Routine:
        axes = {"Z": variables, "Y": variables, "M": alone, "V": alone}
        results = tuple((t, axes.get(t, channels)) for t in gives)
        admits = partial(_in_order, variables)
        return Routine(text, source, roots, results, reads, "ns", marks, flat=True, fallible=True, admits=admits)

    ways: list[tuple[tuple[str, ...], str]] = [(("Z", "F", "O"), "ZFO"), (("Z",), "Z")]
    if by_channel:
        ways = [(("Z", "F"), "ZFU")] if stored else [(("Z",), "ZTU")]
    gradients = (
        routine(
            f"rt.{call}_gradient({{D}}, {{X}}, {{A}}, {{M}}, {told}, {stored if by_channel else len(gives)})",
            gradient,
            roots,
            gives,
            statistics,
        )
        for roots, gives in ways
    )
    if stored:
        return tuple(gradients)
    return (
        routine(
            f"rt.{call}_and_statistics({{X}}, {{A}}, {{B}}, {{E}}, {{alone}})",
            f"""({given}, B[{scale}]) -> (Y) {{ T[{own} : {stat}] = +(X[{x}]); M[{own} : {stat}] = T[{own}]{each};
                U[{own} : {stat}] = +({centred} * {centred}); V[{own} : {stat}] = U[{own}]{each};
                Y[{x} : {size}] = {centred} * {r} * A[{of}] + B[{of}]; }}""",
            ("Y",),
            "YMV",
            (*read, ("B", channels)),
        ),
        *gradients,
    )


def _distant(m: Occurrence) -> bool:
    return m.extent("e") >= 16 and min(m.extent("i"), m.extent("j")) >= 16


_MASK = ("W", "A", "brij")
_MOST_MASK = 2**24  # elements of a tensor that is made for torch's sake


def _attends(m: Occurrence) -> bool:
    if m.extent("e") != m.extent("f") or min(m.extent("i"), m.extent("j")) < 16:
        return False
    return not any(m.free.values()) or math.prod(m.sizes[a] for p in mask_axes(_MASK, m) for a in p) <= _MOST_MASK


def _attention(causal: bool) -> tuple[Routine, ...]:
    """Where each query sees all keys up to its own place, or else those and as a mask says."""
    seen = "i - j >= 0" if causal else "W[b,r,i,j]"
    scores = _SCORES.format("" if causal else " + A[b,r,i,j]")
    given, mask = ("", None) if causal else (", W[B,R,I,J], A[B,R,I,J]", _MASK)
    known = f"scale={{E}}, causal={causal}, mask={{mask}}, terms={{terms}}"
    return (
        Routine(
            f"rt.attention_and_logarithms({{Q}}, {{K}}, {{V}}, {known})",
            f"""(Q[B,R,I,G], K[B,J,G], V[B,J,F], E[]{given}) -> (O) {{
                {scores} L[b,r,i : B,R,I] = logsumexp({seen} ? D[b,r,i,j]);
                {_WEIGHTS} O[b,r,i,f : B,R,I,F] = +({seen} ? P[b,r,i,j] * V[b,j,f]); }}""",
            ("O",),
            (("O", "brif"), ("L", "bri")),
            _OPERANDS,
            "br",
            ("exp", "logsumexp"),
            flat=True,
            fallible=True,
            mask=mask,
            admits=_attends,
        ),
        Routine(
            f"rt.attention_gradient({{Q}}, {{K}}, {{V}}, {{C}}, {{O}}, {{L}}, {known})",
            f"""(Q[B,R,I,G], K[B,J,G], V[B,J,F], O[B,R,I,F], L[B,R,I], C[B,R,I,F], E[]{given}) -> (DQ) {{
                {scores} {_WEIGHTS} T[b,r,i : B,R,I] = +(C[b,r,i,f] * O[b,r,i,f]);
                X[b,r,i,j : B,R,I,J] = +({seen} ? C[b,r,i,f] * V[b,j,f] * P[b,r,i,j]);
                Y[b,r,i,j : B,R,I,J] = +({seen} & L[b,r,i] != -inf ? T[b,r,i] * -1.0 * P[b,r,i,j]);
                Z[b,r,i,j : B,R,I,J] = (X[b,r,i,j] + Y[b,r,i,j]) * E[];
                DQ[b,r,i,e : B,R,I,G] = +(Z[b,r,i,j] * K[b,j,e]); DK[b,j,e : B,J,G] = +(Z[b,r,i,j] * Q[b,r,i,e]);
                DV[b,j,f : B,J,F] = +({seen} ? C[b,r,i,f] * P[b,r,i,j]); }}""",
            ("DQ", "DK", "DV"),
            (("DQ", "brie"), ("DK", "bje"), ("DV", "bjf")),
            (*_OPERANDS, ("C", "brif"), ("O", "brif"), ("L", "bri")),
            "br",
            ("exp", "ne"),
            flat=True,
            fallible=True,
            mask=mask,
            admits=_attends,
        ),
    )


ROUTINES: tuple[Routine, ...] = (
    Routine(
        "rt.softmax_and_statistics({X}, {places})",
        f"(X[I,J]) -> (Y) {{ {_SOFTMAX} {_EXPONENTIALS} }}",
        ("Y",),
        (("Y", "ij"), ("M", "i"), ("S", "i")),
        (("X", "ij"),),
        "i",
        ("exp", "max"),
        admits=_last,
        alone="torch.softmax({X}, {place})",
    ),
    Routine(
        "rt.softmax_gradient({C}, {X}, {M}, {S}, {places})",
        f"""(X[I,J], M[I], S[I], C[I,J]) -> (D) {{ {_EXPONENTIALS} T[i : I] = +(C[i,j] * Y[i,j]);
            D[i,j : I,J] = C[i,j] * Y[i,j] + T[i] * -1.0 / S[i] * exp(X[i,j] - M[i]); }}""",
        ("D",),
        (("D", "ij"),),
        (("C", "ij"), ("X", "ij"), ("M", "i"), ("S", "i")),
        "i",
        ("exp",),
        admits=_alone,
    ),
    Routine(
        "rt.log_softmax_and_logarithms({X}, {places})",
        "(X[I,J]) -> (Y) { L[i : I] = logsumexp(X[i,j]); Y[i,j : I,J] = X[i,j] - L[i]; }",
        ("Y",),
        (("Y", "ij"), ("L", "i")),
        (("X", "ij"),),
        "i",
        ("logsumexp",),
        fallible=True,
        admits=_last_alone,
    ),
    Routine(
        "rt.log_softmax_gradient({C}, {X}, {L}, {places})",
        """(X[I,J], L[I], C[I,J]) -> (D) { T[i : I] = +(C[i,j]);
            P[i,j : I,J] = +(L[i] != -inf ? T[i] * -1.0 * exp(X[i,j] - L[i]));
            D[i,j : I,J] = C[i,j] + P[i,j]; }""",
        ("D",),
        (("D", "ij"),),
        (("C", "ij"), ("X", "ij"), ("L", "i")),
        "i",
        ("exp", "ne"),
        fallible=True,
        admits=_alone,
    ),
    Routine(
        "rt.squared_distances({X}, {Y})",
        """(X[B,I,G], Y[B,J,G]) -> (S) {
            S[b,i,j : B,I,J] = +((X[b,i,e] - Y[b,j,e]) * (X[b,i,e] - Y[b,j,e])); }""",
        ("S",),
        (("S", "bij"),),
        (("X", "bie"), ("Y", "bje")),
        "b",
        ("sub", "sum"),
        flat=True,
        fallible=True,
        admits=_distant,
    ),
    *(_layer_norm(scale, shift) for scale, shift in (("G", "B"), ("G", ""), ("", ""))),
    *(_layer_norm_gradient(scale, stored) for stored in (False, True) for scale in ("G", "")),
    *(r for stored in (False, True) for r in _channel_norms("ngks", "ng", "ks", "group_norm", stored)),
    *(r for stored in (False, True) for r in _channel_norms("nks", "k", "ns", "batch_norm", stored)),
    *_attention(True),
    *_attention(False),
)
