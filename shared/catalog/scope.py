"""The tools that a caller may see."""

from __future__ import annotations

from dataclasses import dataclass

from shared.catalog.servers import ServerRecord, Status
from shared.catalog.tools import IndexedTool
from shared.toolset import Selection


@dataclass(frozen=True, slots=True)
class Scope:
    """The tools that a caller may see. Search and baseline use the same scope, so savings never count a hidden tool.

    `None` means no restriction, for `status` too; an empty set matches nothing. `groups` matches a tool with any of
    these groups. `read_only` restricts the scope to tools with `readOnlyHint`. `exclude` removes tools by their
    qualified names. `within` restricts the scope to a toolset. `hidden` removes servers: replicas that another server
    represents. `seen` removes definitions by their digests.
    """

    groups: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    status: Status | None = "running"
    read_only: bool = False
    exclude: frozenset[str] = frozenset()
    within: Selection | None = None
    hidden: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    @property
    def is_of_whole_servers(self) -> bool:
        """Return whether the scope contains all tools of a server or none, for every server."""
        return not (self.read_only or self.exclude or self.seen or (self.within and self.within.tools))

    def admits(self, server: ServerRecord) -> bool:
        """Return whether the scope may contain tools of this server."""
        return (
            self.status in (None, server.status)
            and (self.groups is None or not self.groups.isdisjoint(server.groups))
            and (self.servers is None or server.server_id in self.servers)
            and server.server_id not in self.hidden
            and (self.within is None or self.within.admits_some_of(server.server_id))
        )

    def contains(self, tool: IndexedTool) -> bool:
        """Return whether the scope contains this tool."""
        return (
            self.status in (None, tool.status)
            and (self.groups is None or not self.groups.isdisjoint(tool.groups))
            and (self.servers is None or tool.server_id in self.servers)
            and tool.server_id not in self.hidden
            and tool.digest not in self.seen
            and (tool.definition.read_only or not self.read_only)
            and (self.within is None or self.within.admits(tool.server_id, tool.definition.name))
            and self.exclude.isdisjoint((tool.definition.name, tool.qualified_name))
        )
