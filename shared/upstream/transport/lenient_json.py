"""Parsing of messages that a strict JSON parser rejects, so that one malformed tool is left out, and not its page."""

from __future__ import annotations

import json
import re
from typing import cast

MAX_DIGITS = 4_300
"""Digits of an integer; Python converts no longer one."""

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class LongInteger:
    """An integer of more than `MAX_DIGITS` digits; it cannot be serialized."""


class LastEvent:
    """The bytes of a response body, of which an event stream keeps the end: at most `max_bytes`, twice for a while."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()

    def begin(self) -> None:
        """Drop the bytes of the last body."""
        self._body.clear()

    def add(self, chunk: bytes) -> None:
        """Append the next bytes of the body."""
        self._body += chunk
        if len(self._body) > 2 * self._max_bytes:
            del self._body[: -self._max_bytes]

    def text(self) -> bytes:
        """Return the JSON text: the data of the last event, or the whole body."""
        body = bytes(self._body)
        events = [event for event in _BLANK_LINE.split(body) if re.search(rb"^data:", event, re.MULTILINE)]
        lines = events[-1].splitlines() if events else []
        return b"\n".join(line[5:] for line in lines if line.startswith(b"data:")) or body


def parse_leniently(text: bytes) -> dict[str, object] | None:
    """Return the object of a JSON text, None if it has none.

    Invalid UTF-8 becomes U+FFFD. Control characters and lone surrogates stay. Long integers become `LongInteger`.
    """
    try:
        parsed: object = json.loads(text.decode("utf-8", "replace"), strict=False, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", parsed) if isinstance(parsed, dict) else None


def _integer(digits: str) -> int | LongInteger:
    return int(digits) if len(digits) <= MAX_DIGITS else LongInteger()
