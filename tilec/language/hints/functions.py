"""Functions of torch, NumPy and C by name: the Tile text for a call of one, with the call's own arguments in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.types import DTYPES

LETTERS = "ijklmnop"
_Writer = Callable[[Sequence[str]], str]
SUBSCRIBED = re.compile(rf"({'|'.join(AGGREGATIONS)})_([a-z])")  # sum_i
ELEMENTWISE_PAIRS = {
    "maximum": "max",
    "minimum": "min",
    "fmax": "max",
    "fmin": "min",
}  # of two tensors, never along an axis


def replacement(function: str, args: Sequence[str], source: str = "", output: str = "Y") -> str | None:
    """What to write in the place of `function(args)`, None where nothing is known. `source` tells the ranks of tensors,
    `output` is what is assigned, with the indices that it has."""
    pair = ELEMENTWISE_PAIRS.get(function)
    if pair is not None and len(args) == 2 and "=" not in args[1]:
        return f"{pair}({args[0]}, {args[1]})"
    function = FOREIGN_NAMES.get(function, function)
    if (bound := SUBSCRIBED.fullmatch(function)) is not None and len(args) == 1:
        return f"{bound[1]}[{bound[2]}]({args[0]})"
    if function in AGGREGATIONS and args and not (function in FUNCTIONS and len(args) > 1 and not _axis(args[1])):
        return reduction(function, args, source, output)
    writer = WRITERS.get(function)
    if writer is not None:
        try:
            return writer(args)
        except (IndexError, ValueError):
            return None
    if function in FUNCTIONS and not FUNCTIONS[function].precedence:
        return f"{function}({', '.join(args)})"
    return None


def reduction(function: str, args: Sequence[str], source: str, output: str) -> str | None:
    """`sum(X, axis=1)` as `Y[i] = sum(X[i, j])`, and `Y[b] = sum(X[b, :])` as `Y[b] = sum(X[b, j])`."""
    tensor, *options = args or ("",)
    read, assigned = subscripted(tensor), subscripted(assigned_element(output))
    if read is None or assigned is None or not all(_axis(option) or "=" in option for option in options):
        return None
    axes = [int(n) for option in options if (found := _axis(option)) is not None for n in re.findall(r"-?\d+", found)]
    (name, places), (target, wanted) = read, assigned
    if not options and ":" not in places and not set(re.findall(r"\b[a-z]\w*'?", " ".join(places))) <= set(wanted):
        return f"{function}({tensor})"
    rank = rank_in(source, name) or 0
    if not places:
        rank = rank or max([2, *(a + 1 for a in axes), *(-a for a in axes), len(wanted) + len(axes) if axes else 0])
    elif ":" not in places:
        rank = max(rank, len(places) + 1)
    places = [*places, *[":"] * (rank - len(places))]
    whole = [k for k, e in enumerate(places) if e == ":"]
    if len(places) + len(wanted) > len(LETTERS) or not all(-len(whole) <= a < len(whole) for a in axes):
        return None
    kept = [k for n, k in enumerate(whole) if axes and not {n, n - len(whole)}.intersection(axes)]
    fixed = list(dict.fromkeys(v for e in places for v in re.findall(r"\b[a-z]\w*'?", e)))
    named = [v for v in wanted if v not in fixed]
    as_written = len(named) == len(kept) and {*fixed, *named} == set(wanted)
    letters = [v for v in LETTERS if v not in (*fixed, *(named if as_written else ()))]
    filled = {k: letters[k] for k in whole} | (dict(zip(kept, named, strict=True)) if as_written else {})
    left = [*fixed, *(filled[k] for k in kept)]
    if as_written:
        target = output
    elif left:
        target = f"{target}[{', '.join(left)}]"
    return f"{target} = {function}({name}[{', '.join(filled.get(k, e) for k, e in enumerate(places))}])"


def subscripted(text: str) -> tuple[str, list[str]] | None:
    """A tensor's name and its indices; None for anything else, and where an index takes some of a dimension."""
    found = re.fullmatch(r"([A-Z]\w*'?)(?:\[([^\[\]]*)\])?", text)
    indices = [e.strip() for e in found[2].split(",")] if found is not None and found[2] else []
    if found is None or any(not e or e[0] in "-." or ":" in e and e != ":" for e in indices):
        return None
    return found[1], indices


