"""Texts of others, for people and within sentences of ours.

They are quoted, so that none reads as a sentence of Toolscale.
"""

from __future__ import annotations

import json
import re

# Characters of names in MCP, those of server ids, and `:` and `@` of qualified names.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._/:@-]{1,300}")


def quoted(text: str) -> str:
    """Return a text in double quotes, with the quotes, backslashes and control characters in it escaped as in JSON."""
    return json.dumps(text, ensure_ascii=False)


def quoted_name(name: str) -> str:
    """Return a name of plain characters as it is, and any other as a JSON string in ASCII."""
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def printable(text: str) -> str:
    """Return the text without characters that are invisible, change its direction, or cannot be encoded."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text)


def encodable(text: str) -> str:
    """Return the text with lone surrogates replaced: JSON with one of them cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")
