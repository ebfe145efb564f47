"""What definitions cost a context, and which part of a whole that is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# A part of a millionth is still told apart; parts of a whole sum to 1 within half of that for each.
DIGITS = 6


class Context(BaseModel):
    """Tokens, and their part of all that the caller may see, 0 to 1; null where there is no such part."""

    model_config = ConfigDict(frozen=True)

    tokens: int | None
    percent_total: float | None = Field(alias="percentTotal")


def context(tokens: int | None, total: int) -> Context:
    """Return these tokens as a part of `total`; null where they could not be counted, or the total is 0."""
    part = None if tokens is None or total == 0 else round(tokens / total, DIGITS)
    return Context(tokens=tokens, percentTotal=part)
