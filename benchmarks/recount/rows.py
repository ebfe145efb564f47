"""A number of an answer beside its recount."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Value = int | float | str | bool | None


class Row(BaseModel):
    """A stated number and its recount; `number` names it, and `answer` the answer that states it."""

    model_config = ConfigDict(frozen=True)

    number: str
    answer: str
    stated: Value
    recounted: Value

    @property
    def is_equal(self) -> bool:
        """Return whether both are the same value."""
        return self.stated == self.recounted


class Rows:
    """Collects the rows of one answer."""

    def __init__(self, prefix: str, answer: str) -> None:
        self.rows: list[Row] = []
        self._prefix = prefix
        self._answer = answer

    def add(self, number: str, stated: Value, recounted: Value) -> None:
        """Add a number."""
        self.rows.append(
            Row(number=f"{self._prefix} {number}", answer=self._answer, stated=stated, recounted=recounted)
        )
