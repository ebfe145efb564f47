"""The tools that a server has in one session only, such as those that a call of another tool has enabled there."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import anyio
from mcp import Client

from shared.catalog import ToolDefinition

MOST_PAGES = 100
LIST_S = 30.0
MOST_BYTES = 32 << 20
"""Definitions of the tools of all sessions; each session may have a quarter of it."""
SESSIONS_SHARE = 4


class ListedTools:
    """The tools of all sessions that were listed: the least recently listed are dropped beyond MOST_BYTES."""

    def __init__(self) -> None:
        self._bytes: WeakKeyDictionary[SessionTools, int] = WeakKeyDictionary()

    def add(self, tools: SessionTools, size_bytes: int) -> None:
        """Count the tools of a session, and let others be listed again once they are needed."""
        self._bytes.pop(tools, None)
        self._bytes[tools] = size_bytes
        while sum(self._bytes.values()) > MOST_BYTES:
            oldest = next(iter(self._bytes))
            del self._bytes[oldest]
            oldest.drop()


class SessionTools:
    """The tools of one session, listed once after each change that its server announces."""

    def __init__(self, listed: ListedTools) -> None:
        self._all = listed
        self._changes = self._listed_at = 0
        self._listed: dict[str, ToolDefinition] = {}
        self._listing = anyio.Lock()

    @property
    def have_changed(self) -> bool:
        """Return whether the server has announced a change in this session."""
        return self._changes > 0

    def changed(self) -> None:
        """Note that the server announces a change."""
        self._changes += 1

    def drop(self) -> None:
        """Forget the tools until one is asked for."""
        self._listed, self._listed_at = {}, 0

    async def named(self, name: str, client: Client) -> ToolDefinition | None:
        """Return the session's tool of this name, None if it has none or announced no change.

        Raises:
            MCPError, ValidationError: the list is an error, or invalid.
            ValueError: it exceeds the share of a session in MOST_BYTES.
            TimeoutError: it is not complete within LIST_S.
        """
        async with self._listing:
            if self._listed_at < self._changes:
                changes = self._changes
                with anyio.fail_after(LIST_S):
                    listed, size_bytes = await _list(client)
                self._listed, self._listed_at = listed, changes
                self._all.add(self, size_bytes)
            return self._listed.get(name)


async def _list(client: Client) -> tuple[dict[str, ToolDefinition], int]:
    """Return the tools by name, and the bytes of their definitions."""
    found: dict[str, ToolDefinition] = {}
    size_bytes = 0
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            wire = tool.model_dump_json(by_alias=True, exclude_unset=True)
            size_bytes += len(wire.encode())
            if size_bytes > MOST_BYTES // SESSIONS_SHARE:
                raise ValueError(f"more than {MOST_BYTES // SESSIONS_SHARE} bytes")
            found[tool.name] = ToolDefinition.from_wire(wire)
        cursor = page.next_cursor
        if not cursor:
            break
    return found, size_bytes
