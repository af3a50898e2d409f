"""The page's GPU section: one table of all rows that there are results of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilec.bench.gpu_facts import Fact
from tilec.bench.gpu_rows import ALONE, HAND, WITH_LIB, Goal, Row

ReadRecord = Mapping[str, Any]
LOST_ROW = "the row"  # what failed where the process did
HEAD = [
    "| work | best peer | µs | rate | with library, µs | ratio | ours alone, µs | ratio | by hand, µs | goal |",
    "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |",
]


def section(tasks: tuple[Row | Fact, ...], known: Mapping[str, ReadRecord]) -> list[str]:
    """Lines of the section: where it ran, the table, what failed, geometric means, facts."""
    rows = [(task, known[task.name]) for task in tasks if isinstance(task, Row) and task.name in known]
    facts = [(task, known[task.name]) for task in tasks if isinstance(task, Fact) and task.name in known]
    machines = sorted({record["machine"] for record in known.values() if record["machine"]})
    tuned = sum(record.get("tuned", False) for _, record in rows)
    failures = [
        f"- {task.name}, {name}: {reason}" for task, record in rows for name, reason in record["failed"].items()
    ]
    return [
        "",
        "; ".join(machines) + ". Ratios are to the best peer; **miss** marks what falls short of its goal. "
        f"Of {len(rows)} rows {tuned} have tuned kernels, the others the choices made without measuring.",
        "",
        *HEAD,
        *(gpu_line(row, record) for row, record in rows),
        "",
        *means(rows),
        *(gpu_sentence(fact, record) for fact, record in facts),
        *(["", "Failed:", "", *failures] if failures else []),
    ]


def gpu_line(row: Row, record: ReadRecord) -> str:
    us = record.get("us", {})
    peers = {name: us[name] for name in row.peers if name in us}
    best = min(peers, key=peers.__getitem__, default=None)
    goals = {name: str(row.goals[name]) for name in (WITH_LIB, ALONE) if name in row.goals}
    told = " / ".join(dict.fromkeys(goals.values())) or "-"
    cells = [row.name, best or "-", microseconds_text(peers.get(best)) if best else "-", rate(row, record)]
    for column in (WITH_LIB, ALONE):
        if column in record["failed"] or LOST_ROW in record["failed"]:
            cells += ["failed", "-"]
        elif column in us:
            cells += [microseconds_text(us[column]), verdict(row, record, column)]
        else:
            cells += ["-", "-"]
    cells.append(microseconds_text(us.get(HAND)))
    return "| " + " | ".join([*cells, told]) + " |"


def gpu_ratio(row: Row, record: ReadRecord, column: str) -> float | None:
    """How many times faster than the best peer a column is."""
    us = record.get("us", {})
    peers = [us[name] for name in row.peers if name in us]
    return min(peers) / us[column] if peers and column in us else None


def verdict(row: Row, record: ReadRecord, column: str) -> str:
    """The ratio, marked where it, or the share of the copy rate that the goal asks for, falls short."""
    found = gpu_ratio(row, record, column)
    goal = row.goals.get(column)
    missed = goal is not None and column in record.get("us", {}) and _missed(goal, found, record, column)
    return ("-" if found is None else f"{found:.2f}") + (" **miss**" if missed else "")


def _missed(goal: Goal, found: float | None, record: ReadRecord, column: str) -> bool:
    if goal.of == "us":
        return record["us"][column] > goal.bound
    value = share_text(record, column) if goal.of == "copy" else found
    return value is not None and value < goal.bound


def share_text(record: ReadRecord, column: str) -> float:
    """The least bytes that any program must move, a second, over the rate of a copy."""
    return record["bytes"] / (record["us"][column] / 1e6) / record["copy"]


def rate(row: Row, record: ReadRecord) -> str:
    """Of ours: operations a second where there are many to a byte, else bytes a second and the share of a copy's."""
    us = record.get("us", {})
    columns = [column for column in (ALONE, WITH_LIB) if column in us]
    if not columns:
        return "-"
    column = min(columns, key=us.__getitem__)
    seconds = us[column] / 1e6
    if record["flops"] > 50 * record["bytes"]:
        return f"{record['flops'] / seconds / 1e12:.3g} T/s"
    return f"{record['bytes'] / seconds / 1e12:.2f} TB/s, {share_text(record, column):.2f} of copy"


def means(rows: list[tuple[Row, ReadRecord]]) -> list[str]:
    """The geometric mean of each group's ratios."""
    lines = []
    for group in dict.fromkeys((row.group, row.mean) for row, _ in rows if row.group):
        found = []
        for column in (WITH_LIB, ALONE):
            ratios = [
                r for row, record in rows if row.group == group[0] and (r := gpu_ratio(row, record, column)) is not None
            ]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                goal = group[1] if column == ALONE else None
                missed = goal is not None and mean < goal
                found.append(
                    f"{mean:.2f} {column} of {len(ratios)} rows"
                    + (f" (goal: {goal:g}{', **miss**' if missed else ''})" if goal is not None else "")
                )
        if found:
            lines.append(f"- {group[0]}: geometric mean {', '.join(found)}.")
    return lines


def gpu_sentence(fact: Fact, record: ReadRecord) -> str:
    if record["failed"]:
        return f"- {fact.name}: failed: {'; '.join(record['failed'].values())}"
    figure, beside = record["figures"]
    goal = "" if fact.at_most is None else f"goal: {fact.at_most:g}{'' if figure <= fact.at_most else ', **miss**'}; "
    return f"- {fact.name}: {figure:.3g} {fact.unit} ({goal}{fact.beside}: {beside:.3g} {fact.unit})."


def microseconds_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
