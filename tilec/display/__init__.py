"""Programs for people: in mathematical notation, in notebooks, as signatures.

Programs, costs and errors lie below this package in the order of imports, and notebooks look for a method on the class:
importing the package gives them theirs.
"""

from __future__ import annotations

from tilec.cost import Cost
from tilec.display.html import cost_html, error_html, program_html
from tilec.display.latex import latex
from tilec.errors import TileError
from tilec.errors.tracebacks import traceback_lines
from tilec.ir.program import Program, Statement
from tilec.language import show, show_statement

METHODS = (
    (Program, "__str__", show),
    (Program, "latex", latex),
    (Program, "_repr_html_", program_html),
    (Statement, "__str__", show_statement),
    (Statement, "latex", latex),
    (Cost, "_repr_html_", cost_html),
    (TileError, "_repr_html_", error_html),
    (TileError, "_render_traceback_", traceback_lines),
)

for _class, _name, _method in METHODS:
    setattr(_class, _name, _method)
