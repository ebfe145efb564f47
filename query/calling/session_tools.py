"""The tools that a server has in one session only, such as those that a call of another tool has enabled there."""

from __future__ import annotations

import anyio
from mcp import Client

from shared.catalog import ToolDefinition

MOST_PAGES = 100
LIST_S = 30.0


class SessionTools:
    """The tools of one session, listed once after each change that its server announces."""

    def __init__(self) -> None:
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

    async def named(self, name: str, client: Client) -> ToolDefinition | None:
        """Return the session's tool of this name, None if it has none or announced no change.

        Raises:
            MCPError, ValidationError: the list is an error, or invalid.
            TimeoutError: it is not complete within LIST_S.
        """
        async with self._listing:
            if self._listed_at < self._changes:
                changes = self._changes
                with anyio.fail_after(LIST_S):
                    self._listed = await _list(client)
                self._listed_at = changes
        return self._listed.get(name)


async def _list(client: Client) -> dict[str, ToolDefinition]:
    found: dict[str, ToolDefinition] = {}
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            found[tool.name] = ToolDefinition.from_wire(tool.model_dump_json(by_alias=True, exclude_unset=True))
        cursor = page.next_cursor
        if not cursor:
            break
    return found
