"""The cause of an HTTP error, which most servers and gateways write into its body, each in a form of its own."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import cast

# Of RFC 9457, OAuth, SOAP, and the common frameworks.
_KEYS = re.compile(
    r"(?:error_?)?(?:message|description|details?)|errors?|msg|reason|title|fault|faultstring|cause|hint", re.IGNORECASE
)
_DEPTH = 4
_AT_ONCE = 3
# Of a JSON text that is cut.
_TEXT = re.compile(rf'"(?:{_KEYS.pattern})"\s*:\s*("(?:[^"\\]|\\.)*+)', re.IGNORECASE | re.DOTALL)
_HEADLINE = re.compile(r"<(title|h1|faultstring|message)\b[^>]*>(.*?)</\1", re.IGNORECASE | re.DOTALL)
_UNSEEN = re.compile(r"<(script|style|head)\b.*?</\1[^>]*>|<[^>]*>", re.IGNORECASE | re.DOTALL)


def cause_in(body: str) -> str:
    """Return what the beginning of a body says of the cause, empty if it says nothing; credentials are not masked.

    Of JSON, the texts with the name of a message; of HTML and XML, the titles, or else the text.
    """
    try:
        parsed: object = json.loads(body, strict=False)
    except (ValueError, RecursionError):
        is_json = body.lstrip().startswith(("{", "["))
        found = [_unescaped(text) for text in _TEXT.findall(body)] if is_json else []
    else:
        found = list(_texts(parsed, _DEPTH))
    if not found:
        found = [_plain(text) for _, text in _HEADLINE.findall(body)]
    words = dict.fromkeys(filter(None, (" ".join(text.split()) for text in found)))
    return ": ".join(list(words)[:_AT_ONCE]) or " ".join(_plain(body).split())


def _plain(markup: str) -> str:
    return html.unescape(_UNSEEN.sub(" ", markup))


def _texts(value: object, depth: int) -> Iterator[str]:
    """Yield a text, or those below the keys of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth:
        for item in cast("list[object]", value)[:_AT_ONCE]:
            yield from _texts(item, depth - 1)
    elif isinstance(value, dict) and depth:
        for key, inner in cast("dict[str, object]", value).items():
            if _KEYS.fullmatch(key):
                yield from _texts(inner, depth - 1)


def _unescaped(text: str) -> str:
    """Return the text of a JSON string whose end may be missing."""
    try:
        return str(json.loads(f'{text}"', strict=False))
    except ValueError:  # it is cut within an escape
        return text.strip('"')