def assigned_element(left: str) -> str:
    return re.sub(r"\s*:[^\]]*", "", left)


def rank_in(source: str, tensor: str) -> int | None:
    """How many dimensions a text gives a tensor where it first stands with brackets."""
    found = re.search(rf"\b{re.escape(tensor)}\[([^\[\]:]*)[\]:]", source)
    if found is None or "." in found[1]:
        return None
    return found[1].count(",") + 1 if found[1].strip() else None


def einsum(spec: str, tensors: Sequence[str], output: str) -> str | None:
    """An einsum string as a statement; None where it holds an ellipsis or does not fit the tensors."""
    terms, arrow, result = (part.strip() for part in spec.replace(" ", "").partition("->"))
    operands = terms.split(",")
    letters = "".join(operands)
    if not letters.isalpha() or not letters.islower() or len(operands) != len(tensors):
        return None
    if not arrow:
        result = "".join(sorted(v for v in set(letters) if letters.count(v) == 1))
    body = " * ".join(f"{t}[{', '.join(o)}]" for t, o in zip(tensors, operands, strict=True))
    summed = set(letters) - set(result)
    left = f"{output}[{', '.join(result)}]" if result else output
    return f"{left} = sum({body})" if summed else f"{left} = {body}"


def _axis(option: str) -> str | None:
    """The axes that an argument after the first names, if it does."""
    found = re.fullmatch(r"(?:(?:axis|dim)\s*=\s*)?(-?\d+|[(\[][-\d,\s]+[)\]])", option)
    return None if found is None else found[1]


def _product(args: Sequence[str]) -> str:
    a, b = map(_name, args[:2])
    return f"C[i, j] = sum({a}[i, k] * {b}[k, j])"


def operand_text(text: str) -> str:
    """A text that may stand beside an operator: in parentheses unless it is a name, a number, an element or a call."""
    head = re.match(r"[\w.']*", text)
    rest = text[head.end() if head else 0 :]
    depth, ends = 0, []
    for place, c in enumerate(rest):
        depth += (c in "([") - (c in ")]")
        if not depth:
            ends.append(place)
    whole = not rest or (rest[0] in "([" and ends == [len(rest) - 1])
    return text if whole else f"({text})"


def _name(text: str) -> str:
    """The name of a whole tensor; what is written of another argument would be wrong."""
    if not re.fullmatch(r"[A-Z]\w*'?", text):
        raise ValueError
    return text


def _softmax(args: Sequence[str], form: str = "exp({here} - max({first})) / sum(exp({first} - max({second})))") -> str:
    """Of a tensor over its last axis; of an element over its last index; otherwise the argument wants a name first."""
    element = re.fullmatch(r"([A-Z]\w*'?)(?:\[([^\[\]]*)\])?", args[0])
    if element is None:
        raise ValueError
    indices = [i.strip() for i in (element[2] or "i, j").split(",")]
    free = [v for v in (*"klmn", *LETTERS) if v not in indices][:2]
    here, first, second = (f"{element[1]}[{', '.join([*indices[:-1], v])}]" for v in (indices[-1], *free))
    text = form.format(here=here, first=first, second=second)
    return text if element[2] else f"Y[{', '.join(indices)}] = {text}"


