"""How much a JSON text will become, told before it is parsed.

Parsed, a text of nested containers takes a hundred times its bytes, so that a cap on bytes alone bounds no memory.
"""

from __future__ import annotations

MAX_MESSAGE_NODES = 150_000
"""Real tools have a node for every 23 to 38 bytes, so this is 3.5 MB of them or more. Parsed: at most 50 MiB."""

MAX_TOOL_NODES = 20_000


def count_nodes(text: bytes) -> int:
    """Return a bound of the values in a JSON text, or a part of one: each but the first follows `[`, `{` or `,`.

    Counted without parsing, at memory speed; commas and brackets within strings count as well.
    """
    return text.count(b"[") + text.count(b"{") + text.count(b",")
