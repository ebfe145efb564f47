"""The cost of tools to a client's context: tokens of the model form, and their share of a scope. Pure arithmetic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

# The tools that list other tools have the field names of their specification, in camel case.
CAMEL_CASE = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
# Shares are rounded to a ten-thousandth, so the shares of a whole sum to 1 within half of it for each share.
DIGITS = 4


class ContextInfo(BaseModel):
    """Tokens of the model form, and their share of the answer's scope, 0 to 1; null where a value does not apply."""

    model_config = CAMEL_CASE

    tokens: int | None
    percent_total: float | None = None


class ContextMeta(BaseModel):
    """The tokens of all tools of an answer, over all its pages, and those of all tools that the caller may see."""

    model_config = CAMEL_CASE

    context: ContextInfo
    total_possible_context: ContextInfo


def context_info(tokens: int | None, total: int) -> ContextInfo:
    """Return these tokens and their share of `total`; None are tokens that could not be counted."""
    return ContextInfo(tokens=tokens, percent_total=share(tokens, total))


def context_meta(tokens: int, possible: int) -> ContextMeta:
    """Return both sums; neither is a share."""
    return ContextMeta(context=ContextInfo(tokens=tokens), total_possible_context=ContextInfo(tokens=possible))


def share(tokens: int | None, total: int) -> float | None:
    """Return the share of these tokens in `total`, rounded; None without a count, or of nothing."""
    return None if tokens is None or total == 0 else round(tokens / total, DIGITS)