FOREIGN_NAMES = {
    "maximum": "max", "minimum": "min", "amax": "max", "amin": "min", "fmax": "max", "fmin": "min", "power": "pow",
    "fabs": "abs", "average": "mean", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "reciprocal": "recip", "swish": "silu", "product": "prod", "sgn": "sign", "logaddexp2": "logaddexp",
    "absolute": "abs", "rint": "round", "half": "float16", "double": "float64", "float": "float32", "int": "int32",
    "long": "int64", "mm": "matmul", "bmm": "matmul", "dot": "matmul", "mul_mat": "matmul", "norm2": "norm",
    "transpose": "t", "clip": "clamp", "mod": "remainder", "fmod": "remainder", "select": "where",
    "iif": "where", "if": "where",
    "ln": "log", "concat": "cat", "concatenate": "cat", "hstack": "cat", "range": "arange", "permute": "t",
    "empty": "zeros", "full_like": "zeros_like", "ones_like": "zeros_like", "flatten": "view", "clamp_min": "relu",
    "size": "shape", "len": "shape", "numel": "shape", "astype": "to", "sqr": "square", "view": "reshape",
    "fp16": "float16", "fp32": "float32", "fp64": "float64", "f16": "float16", "f32": "float32", "f64": "float64",
    "bf16": "bfloat16", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "byte": "uint8",
    "short": "int16", "avg": "mean", "lse": "logsumexp", "cast": "to", "logistic": "sigmoid", "expit": "sigmoid",
    "invsqrt": "rsqrt", "inv_sqrt": "rsqrt",
}  # fmt: skip

