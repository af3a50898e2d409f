"""Which rule carries out a statement: the first, most specific first, that applies."""

from __future__ import annotations

from collections.abc import Callable

from tilec.backends.reference.general import general
from tilec.backends.reference.product import product
from tilec.backends.reference.scatter import scatter
from tilec.backends.reference.task import Task
from tilec.errors import InternalMistake

Rule = Callable[[Task], list[str] | None]


def empty(task: Task) -> list[str] | None:
    """No valid point: every element holds the identity or the default."""
    return None if task.flat_domain is not None else [f"{task.out} = {task.allocation(filled=True)}"]


def scattered(task: Task) -> list[str] | None:
    """Whatever the other rules leave: positions in the output are computed."""
    return scatter(task, lines_for)


RULES: tuple[Rule, ...] = (empty, product, general, scattered)


def lines_for(task: Task) -> list[str]:
    """Python lines after which the statement's output is bound to its local name."""
    for rule in RULES:
        lines = rule(task)
        if lines is not None:
            return lines
    raise InternalMistake(f"no rule carries out the statement of {task.flat.output}", task.flat.span)
