"""Invisible characters in the texts of servers, and the mark in place of them.

A model reads characters that a person does not see, so a text could hide an instruction from its reviewer.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

from pydantic import BaseModel

MARK = "\ufffd"
"""Stands for each run of invisible characters; a token in the common encodings."""

ValueT = TypeVar("ValueT")

# Scripts whose spelling uses joiners: Arabic to Sinhala, Myanmar, Khmer, Mongolian, and Arabic presentation forms.
_JOINING = "\u0600-\u061b\u061d-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\u1820-\u18af\ufb50-\ufdff\ufe70-\ufefc"
_PICTOGRAPHS = (
    "\u00a9\u00ae\u203c\u2049\u2122-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2900-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_WITHOUT_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_ALWAYS = _CONTROLS + _DIRECTIONS + _WITHOUT_WIDTH
# Zero-width non-joiner and joiner, and the selectors of the text and of the emoji style.
_MOSTLY = "\u200c\u200d\ufe0e\ufe0f"
_ALLOWED = (
    f"[{_JOINING}][\u200c\u200d]",
    f"[{_PICTOGRAPHS}]\u200d(?=[{_PICTOGRAPHS}])",
    f"[{_PICTOGRAPHS}]\ufe0f\u200d(?=[{_PICTOGRAPHS}])",
    f"[{_PICTOGRAPHS}][\ufe0e\ufe0f]",
    "[0-9#*]\ufe0f(?=\u20e3)",
)
# The set comes first, so that a search looks at nothing else in most texts.
_ONE = f"[{_ALWAYS}{_MOSTLY}]" + "".join(f"(?<!{allowed})" for allowed in _ALLOWED)
_INVISIBLE = re.compile(f"{_ONE}(?:[{_ALWAYS}]+|{_ONE})*")
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def mark_text(text: str) -> str:
    """Return the text with `MARK` for each run of invisible characters; the same object if it has none.

    Tabs, line ends, joiners within emoji and in scripts that need them, and the style of an emoji stay.
    """
    if text.isascii() and not _ASCII_CONTROLS.search(text):
        return text
    visible, marks = _INVISIBLE.subn(MARK, text)
    return visible if marks else text


def marked(value: ValueT) -> ValueT:
    """Return a JSON value or a model with all its texts and keys marked; the same object if nothing was invisible."""
    return cast("ValueT", _marked(value))


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return mark_text(value)
    if isinstance(value, list):
        items = cast("list[object]", value)
        after: list[object] = [_marked(item) for item in items]
        return items if _are_same(items, after) else after
    if isinstance(value, dict):
        return _marked_object(cast("dict[str, object]", value))
    if isinstance(value, BaseModel):
        fields: dict[str, object] = dict(value)
        shown = _marked_object(fields)
        return value if shown is fields else value.model_copy(update=shown)
    return value


def _marked_object(before: dict[str, object]) -> dict[str, object]:
    after = {mark_text(key): _marked(item) for key, item in before.items()}
    return before if _are_same([*before, *before.values()], [*after, *after.values()]) else after


def _are_same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(old is new for old, new in zip(before, after, strict=True))
