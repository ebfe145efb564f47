"""Results of a run as stored in JSON. The report is rendered from these values only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from benchmarks.recount.rows import Row


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class NumberResult(_Kept):
    """How often a number was compared and was equal; `example` is the first difference, or else the first row."""

    number: str
    compared: int
    equal: int
    example: Row


class Results(_Kept):
    """Everything a run found; `session` has the rows of the last report, over all messages."""

    made_at: str
    servers: int
    tools: int
    messages: int
    numbers: tuple[NumberResult, ...]
    session: tuple[Row, ...]
    differences: tuple[Row, ...]

    @property
    def compared(self) -> int:
        """Return the number of compared numbers."""
        return sum(number.compared for number in self.numbers)


def results_of(rows: Sequence[Row], last_report: str, *, servers: int, tools: int, messages: int) -> Results:
    """Return the results of these rows; `last_report` is the answer of the last report."""
    by_number: dict[str, list[Row]] = {}
    for row in rows:
        by_number.setdefault(row.number, []).append(row)
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        servers=servers,
        tools=tools,
        messages=messages,
        numbers=tuple(_number(number, of_number) for number, of_number in sorted(by_number.items())),
        session=tuple(row for row in rows if row.answer == last_report and row.number.startswith("report totals.")),
        differences=tuple(row for row in rows if not row.is_equal),
    )


def _number(number: str, rows: Sequence[Row]) -> NumberResult:
    different = [row for row in rows if not row.is_equal]
    return NumberResult(
        number=number, compared=len(rows), equal=len(rows) - len(different), example=(different or rows)[0]
    )
