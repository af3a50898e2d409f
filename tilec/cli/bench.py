"""The command bench: a program's time, accuracy and memory, beside code of torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache

import torch

from tilec.cli.compare import compare, comparison_lines, inputs_of, peer_of
from tilec.cli.options import add_source, add_types, argument_specs, compiled
from tilec.cli.progress import progress
from tilec.errors import InputMistake


def add(commands) -> None:
    bench = commands("bench", _bench, "measure a program and its gradient, against a function of torch")
    add_source(bench)
    add_types(bench)
    bench.add_argument("--vs", metavar="FILE.py:FUNCTION", help="a function of the same inputs; eager and compiled")
    bench.add_argument("--no-compile", action="store_true", help="leave torch.compile of it out")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")


def _bench(args: argparse.Namespace) -> None:
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputMistake("there is no CUDA device here", hint="--device cpu measures on the CPU")
    function = compiled(args)
    peers = {}
    if args.vs:
        peers["eager"] = peer_of(args.vs)
        if not args.no_compile:
            peers["torch.compile"] = _compiled_at_first_call(peers["eager"])
    inputs = inputs_of(argument_specs(function, args), device)
    with progress(f"measuring {function!r}", first=10.0):
        for line in comparison_lines(compare(function, peers, inputs), peers):
            print(line, flush=True)


def _compiled_at_first_call(peer: Callable[..., object]) -> Callable[..., object]:
    """`torch.compile` of it; importing that compiler takes seconds."""
    compiled = cache(lambda: torch.compile(peer))
    return lambda *args: compiled()(*args)
