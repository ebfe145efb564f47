"""Text for people, in a terminal and on a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text without characters that are invisible, change its direction, or cannot be encoded."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text)


def encodable(text: str) -> str:
    """Return the text with lone surrogates replaced: JSON with one of them cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")
