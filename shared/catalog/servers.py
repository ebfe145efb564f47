"""A server: its address, its listing, and the record of its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from shared.catalog.definitions import FEATURES_VERSION, Encoding, ToolDefinition
from shared.documents import StoredDocument

Status = Literal["running", "stopped", "quarantined"]

ServerState = Literal["running", "stale", "awaited", "stopped", "quarantined"]

Transport = Literal["streamable-http", "sse", "stdio"]

DefinitionPolicy = Literal["open", "notify", "approve"]
"""A tool with a changed definition is accepted at once, served with a mark, or held until an operator accepts it."""

POLICIES: tuple[DefinitionPolicy, ...] = ("open", "notify", "approve")
"""From the least strict to the strictest."""

# The label that joins servers, or separates them, as replicas.
REPLICA_SET = "replica_set"

# The label with a server's own policy for changed definitions.
DEFINITION_CHANGES = "definition_changes"


OPERATOR_SOURCE = "toolscale/mcp.json"
"""The source of the events of the operator's `mcp.json`."""

DOCKER_SOURCE = "toolscale/docker"
KUBERNETES_SOURCE = "toolscale/kubernetes"
TOOLHIVE_SOURCE = "toolscale/toolhive"
"""The sources of the watchers' events; a watcher with a watch id adds `/` and the id."""

PRODUCER_PREFIX = "toolscale/producers/"
"""Begins the source of the events of a producer with a token of its own; the rest is the producer's name."""


def owner_of(source: str) -> str | None:
    """Return the source if only our own processes may give it to an event; all other senders are one owner, None."""
    return source if source == OPERATOR_SOURCE or source.startswith(PRODUCER_PREFIX) else None


class Endpoint(BaseModel):
    """The address of a server. A stdio server has no URL: its command is in the operator's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: Transport = "streamable-http"
    url: str | None = None
    credential_ref: str | None = None


class RejectedTool(BaseModel):
    """A server's tool that cannot be indexed, with the reason."""

    model_config = ConfigDict(frozen=True)

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All tools on the pages of one complete list of a server, the rejected ones, and the names of the marked ones.

    `names_server`: its pages name the server, as those of protocol 2026-07-28 may.
    """

    declared_name: str
    protocol_version: str
    tools: tuple[ToolDefinition, ...]
    rejected: tuple[RejectedTool, ...] = field(default=())
    marked: tuple[str, ...] = ()
    names_server: bool = False


class ServerRecord(StoredDocument):
    """The state of one server, written by the same reconciliation as its tools.

    `tokens` and `model_tokens` are the sums over its counted tools, in the wire and the model form; `uncounted` names
    the others, per encoding. `marked` names tools whose texts had invisible characters. `unaccepted` counts the tools
    with a changed definition that no operator has accepted, and `held` those of them that are not served.
    `features_version` is the version of the features that the sums were computed from.
    `catalog_digest` is the digest of the definitions behind the sums; it is empty while the tools are being changed.
    `revision` is the number of the reconciliation that wrote the record, increasing over all servers.
    `source` announced the server last. `failures` counts consecutive reconciliations without a list.
    Times are seconds since the epoch.
    """

    server_id: str
    endpoint: Endpoint
    declared_name: str = ""
    protocol_version: str | None = None
    groups: frozenset[str] = frozenset()
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    status: Status = "running"
    source: str = ""
    tool_count: int = 0
    tokens: dict[Encoding, int] = Field(default_factory=dict[Encoding, int])
    model_tokens: dict[Encoding, int] = Field(default_factory=dict[Encoding, int])
    uncounted: dict[Encoding, tuple[str, ...]] = Field(default_factory=dict[Encoding, tuple[str, ...]])
    rejected: tuple[RejectedTool, ...] = ()
    marked: tuple[str, ...] = ()
    unaccepted: int = 0
    held: int = 0
    features_version: str = ""
    catalog_digest: str = ""
    generation: int = 0
    revision: int = 0
    last_listed_at: float | None = None
    stale_since: float | None = None
    last_error: str | None = None
    failures: int = 0
    next_reconcile_at: float | None = None

    @property
    def state(self) -> ServerState:
        """Return the state of the server: a server that was never listed is `awaited`, also after a failure."""
        if self.status != "running":
            return self.status
        if self.last_listed_at is None:
            return "awaited"
        if self.stale_since is not None:
            return "stale"
        return "running" if self.is_listed else "awaited"

    @property
    def is_listed(self) -> bool:
        """Return whether the sums belong to the tools in the index."""
        return self.last_listed_at is not None and self.features_version == FEATURES_VERSION

    @property
    def is_listed_before(self) -> bool:
        """Return whether an earlier index had the tools, and this one has them as soon as the server is listed."""
        was_listed = self.last_listed_at is not None and not self.is_listed
        return was_listed and self.status == "running" and self.stale_since is None

    @property
    def kind(self) -> str:
        """Return a text that interchangeable servers share: owner, declared name, and the URL's path and credential.

        Hosts and ports may differ. A stdio server is of a kind of its own, since its command may open other data.
        The label `replica_set` replaces path and credential: servers with the same value are interchangeable.
        The owner is a part, so that no server of another owner receives the calls of this one.
        """
        named = f"{owner_of(self.source) or ''} {self.declared_name}"
        if REPLICA_SET in self.labels:
            return f"{named} set {self.labels[REPLICA_SET]}"
        if self.endpoint.transport == "stdio":
            return f"{named} server {self.server_id}"
        parts = urlsplit(self.endpoint.url or "")
        return f"{named} path {parts.path}?{parts.query} {self.endpoint.credential_ref or ''}"

    @property
    def has_owner(self) -> bool:
        """Return whether the operator's file, or a producer with a token of its own, announced the server."""
        return owner_of(self.source) is not None

    @property
    def catalogue_id(self) -> str:
        """Return an id that interchangeable servers with equal tools share; empty while the tools are being changed."""
        return f"{self.catalog_digest} {self.kind}" if self.catalog_digest else ""
