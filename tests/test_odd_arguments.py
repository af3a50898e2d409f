"""Whatever is given, and whatever sizes are computed: a result or one TileError, never another exception."""

from __future__ import annotations

import warnings
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from support.scale import scaled
from torch.masked import masked_tensor

import tilec
from tilec.errors import InputMistake, SizeMistake, TileError


def nested(layout):
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


ODD = {
    "bool": lambda: torch.tensor([True, False]),
    "meta": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "masked": lambda: masked_tensor(torch.ones(2), torch.tensor([True, False])),
    "uint16": lambda: torch.ones(3, dtype=torch.uint16),
    "complex": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch._neg_view(torch.ones(3)),
    "zeros without memory": lambda: torch._efficientzerotensor(3),
    "8 bits": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "no shape yet": torch.nn.UninitializedParameter,
    "strided": lambda: torch.ones(4, 3).t()[::2],
    "expanded": lambda: torch.ones(1).expand(3),
    "NumPy uint16": lambda: np.ones(3, np.uint16),
    "NumPy masked": lambda: np.ma.array([1.0, 2.0], mask=[0, 1]),
    "NumPy objects": lambda: np.array([1, "a"], object),
    "NumPy text": lambda: np.array(["a"]),
    "NumPy dates": lambda: np.array(["2020"], "M8"),
    "NumPy records": lambda: np.zeros(2, [("a", "f4")]),
    "NumPy backward": lambda: np.ones(4)[::-1],
    "NumPy read-only": lambda: np.broadcast_to(1.0, (3,)),
    "NumPy of the other order": lambda: np.ones(3, ">f4"),
    "NumPy long double": lambda: np.ones(3, np.longdouble),
    "a list": lambda: [1, 2],
    "nothing": lambda: None,
    "text": lambda: "a",
    "2^70": lambda: 2**70,
    "1j": lambda: 1j,
    "a function": lambda: print,
}


class Member:
    """An object of another library that has the member `name` and no more."""

    def __init__(self, name):
        setattr(self, name, None)


class Quantity(np.ndarray):
    """An array with a unit, say."""

    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented


SAID = {  # what no call takes, and what the hint says to pass
    "a masked array": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "X.filled(0), and numpy.ma.getmaskarray(X)"),
    "a masked array without a mask": (lambda: np.ma.array([1.0]), "X.filled(0)"),
    "a masked element": (lambda: np.ma.masked, "X.filled(0)"),
    "an array of units": (lambda: np.ones(3).view(Quantity), "numpy.asarray(X), the bare numbers"),
    "complex numbers": (lambda: torch.ones(3, dtype=torch.complex64), "torch.view_as_real(X)"),
    "complex numbers of NumPy": (lambda: np.ones(3, complex), "X.real and X.imag"),
    "objects": (lambda: np.array([1, 2], object), 'X.astype("float64")'),
    "uint32": (lambda: torch.ones(3).to(torch.uint32), "X.to(torch.int64)"),
    "float8": (lambda: torch.ones(3).to(torch.float8_e5m2), "X.to(torch.float16)"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "X.dequantize()"),
    "a sparse matrix of SciPy": (lambda: Member("toarray"), "X.toarray()"),
    "a table of pandas": (lambda: Member("to_numpy"), "X.to_numpy()"),
    "an array of JAX": (lambda: Member("__dlpack__"), "torch.from_dlpack(X)"),
    "an array by protocol": (lambda: Member("__array__"), "numpy.asarray(X)"),
    "a fraction": (lambda: Fraction(1, 2), "float(X)"),
    "2^70": (lambda: 2**70, "float(X)"),
    "nothing": (lambda: None, "left out of the text"),
}


def tried(attempt):
    """What comes out, or the TileError."""
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            return attempt()
    except TileError as error:
        return error


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments(name):
    for source in ("Y = sign(X);", "Y[] = +(X[i]);"):
        f, x = tilec.compile(source), ODD[name]()
        for attempt in (
            lambda f=f, x=x: f(x),
            lambda f=f, x=x: f.grad()(x, x),
            lambda f=f, x=x: f.lower(x).source(),
            lambda x=x, source=source: tilec.interpret(source, x),
        ):
            tried(attempt)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAID)
def test_what_to_pass(name):
    make, hint = SAID[name]
    for call in (tilec.compile("Y = 2 * X"), lambda x: tilec.interpret("Y = 2 * X", x)):
        with pytest.raises(TileError) as caught:
            call(make())
        assert f"{hint}" in str(caught.value.hint)


def test_what_the_oracle_reads():
    x = torch.tensor([True, False])
    assert tilec.interpret("Y = sign(X);", x).tolist() == [True, False] == tilec.compile("Y = sign(X);")(x).tolist()
    with pytest.raises(InputMistake, match="cannot be read"):
        tilec.interpret("Y = sign(X);", torch.empty(3, device="meta"))


OPERATORS = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "==")
PLACES = (
    "O[k : {}] = A[k];",
    "O[k : N] = A[k + {}];",
    "O[k : N] = A[({}) * k];",
    "O[k : N] = A[k % ({})];",
    "O[k : N] = A[clamp(k, 0, {})];",
    "O[k : N] = +(A[j]), k - j < {};",
    "O[k : N] = +(A[j]), k - j + ({}) < 3;",
    "O = A * ({});",
    "P = {}; O[k : P] = A[k];",
    "O = reshape(A, {});",
)
LEAVES = (
    "K",
    "N",
    "0",
    "1",
    "2",
    "-1",
    "~K",
    "70",
    "9223372036854775807",
    "same(K, 3)",
    "abs(K)",
    "max(K, N)",
    "pow(K, 3)",
)


def size(random: Random, depth: int) -> str:
    if not depth:
        return random.choice(LEAVES)
    return f"({size(random, depth - 1)} {random.choice(OPERATORS)} {size(random, depth - 1)})"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", PLACES)
def test_odd_sizes(place):
    a = np.arange(3.0)
    outcomes = []
    for seed in range(scaled(25)):
        random = Random(seed)
        source = f"function (A[N], K[]) -> (O) {{ {place.format(size(random, random.choice([1, 1, 2])))} }}"
        k = random.choice([3, 1, 0, -1, 2**62])
        f = tried(lambda source=source: tilec.compile(source))
        if isinstance(f, TileError):
            continue
        with np.errstate(all="ignore"):
            outcomes.append(tried(lambda f=f, k=k: f(a, k)))
            tried(lambda f=f, k=k: f.grad()(a, k, a))
    assert outcomes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("O[k : K << -1] = A[k];", "shifts by -1 bits, and a shift is at least 0"),
        ("O[k : 1 << 100000] = A[k];", "does not fit into 64 bits"),
        ("O[k : N * 9223372036854775807] = A[k];", "does not fit into 64 bits"),
        ("O[k, j : 4294967296, 4294967296] = A[k];", "more elements than memory can hold"),
        ("O = A + same(N, 4);", "sizes that must agree do not"),
    ],
)
def test_messages(text, message):
    f = tilec.compile(f"function (A[N], K[]) -> (O) {{ {text} }}")
    with pytest.raises(SizeMistake, match=message):
        f(np.arange(3.0), 3)


def test_bits_of_sizes_in_an_index():
    a = np.arange(6.0)
    for text in ("A[k + (K & 1)]", "A[k % -~K]", "A[clamp(k, 0, K & 1)]", "A[(K ^ 1) * k]"):
        source = f"function (A[N], K[]) -> (O) {{ O[k : N] = {text}; }}"
        for k in (3, 2):
            assert np.array_equal(tilec.compile(source)(a, k), tilec.interpret(source, a, k)), (text, k)
