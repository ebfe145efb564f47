"""What every index can do; one test suite holds all implementations to it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shared.catalog import (
        Candidates,
        EmbeddedTool,
        Encoding,
        IndexedTool,
        QueryVectors,
        Scope,
        ServerRecord,
        Status,
        TokenSum,
        ToolFeatures,
        ToolPage,
    )
    from shared.toolset import Toolset


# Part of the tools' collections' names: raise it when points get other vectors or payload keys.
SCHEMA_VERSION = 2

SERVERS_COLLECTION = "servers"
TOOLSETS_COLLECTION = "toolsets"
TOOLS_PREFIX = "tools__"

EMBEDDED_MAX_ADVISED_TOOLS = 20_000
"""Above this, use a Qdrant server: the embedded index compares every query with every tool."""


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """All tools as points made with one model: a collection of its own, since two models' vectors never meet."""

    model: str
    dimension: int
    schema: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """Return the name of its collection."""
        return f"{TOOLS_PREFIX}{slug(self.model)}__{self.dimension}__v{self.schema}"


@dataclass(frozen=True, slots=True)
class ToolState:
    """What must be so of a tool, and what two editions must agree on."""

    digest: str
    status: Status
    groups: frozenset[str]


def slug(model: str) -> str:
    """Return a model's name as it occurs in a collection's."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


def collection_name(model: str, dimension: int) -> str:
    """Return the name of the tools' collection: another model, dimension or schema never meets this one's points."""
    return IndexVersion(model, dimension).name


class ToolIndex(Protocol):
    """Tools and servers, kept in Qdrant. Safe to call from several threads.

    Every write is visible to the next read, from any process, when the call returns, and survives a crash
    of the caller; with replicas of a Qdrant server, to a read that meets one which has the write already.
    Writing the same thing twice changes nothing; deleting what is not there is no error.
    Every method raises IndexUnavailable when Qdrant does not answer.
    """

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        """Write these tools whole, replacing those of the same server and name."""
        ...

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        """Remove these tools of a server."""
        ...

    def features_by_digest(self, digests: Collection[str]) -> dict[str, ToolFeatures]:
        """Return what was made of the definitions of these digests, by digest, of those that any server's tool has.

        The status of that tool does not matter. What comes back of a digest does not grow with its tools.
        """
        ...

    def tool_states(self, server_id: str) -> dict[str, ToolState]:
        """Return what the index holds of a server, by tool name, whatever the tools' status."""
        ...

    def servers_with_tools(self) -> set[str]:
        """Return the ids of all servers that the index holds tools of, whatever their status."""
        ...

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        """Set status and groups of all of a server's tools without touching anything else of them."""
        ...

    def search(self, queries: Sequence[QueryVectors], scope: Scope, depth: int) -> list[Candidates]:
        """Return the candidates of each query, at most `depth` in each of their lists, in one round trip.

        The scope is applied inside the search, so a small scope still fills the lists.
        """
        ...

    def find_by_name(self, name: str, scope: Scope, limit: int) -> list[IndexedTool]:
        """Return at most `limit` tools of the scope with this very name or, as `server:tool`, qualified name."""
        ...

    def get(self, ids: Sequence[str]) -> dict[str, IndexedTool]:
        """Return the tools of these points by point id; one that is no longer there is left out."""
        ...

    def token_sum(self, scope: Scope, encoding: Encoding) -> TokenSum:
        """Return the exact sum of the scope's token counts, and how many tools have none."""
        ...

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        """Return at most `limit` qualified names of the scope's tools without a count in this encoding."""
        ...

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        """Return a page of the scope's tools in an order that stays the same while others are written.

        `after` is the `next_after` of the page before, or the point id of any tool: the page holds those behind it.
        """
        ...

    def put_server(self, record: ServerRecord) -> None:
        """Write a server's record, replacing the one before."""
        ...

    def server(self, server_id: str) -> ServerRecord | None:
        """Return a server's record, or None when it was never written."""
        ...

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        """Return all records whose revision is above `newer_than`, in no particular order."""
        ...

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        """Return the revision of every record above `newer_than`, by server; costs far less than the records."""
        ...

    def put_toolset(self, toolset: Toolset) -> None:
        """Write a toolset, replacing the one of this name."""
        ...

    def toolset(self, name: str) -> Toolset | None:
        """Return the toolset of this name, or None."""
        ...

    def toolsets(self) -> list[Toolset]:
        """Return all toolsets by their names."""
        ...

    def delete_toolset(self, name: str) -> None:
        """Remove the toolset of this name."""
        ...

    def close(self) -> None:
        """Flush what is held in memory and release the store; the index cannot be used afterwards."""
        ...
