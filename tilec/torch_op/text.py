"""A function as a text from which another process makes the same one: Tile, after a word that says how it runs.

It is one line: compilers write the arguments of calls into comments of what they generate.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from tilec.errors import InputMistake
from tilec.language import parse, show
from tilec.prepare.prepared import Bounded
from tilec.specialise import Specialiser

MARK = "tilec "
_texts: WeakKeyDictionary[Specialiser, tuple[str, Specialiser | None]] = WeakKeyDictionary()
_functions: WeakValueDictionary[str, Specialiser] = WeakValueDictionary()
_made: Bounded = Bounded()  # functions of texts that came from elsewhere


def text_of(function: Specialiser) -> str:
    """Its text, for which `function_of` gives one function for as long as this one exists: this one, or an earlier one
    of the same text, which has run for graphs and so is kept."""
    known = _texts.get(function)
    if known is None:
        text = _text(function)
        given = _functions.setdefault(text, function)
        known = _texts[function] = text, None if given is function else given
    return known[0]


def _text(function: Specialiser) -> str:
    gradients: list[list[str]] = []
    while function.gradient is not None:
        gradients.insert(0, list(function.gradient.wrt))
        function = function.gradient.forward
    how: dict[str, Any] = {"backend": function.backend, "exact": function.exact, "tune": function.tune}
    how["gradients"] = gradients
    if function.chunks is not None:
        how["chunks"] = base64.b64encode(pickle.dumps(function.chunks)).decode()
    source = " ".join(show(function.program).split())
    return f"{MARK}{json.dumps({k: v for k, v in how.items() if v})}: {source}"


def function_of(text: str) -> Specialiser:
    function = _functions.get(text)
    if function is None:
        function = _made[text] = _functions[text] = _function(text)
        _texts[function] = text, None
    return function


def _function(text: str) -> Specialiser:
    if not text.startswith(MARK):
        raise InputMistake("the program of tilec.call is none that tilec wrote", hint="call a tilec.Function instead")
    how, end = json.JSONDecoder().raw_decode(text, len(MARK))
    source = text[end + 1 :]
    chunks = pickle.loads(base64.b64decode(how["chunks"])) if "chunks" in how else None
    flags = (how.get("tune", False), how.get("exact", False), chunks)
    function = Specialiser(parse(source), source, "<tile>", how.get("backend"), None, *flags)
    for wrt in how.get("gradients", ()):
        function = function.grad(tuple(wrt))
    return function
