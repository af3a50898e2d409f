"""Which rule carries out a statement: the first, most specific first, that applies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tilec.backends.torch.accumulated import accumulated
from tilec.backends.torch.expr.general import general
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.fused import fused
from tilec.backends.torch.matmul.biased import biased_product
from tilec.backends.torch.matmul.convolution_call import convolution_lines
from tilec.backends.torch.matmul.exponentials import exponentials
from tilec.backends.torch.matmul.keyed import keyed_products
from tilec.backends.torch.matmul.product import product_lines
from tilec.backends.torch.recurrence.recurrence import recurrence
from tilec.backends.torch.scan import of_others, scan, tested_sums
from tilec.backends.torch.scatter import scatter_lines
from tilec.backends.torch.windows import extremum_with_places, one_by_one, tested_one_by_one
from tilec.errors import InternalMistake
from tilec.ir.program import kept_with

StatementRule = Callable[[Task], list[str] | None]


def empty(task: Task) -> list[str] | None:
    """No valid point: every element holds the identity or the default."""
    return None if task.flat_domain is not None else [f"{task.out} = {task.allocation(filled=True)}"]


EXACT_RULES: tuple[StatementRule, ...] = (
    general,
    lambda task: scatter_lines(task, lines_for),  # positions in the output are computed
)
SPECIAL: tuple[StatementRule, ...] = (
    lambda task: tested_sums(task, lines_for),  # sums along an axis that tests begin anew
    recurrence,
    empty,
    # aggregations over everything before, or after, each element, or but it
    lambda task: scan(task, lines_for) or of_others(task, lines_for),
    lambda task: exponentials(task, exact_lines),  # the gradient of a log product
    lambda task: convolution_lines(task, exact_lines),
    keyed_products,
    lambda task: tested_one_by_one(task, lines_for),  # terms of a window that tests of values choose
    product_lines,
    lambda task: one_by_one(task, lines_for),
)
MOST_TOGETHER = 16  # statements in one group of loops


def lines_of_first(tasks: Sequence[Task]) -> tuple[int, list[str], frozenset[str]]:
    """How many statements, from the first on, are carried out together, the lines that do it, and outputs that get no
    tensor."""
    summed = accumulated(tasks, lines_for, lambda task: _special(task) is not None) if len(tasks) > 1 else None
    if summed:
        return summed
    biased = biased_product(tasks) if len(tasks) > 1 else None
    if biased is not None:
        return 2, biased, frozenset((tasks[0].flat.output,))
    places = extremum_with_places(tasks) if len(tasks) > 1 else None
    if places is not None:
        return 2, places, frozenset()
    special = _special(tasks[0])
    if special is not None:
        return 1, special, frozenset()
    alike = list(itertools.takewhile(lambda task: _special(task) is None, tasks[:MOST_TOGETHER]))
    together = fused(alike) if len(alike) > 1 else None
    return (*(together or (1, _first(tasks[0], EXACT_RULES))), frozenset())


def lines_for(task: Task) -> list[str]:
    """Python lines after which the statement's output is bound to its local name."""
    return _first(task, (*SPECIAL, *EXACT_RULES))


def exact_lines(task: Task) -> list[str]:
    """The same by point-wise evaluation with masks: nothing is added for points that are not valid."""
    return _first(task, EXACT_RULES)


def _special(task: Task) -> list[str] | None:
    """The lines of a special rule, kept with the task: it is looked at for the sake of those before it too."""
    return kept_with(task, "_special", lambda task: _try(task, SPECIAL))


def _try(task: Task, rules: tuple[StatementRule, ...]) -> list[str] | None:
    return next((lines for rule in rules if (lines := rule(task)) is not None), None)


def _first(task: Task, rules: tuple[StatementRule, ...]) -> list[str]:
    lines = _try(task, rules)
    if lines is None:
        raise InternalMistake(f"no rule carries out the statement of {task.flat.output}", task.flat.span)
    return lines
