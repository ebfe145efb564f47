"""Invisible characters, and the texts of a JSON value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

INVISIBLE = (
    "a \n1#\u20e3\x1b\x7f\x9b\u00ad\u061c\u200b\u200c\u200d\u202e\u2069\u3164\ufe0e\ufe0f\ufeff\u2764\u0627"
    "\U000e0041\U0001f469"
)
"""Forbidden characters, and those beside which a joiner or a selector is allowed."""


def texts_in(value: Any) -> Iterator[str]:
    """Yield all keys and texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield key
            yield from texts_in(inner)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        for inner in items:
            yield from texts_in(inner)
