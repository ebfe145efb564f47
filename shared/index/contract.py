"""The contract of an index; one test suite checks all implementations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shared.catalog import (
        Candidates,
        DefinitionChange,
        EmbeddedTool,
        Encoding,
        Form,
        IndexedTool,
        QueryVectors,
        Scope,
        ServerRecord,
        Status,
        TokenSum,
        ToolFeatures,
        ToolName,
        ToolPage,
    )
    from shared.toolset import Toolset


# Part of the tools' collections' names: raise it when points get other ids, vectors or payload keys.
SCHEMA_VERSION = 4

SERVERS_COLLECTION = "servers"
TOOLSETS_COLLECTION = "toolsets"
TOOLS_PREFIX = "tools__"

SHARES = 16
"""The servers are divided into this many shares of about equal size, by their ids."""

EMBEDDED_MAX_ADVISED_TOOLS = 20_000
"""Above this, use a Qdrant server: the embedded index compares every query with every tool."""


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """A collection of all tools embedded with one model; vectors of two models are never mixed."""

    model: str
    dimension: int
    schema: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """Return the name of its collection."""
        return f"{TOOLS_PREFIX}{slug(self.model)}__{self.dimension}__v{self.schema}"


@dataclass(frozen=True, slots=True)
class ToolState:
    """The state of a tool that index versions must have in common; both counts lack an encoding whose count failed.

    `changed_since` is the date of a change that no operator has accepted yet.
    """

    digest: str
    status: Status
    groups: frozenset[str]
    token_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    model_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    changed_since: str | None = None


def slug(model: str) -> str:
    """Return a model's name for use in a collection's name."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


class ToolIndex(Protocol):
    """Tools and servers in Qdrant. Safe to call from several threads.

    When a write returns, reads of all processes see it, and it survives a crash of the caller.
    With replicas of a Qdrant server, a read sees it on each replica that has the write.
    A repeated write changes nothing; a delete of a missing point is no error.
    Every method raises IndexUnavailable if Qdrant does not answer.
    """

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        """Write these tools whole, replacing those of the same server and name."""
        ...

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        """Remove these tools of a server."""
        ...

    def features_by_digest(self, digests: Collection[str]) -> dict[str, ToolFeatures]:
        """Return the features by digest, for each digest that a tool of any server has, in any status.

        The size of the result does not depend on the number of tools per digest.
        """
        ...

    def tool_states(self, server_id: str) -> dict[str, ToolState]:
        """Return the states of a server's tools by name, in any status."""
        ...

    def servers_with_tools(self) -> set[str]:
        """Return the ids of all servers that have tools in the index, in any status, with or without a record."""
        ...

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        """Set status and groups of all of a server's tools, and leave the rest unchanged."""
        ...

    def clear_digests(self, digests: Collection[str]) -> None:
        """Set an empty digest on every tool with one of these digests, on any server, and leave the rest unchanged.

        One write clears all of them. The next reconciliation of their servers counts and writes these tools again.
        """
        ...

    def search(
        self, queries: Sequence[QueryVectors], scope: Scope, depth: int, corpus: Scope | None = None
    ) -> list[Candidates]:
        """Return the candidates of each query, at most `depth` in each of their lists, in one round trip.

        The search itself applies the scope, so a small scope still fills the lists. The statistics of BM25 count the
        tools of `corpus`, by default those of the scope.
        """
        ...

    def find_by_name(self, name: str, scope: Scope, limit: int) -> list[IndexedTool]:
        """Return at most `limit` tools of the scope with this exact name or qualified name."""
        ...

    def tool_names(self, names: Collection[str], scope: Scope, limit: int) -> list[ToolName]:
        """Return the names of at most `limit` tools of the scope that have one of these names, without their server."""
        ...

    def get(self, ids: Sequence[str]) -> dict[str, IndexedTool]:
        """Return the tools of these points by point id, without missing points."""
        ...

    def token_sum(self, scope: Scope, encoding: Encoding, form: Form = "wire") -> TokenSum:
        """Return the exact sum of the scope's token counts in this form, and how many tools have none."""
        ...

    def distinct_tokens(self, scope: Scope, encoding: Encoding) -> int:
        """Return the sum of the scope's counts in the wire form, where equal definitions count once."""
        ...

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        """Return at most `limit` qualified names of the scope's tools without a count in this encoding."""
        ...

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        """Return a page of the scope's tools, in an order that does not change with writes.

        The page begins after the point id `after`: the `next_after` of the last page, or any tool's.
        """
        ...

    def put_server(self, record: ServerRecord) -> None:
        """Write a server's record, replacing the last record."""
        ...

    def server(self, server_id: str) -> ServerRecord | None:
        """Return a server's record, or None if it was never written."""
        ...

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        """Return all records whose revision is above `newer_than`, in no particular order."""
        ...

    def share(self, number: int, *, limit: int, after: str = "") -> list[str]:
        """Return at most `limit` ids of servers with a record in share `number` of `SHARES`, in a fixed order.

        The list begins after the server `after`. The cost does not grow with the number of servers or tools.
        """
        ...

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        """Return each revision above `newer_than` by server, far cheaper than the records."""
        ...

    def put_changes(self, server_id: str, changes: Sequence[DefinitionChange]) -> None:
        """Replace the stored changes of a server's definitions by these; without any, delete them."""
        ...

    def changes(self, server_id: str) -> Sequence[DefinitionChange]:
        """Return the stored changes of a server's definitions, newest first."""
        ...

    def recent_changes(self, newer_than: float) -> dict[str, Sequence[DefinitionChange]]:
        """Return the changes after a time in seconds since the epoch by server, newest first, without their diffs."""
        ...

    def changed_servers(self, newer_than: float) -> set[str]:
        """Return the servers with changes after a time, in whole seconds: far cheaper than the changes."""
        ...

    def put_toolset(self, toolset: Toolset) -> None:
        """Write a toolset, replacing a toolset of this name."""
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
        """Flush and release the store; the index cannot be used afterwards."""
        ...
