"""The base of the requests of all tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, model_validator


class ToolRequest(BaseModel):
    """The arguments of a tool; an optional argument that is null, "" or [] counts as absent.

    Some clients send every optional argument.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return without_empty(cast("Mapping[str, Any]", raw), optional)


def without_empty(arguments: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the arguments without those of these names that are empty."""
    return {name: value for name, value in arguments.items() if name not in names or not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return value is None or value in ("", [])
