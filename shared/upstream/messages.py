"""The messages of servers as JSON texts: their size and values, counted before parsing.

Nested containers need a hundred times their bytes when parsed, so a limit on bytes does not bound the memory.
"""

from __future__ import annotations

import re
import secrets

MAX_MESSAGE_NODES = 150_000
"""At least 3.5 MB of real tools, which have a node per 23 to 38 bytes. Parsed: at most 60 MiB.

A message blocks the process while it is parsed; lists and objects take the longest.
"""

MAX_TOOL_NODES = 20_000

# Possessive, and an unterminated string matches too, so hostile text needs linear time. A JSON string contains no line
# end, so an unterminated string ends with its line, for example in an event stream.
_STRING = re.compile(rb'"[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+"?')

REFUSED = secrets.token_hex(8)
"""A key in the data of an error that stands for an answer that cannot be read; no server can know it."""


def count_nodes(text: bytes) -> int:
    """Return an upper bound of the values in a JSON text: each but the first follows `[`, `{` or `,` outside strings.

    The bound also holds for the values that a parser creates before it rejects invalid JSON.
    """
    return _marks(_STRING.sub(b"", text))


def holds_more_values(text: bytes, limit: int) -> bool:
    """Return whether a JSON text contains more values than `limit`.

    Strings are removed only if commas and brackets exceed the limit. That is ten times slower,
    and still far faster than parsing.
    """
    return _marks(text) > limit and count_nodes(text) > limit


class NodeMeter:
    """Counts in `nodes` the values of a JSON text received in pieces."""

    def __init__(self) -> None:
        self.nodes = 0
        self._begun = b""

    def add(self, piece: bytes) -> None:
        """Count the values of the next piece; a piece may end anywhere."""
        text = self._begun + piece
        self.nodes += count_nodes(text)
        self._begun = _begun_string(text)


class BodyMeter:
    """Counts the bytes and the JSON values of a body."""

    events = 0

    def __init__(self) -> None:
        self._values = NodeMeter()
        self._size_bytes = 0

    @property
    def nodes(self) -> int:
        """Return the number of values so far."""
        return self._values.nodes

    def add(self, chunk: bytes) -> int:
        """Return the total bytes, including this chunk."""
        self._values.add(chunk)
        self._size_bytes += len(chunk)
        return self._size_bytes


class EventMeter:
    """Counts the bytes of the current event of an event stream, and in `nodes` its values or the last event's.

    `events` is the number of blank lines so far: of events, and of comments.
    """

    _ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")

    def __init__(self) -> None:
        self.nodes = self.events = 0
        self._values = NodeMeter()
        self._size_bytes = 0
        self._tail = b""

    def add(self, chunk: bytes) -> int:
        """Return the bytes since the last blank line, which may lie across two chunks."""
        seen = self._tail + chunk
        end = max(seen.rfind(mark) + len(mark) if mark in seen else -1 for mark in self._ENDS)
        self._size_bytes = self._size_bytes + len(chunk) if end < 0 else len(seen) - end
        self.events += 0 if end < 0 else sum(map(seen.count, self._ENDS))
        self._count(chunk if end < 0 else seen[len(self._tail) : end], None if end < 0 else seen[end:])
        self._tail = seen[max(end, len(seen) - 3, 0) :]
        return self._size_bytes

    def _count(self, continued: bytes, begun: bytes | None) -> None:
        """Count the values of the current event's part and of the next event's part."""
        self._values.add(continued)
        self.nodes = self._values.nodes
        if begun is not None:
            self._values = NodeMeter()
            self._values.add(begun)
            self.nodes = max(self.nodes, self._values.nodes)


def _marks(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",")


def _begun_string(text: bytes) -> bytes:
    """Return the open string at the end of the text: nothing, or a quote with the backslash of an open escape."""
    line = text[1 + max(text.rfind(b"\n"), text.rfind(b"\r")) :]
    plain = line.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') % 2 == 0:
        return b""
    return b'"\\' if plain.endswith(b"\\") else b'"'
