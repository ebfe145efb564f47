"""How much a JSON text will become, told before it is parsed.

Parsed, a text of nested containers takes a hundred times its bytes, so that a cap on bytes alone bounds no memory.
"""

from __future__ import annotations

import re

MAX_MESSAGE_NODES = 150_000
"""Real tools have a node for every 23 to 38 bytes, so this is 3.5 MB of them or more. Parsed: at most 60 MiB.

Nothing else runs in the process while a message is parsed, and lists and objects take the longest.
"""

MAX_TOOL_NODES = 20_000

# Possessive, and content with a string that does not end: hostile text is walked over once as well. JSON has no line
# end within a string, so none hides what follows it, such as the next line of an event stream.
_STRING = re.compile(rb'"[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+"?')


def count_nodes(text: bytes) -> int:
    """Return a bound of the values in a JSON text: each but the first follows `[`, `{` or `,` outside strings.

    Counted without parsing; of a text that is no JSON, no more values can be parsed before that shows.
    """
    return _marks(_STRING.sub(b"", text))


def holds_more_values(text: bytes, limit: int) -> bool:
    """Return whether a JSON text holds more values than this.

    Looks at the strings only where all commas and brackets together are too many: ten times slower, and still far
    faster than parsing.
    """
    return _marks(text) > limit and count_nodes(text) > limit


class NodeMeter:
    """Counts, in `nodes`, the values of a JSON text that comes in pieces."""

    def __init__(self) -> None:
        self.nodes = 0
        self._begun = b""

    def add(self, piece: bytes) -> None:
        """Count what comes next, whatever it was cut in two by."""
        text = self._begun + piece
        self.nodes += count_nodes(text)
        self._begun = _begun_string(text)


def _marks(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",")


def _begun_string(text: bytes) -> bytes:
    """Return how a string begins that goes on after this text: a quote, and the backslash of an escape."""
    line = text[1 + max(text.rfind(b"\n"), text.rfind(b"\r")) :]
    plain = line.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') % 2 == 0:
        return b""
    return b'"\\' if plain.endswith(b"\\") else b'"'