WRITERS: dict[str, _Writer] = {
    "not": lambda a: f"~({a[0]})" if re.search("[<>=]", a[0]) else f"{operand_text(a[0])} == 0",
    "where": lambda a: f"{a[0]} ? {a[1]} : {a[2]}",
    "matmul": _product,
    "outer": lambda a: f"C[i, j] = {_name(a[0])}[i] * {_name(a[1])}[j]",
    "inner": lambda a: f"Y = sum({_name(a[0])}[i] * {_name(a[1])}[i])",
    "softmax": _softmax,
    "log_softmax": lambda a: _softmax(a, "{here} - logsumexp({first})"),
    "t": lambda a: f"Y[i, j] = {_name(a[0])}[j, i]",
    "square": lambda a: f"{operand_text(a[0])} * {operand_text(a[0])}",
    "clamp": lambda a: _clamped(a[0], a[1:]),
    "log": lambda a: f"log({a[0]}) / log({a[1]})" if len(a) > 1 else f"log({a[0]})",
    "gather": lambda a: f"gather({a[0]}, {a[1]})" if len(a) == 2 else _taken(a),
    "index_select": lambda a: f"gather({a[0]}, {a[2]})",
    "take_along_dim": lambda a: _taken([a[0], a[2], a[1]]),
    "cat": lambda a: f"Y[i : N + M] = i < N ? {_named(a, 0)}[i] : {_named(a, 1)}[i - N]",
    "stack": lambda a: f"Y[k, i : 2, N] = k == 0 ? {_named(a, 0)}[i] : {_named(a, 1)}[i]",
    "unsqueeze": lambda a: f"Y[i, j : 1, N] = {_name(a[0])}[j]",
    "squeeze": lambda a: f"Y[i] = {_name(a[0])}[0, i]",
    "repeat": lambda a: f"Y[i : 2*N] = {_name(a[0])}[i % N]",
    "diag": lambda a: f"Y[i] = {_name(a[0])}[i, i]",
    "trace": lambda a: f"Y = sum({_name(a[0])}[i, i])",
    "linspace": lambda a: f"O[i : {a[2]}] = {a[0]} + i * ({a[1]} - {a[0]}) / ({a[2]} - 1.0)".replace(" 0 +", ""),
    "zeros_like": lambda a: "Y[i : N] = 0.0",
    "cumprod": lambda a: f"Y[i : N] = prod({_name(a[0])}[k]), i - k < N",
    "isinf": lambda a: f"abs({a[0]}) == inf",
    "isfinite": lambda a: f"abs({a[0]}) < inf",
    "hypot": lambda a: (
        f"sqrt({operand_text(a[0])} * {operand_text(a[0])} + {operand_text(a[1])} * {operand_text(a[1])})"
    ),
    "lerp": lambda a: f"{operand_text(a[0])} + {operand_text(a[2])} * ({a[1]} - {a[0]})",
    "masked_fill": lambda a: f"{a[1]} ? {a[2]} : {a[0]}",
    "trunc": lambda a: f"{operand_text(a[0])} < 0 ? ceil({a[0]}) : floor({a[0]})",
    "delta": lambda a: f"{operand_text(a[0])} == {operand_text(a[1])}",
    "kron": lambda a: f"{operand_text(a[0])} == {operand_text(a[1])}",
    "remainder": lambda a: f"{operand_text(a[0])} % {operand_text(a[1])}",
    "log2": lambda a: f"log({a[0]}) / log(2)",
    "log10": lambda a: f"log({a[0]}) / log(10)",
    "exp2": lambda a: f"pow(2, {a[0]})",
    "cbrt": lambda a: f"pow({a[0]}, 1.0 / 3)",
    "isnan": lambda a: f"{operand_text(a[0])} != {operand_text(a[0])}",
    "leaky_relu": lambda a: f"{a[0]} > 0 ? {a[0]} : {a[1] if len(a) > 1 else 0.01} * {operand_text(a[0])}",
    "elu": lambda a: f"{a[0]} > 0 ? {a[0]} : {f'{a[1]} * ' if len(a) > 1 else ''}expm1({a[0]})",
    "mish": lambda a: f"{operand_text(a[0])} * tanh(softplus({a[0]}))",
    "relu6": lambda a: f"clamp({a[0]}, 0, 6)",
    "hardtanh": lambda a: f"clamp({a[0]}, -1, 1)",
    "hardsigmoid": lambda a: f"clamp({operand_text(a[0])} / 6 + 0.5, 0, 1)",
    "softsign": lambda a: f"{operand_text(a[0])} / (1 + abs({a[0]}))",
    "logit": lambda a: f"log({operand_text(a[0])} / (1 - {operand_text(a[0])}))",
    "logsigmoid": lambda a: f"-softplus(-{operand_text(a[0])})",
    "pi": lambda a: "pi",
    "inf": lambda a: "inf",
    "nan": lambda a: "nan",
    "norm": lambda a: f"sqrt(sum({_name(a[0])}[i] * {a[0]}[i]))",
    "zeros": lambda a: _filled(a, "0.0"),
    "ones": lambda a: _filled(a, "1.0"),
    "arange": lambda a: f"O[i : {a[0]}] = i",
    "eye": lambda a: f"O[i, j : {a[0]}, {a[0]}] = i == j",
    "shape": lambda a: f"shape({a[0]}, {a[1] if len(a) > 1 else 0})",
    "to": lambda a: f"{a[1].rpartition('.')[2]}({a[0]})" if a[1].rpartition(".")[2] in FUNCTIONS else "",
    "cumsum": lambda a: f"Y[i : N] = sum({_name(a[0])}[k]), i - k < N",
    "flip": lambda a: f"Y[i : N] = {_name(a[0])}[N - 1 - i]",
    "roll": lambda a: f"Y[i : N] = {_name(a[0])}[(i - {a[1]}) % N]",
    "reshape": lambda a: f"reshape({', '.join('N*M' if n == '-1' else n for n in a)})",
    "tril": lambda a: f"Y[i, j : N, N] = i >= j ? {_name(a[0])}[i, j] : 0",
    "triu": lambda a: f"Y[i, j : N, N] = i <= j ? {_name(a[0])}[i, j] : 0",
}


def _filled(sizes: Sequence[str], value: str) -> str:
    names = [s.strip("()[] ") for s in sizes]
    return f"O[{', '.join(LETTERS[: len(names)])} : {', '.join(names)}] = {value}"


