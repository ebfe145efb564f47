"""The results of a recount as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.recount.results import NumberResult, Results
from benchmarks.recount.rows import Row, Value

ANSWER_CHARACTERS = 100


def render(results: Results) -> str:
    """Return the report."""
    different = len(results.differences)
    lines = [
        "# Recount",
        "",
        f"A run of `python -m benchmarks.recount` on {results.made_at}, on {results.servers} third-party servers with",
        f"{results.tools} tools. Rendered from `recount.json`.",
        "",
        f"{results.messages} messages of a session were recorded by a proxy, and each number in them was counted again",
        f"with tiktoken: {results.compared:,} numbers; {different:,} of them differ.",
        "The session covers cases, not habits: it searches far more often than a task needs, so its net is no example.",
        "",
        "## The session",
        "",
        "`toolscale savings` after the session, beside the same sums over the recorded messages.",
        "",
        *_rows(results.session),
        "",
        "## All numbers",
        "",
        "The values are those of the first answer with the number, or of the first difference.",
        "",
        "| number | compared | equal | stated | recounted |",
        "|---|---:|---:|---:|---:|",
        *map(_number, results.numbers),
        "",
        "## Differences",
        "",
        *(_rows(results.differences) if different else ["None."]),
    ]
    return "\n".join(lines) + "\n"


def _number(number: NumberResult) -> str:
    shown = number.example
    return (
        f"| {number.number} | {number.compared:,} | {number.equal:,} "
        f"| {_value(shown.stated)} | {_value(shown.recounted)} |"
    )


def _rows(rows: Iterable[Row]) -> list[str]:
    head = ["| number | answer | stated | recounted | equal |", "|---|---|---:|---:|---|"]
    return [*head, *(_row(row) for row in rows)]


def _row(row: Row) -> str:
    answer = row.answer[:ANSWER_CHARACTERS].replace("|", "\\|")
    equal = "yes" if row.is_equal else "no"
    return f"| {row.number} | `{answer}` | {_value(row.stated)} | {_value(row.recounted)} | {equal} |"


def _value(value: Value) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"
