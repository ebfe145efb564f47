"""How much a JSON text will become, told before it is parsed.

Parsed, a text of nested containers takes a hundred times its bytes, so that a cap on bytes alone bounds no memory.
"""

from __future__ import annotations

import re

MAX_MESSAGE_NODES = 150_000
"""Real tools have a node for every 23 to 38 bytes, so this is 3.5 MB of them or more. Parsed: at most 50 MiB."""

MAX_TOOL_NODES = 20_000


def count_nodes(text: bytes) -> int:
    """Return a bound of the values in a JSON text, or a part of one: each but the first follows `[`, `{` or `,`.

    Counted without parsing, at memory speed; commas and brackets within strings count as well.
    """
    return text.count(b"[") + text.count(b"{") + text.count(b",")


# Possessive, and content with a string that does not end: hostile text is walked over once as well.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def holds_more_values(text: bytes, limit: int) -> bool:
    """Return whether a JSON text holds more values than this, those within strings not counted.

    Looks at the strings only where all commas and brackets together are too many: ten times slower, and still far
    faster than parsing.
    """
    return count_nodes(text) > limit and count_nodes(_STRING.sub(b"", text)) > limit