def _clamped(x: str, limits: Sequence[str]) -> str:
    """`limits` by position or, as `min=` and `max=`, by name."""
    named = [(m[1], m[2]) if (m := re.fullmatch(r"(?:a_)?(min|max)\s*=\s*(.+)", e)) else ("", e) for e in limits]
    places = [name or ("min", "max")[k] for k, (name, _) in enumerate(named)]
    for place, (_, e) in sorted(zip(places, named, strict=True)):
        x = f"{'min' if place == 'max' else 'max'}({e}, {x})"
    return x


def _taken(args: Sequence[str]) -> str:
    """torch's gather(X, dim, I)."""
    x, dim, ix = _name(args[0]), re.sub(r"dim\s*=\s*", "", args[1]), _name(args[2])
    return f"Y[i, j] = {x}[{ix}[i, j], j]" if dim == "0" else f"Y[i, j] = {x}[i, {ix}[i, j]]"


def _named(args: Sequence[str], place: int) -> str:
    """The name of the operand at a place, those of a list among them."""
    names = [n for a in args if "=" not in a for n in re.findall(r"[A-Z]\w*", a)]
    return names[place] if place < len(names) else "AB"[place]


IN_GALLERY = {
    "layer_norm": "layer_norm", "LayerNorm": "layer_norm", "rms_norm": "rms_norm", "batch_norm": "batch_norm",
    "group_norm": "group_norm", "conv1d": "causal_depthwise_convolution", "conv2d": "convolution",
    "conv": "convolution", "conv3d": "convolution_3d", "conv_transpose2d": "transposed_convolution",
    "dropout": "dropout", "unfold": "im2col", "max_pool2d": "max_pool", "avg_pool2d": "average_pool",
    "maxpool": "max_pool", "embedding": "embedding", "one_hot": "one_hot", "cross_entropy": "cross_entropy",
    "nll_loss": "cross_entropy", "kl_div": "kl_divergence", "huber_loss": "huber", "smooth_l1_loss": "huber",
    "ctc_loss": "ctc", "binary_cross_entropy": "binary_cross_entropy", "scaled_dot_product_attention": "attention",
    "attention": "attention", "cdist": "distances", "var": "variance", "std": "variance",
    "cosine_similarity": "cosine_similarity", "cummax": "cumulative_max", "histogram": "histogram",
    "logcumsumexp": "cumulative_logsumexp", "bincount": "histogram", "histc": "histogram", "index_add": "scatter_add",
    "scatter_add": "scatter_add", "interpolate": "bilinear_resize", "pixel_shuffle": "pixel_shuffle",
    "glu": "gated_linear_unit", "swiglu": "gated_linear_unit", "rope": "rotary", "lstm": "tanh_network",
    "rnn": "tanh_network",
}  # fmt: skip
OUTSIDE = frozenset("sort argsort topk unique nonzero median mode svd eig inv inverse solve cholesky fft ifft".split())

EXTERNAL_FUNCTIONS = frozenset((*FOREIGN_NAMES, *WRITERS, *IN_GALLERY, *OUTSIDE))


ELEMENT_TYPE = re.compile(r"(float|bfloat|int|uint|complex|f|bf|fp|i|u)\d+\w*")  # float8, uint64, complex64
ALL_FUNCTIONS = ", ".join(
    f.name for f in FUNCTIONS.values() if f.triton and not f.symbol and f.name not in ("ident", "reverse_grad")
)


def elsewhere(function: str) -> str | None:
    """Where to find what an unknown function does, if anywhere."""
    if ELEMENT_TYPE.fullmatch(function):
        return f"the element types are {', '.join(DTYPES)}"
    entry = IN_GALLERY.get(function) or IN_GALLERY.get(f"{function}s")
    if entry is not None:
        return f"`tilec gallery {entry}` prints one in Tile"
    if function in OUTSIDE:
        return f"Tile has no form of `{function}`: compute it outside, and pass the result as an input"
    return None
