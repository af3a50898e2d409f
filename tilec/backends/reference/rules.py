"""Which rule carries out a statement: the first, most specific first, that applies."""

from __future__ import annotations

from collections.abc import Callable

from tilec.backends.reference.convolution import convolution
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


EXACT: tuple[Rule, ...] = (general, scattered)
RULES: tuple[Rule, ...] = (empty, convolution, product, *EXACT)


def lines_for(task: Task) -> list[str]:
    """Python lines after which the statement's output is bound to its local name."""
    return _first(task, RULES)


def exact_lines(task: Task) -> list[str]:
    """The same by point-wise evaluation with masks: nothing is added for points that are not valid."""
    return _first(task, EXACT)


def _first(task: Task, rules: tuple[Rule, ...]) -> list[str]:
    for rule in rules:
        lines = rule(task)
        if lines is not None:
            return lines
    raise InternalMistake(f"no rule carries out the statement of {task.flat.output}", task.flat.span)
