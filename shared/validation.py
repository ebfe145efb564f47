"""The first error of a failed pydantic validation as text, without the rejected value, which may be a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def first_problem(error: ValidationError, otherwise: str = "") -> str:
    """Return `field: reason` with the dotted path of the first invalid field; `otherwise` names the whole value."""
    path, reason = first_invalid(error)
    return ": ".join(filter(None, (".".join(map(str, path)) or otherwise, reason)))


def first_invalid_argument(error: ValidationError) -> str:
    """Return `argument: reason` for the first invalid argument, without the path inside its value."""
    path, reason = first_invalid(error)
    return f"{path[0]}: {reason}" if path else reason


def first_invalid(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return the path of the first invalid field, empty for the whole value, and the reason."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return problem["loc"], problem["msg"].removeprefix("Value error, ")
