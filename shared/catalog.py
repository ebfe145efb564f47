"""The values both sides speak of: tools, servers, scopes, candidates. No I/O here.

Identity and change are decided here too: a point's id and a definition's digest.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from shared.toolset import Selection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Encoding = Literal["cl100k_base", "o200k_base", "heuristic"]
ENCODINGS: tuple[Encoding, ...] = ("cl100k_base", "o200k_base", "heuristic")

Status = Literal["running", "stopped", "quarantined"]
Transport = Literal["streamable-http", "sse", "stdio"]

NAMESPACE = uuid.UUID("5f0a2b1e-7d0c-5f6e-9a53-0c1f6f2f7a11")

# Part of every digest: raise it when counting or embedding of the same definition changes.
FEATURES_VERSION = "2"


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool as its server declares it.

    `wire` is the JSON a client would receive from `tools/list`, which is what tokens are counted over.
    `read_only` is what the server says (`readOnlyHint`), which nobody has checked.
    """

    name: str
    wire: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    read_only: bool = False

    @classmethod
    def from_wire(cls, wire: str) -> ToolDefinition:
        """Read the fields that search needs out of a tool's wire JSON.

        Raises:
            ValueError: it is not a JSON object with a string `name`.
        """
        tool = _object(json.loads(wire))
        if not isinstance(tool.get("name"), str):
            raise ValueError("expected a JSON object with a string 'name'")  # one error for bad JSON
        return cls(
            name=tool["name"],
            wire=wire,
            description=str(tool.get("description") or tool.get("title") or ""),
            parameters=tuple(_object(_object(tool.get("inputSchema")).get("properties"))),
            read_only=_object(tool.get("annotations")).get("readOnlyHint") is True,
        )

    def as_object(self) -> dict[str, Any]:
        """Return the definition as the JSON object it is on the wire."""
        decoded: dict[str, Any] = json.loads(self.wire)
        return decoded


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def digest(definition: ToolDefinition, declared_name: str) -> str:
    """Return 32 hex digits that change when anything counted or embedded of the tool would.

    The server's declared name is part of it, since it is part of the embedded text; the server's id is not,
    so that replicas of one server share their digests.
    """
    material = "\x00".join((FEATURES_VERSION, declared_name, definition.wire))
    return hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def catalog_digest(digests: Mapping[str, str]) -> str:
    """Return 32 hex digits that stand for a server's whole set of tools, given their digests by name."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def point_id(server_id: str, tool_name: str) -> str:
    """Return the tool's point id: the same pair always gives the same UUID, different pairs never share one.

    Nested, because joining the two with any separator would let two pairs collide.
    """
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, server_id), tool_name))


@dataclass(frozen=True, slots=True)
class IndexedTool:
    """A tool as the index holds it. An encoding absent from `token_counts` could not be counted."""

    server_id: str
    definition: ToolDefinition
    digest: str
    token_counts: Mapping[Encoding, int]
    groups: frozenset[str] = frozenset()
    status: Status = "running"

    @property
    def qualified_name(self) -> str:
        """Return `server:tool`, the name by which agents and people refer to it."""
        return f"{self.server_id}:{self.definition.name}"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of hashed terms: `indices` are distinct, ascending and of 32 bits, `values` are beside them."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ToolVectors:
    """What a tool is found by. The dense ones are float32, unit length, of the collection's dimension.

    `name` is embedded from server and tool name, `text` from name, description and parameter names;
    `terms` are the tool's side of BM25.
    """

    name: NDArray[np.float32]
    text: NDArray[np.float32]
    terms: SparseVector


@dataclass(frozen=True, slots=True)
class ToolFeatures:
    """What was made of a definition. Equal digests stand for equal counts and vectors, whichever server it is of.

    An encoding absent from `token_counts` could not be counted.
    """

    token_counts: Mapping[Encoding, int]
    vectors: ToolVectors


@dataclass(frozen=True, slots=True)
class EmbeddedTool:
    """A tool ready to be written."""

    tool: IndexedTool
    vectors: ToolVectors


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """A query as it is searched for: `dense` is float32, unit length; None searches by terms alone."""

    dense: NDArray[np.float32] | None
    terms: SparseVector


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best tools of one query in each of three lists: scores by point id, best first, as long as was asked for.

    `name` and `text` are cosine similarities to the two dense vectors, `terms` are BM25 scores, all above 0.
    A list shorter than `depth` holds every tool of the scope that it could. `servers` has each candidate's server.
    """

    depth: int
    name: Mapping[str, float]
    text: Mapping[str, float]
    terms: Mapping[str, float]
    servers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a caller may see. Search and baseline take the same scope, so savings never count a hidden tool.

    `None` means no restriction; an empty set means nothing matches. `groups` matches a tool that has any of them.
    `read_only` leaves the tools that declare that they change nothing; `exclude` leaves out tools by their
    qualified names; `within` leaves the tools of a toolset alone.
    """

    groups: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    status: Status = "running"
    read_only: bool = False
    exclude: frozenset[str] = frozenset()
    within: Selection | None = None

    @property
    def is_of_whole_servers(self) -> bool:
        """Return whether each server's tools are all within the scope or all outside."""
        return not self.read_only and not self.exclude and not (self.within and self.within.tools)

    def admits(self, server: ServerRecord) -> bool:
        """Return whether this server's tools lie within the scope, as far as that is a matter of the server."""
        return (
            server.status == self.status
            and (self.groups is None or not self.groups.isdisjoint(server.groups))
            and (self.servers is None or server.server_id in self.servers)
            and (self.within is None or self.within.admits_some_of(server.server_id))
        )


@dataclass(frozen=True, slots=True)
class TokenSum:
    """The tokens of all counted tools in a scope, and how many tools could not be counted."""

    tokens: int
    counted: int
    uncounted: int


class Endpoint(BaseModel):
    """Where a server listens. A stdio server has no URL: its command comes from the operator's own file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: Transport = "streamable-http"
    url: str | None = None
    credential_ref: str | None = None


class RejectedTool(BaseModel):
    """A tool that a server offers and that cannot be indexed, with the reason."""

    model_config = ConfigDict(frozen=True)

    name: str
    reason: str


class ServerRecord(BaseModel):
    """What the index remembers of one server, written in the same reconcile as its tools.

    `tokens` are the sums over its counted tools; `uncounted` names those without a count, per encoding.
    `recipe` is the one the tools were counted and embedded by: sums by another do not speak of the tools held now.
    `catalog_digest` stands for the very set of definitions that the sums were taken over; while it is empty, the
    record does not speak for its tools, since a change of all of them is under way.
    `revision` is the number of the reconcile that wrote it, ever increasing over all servers.
    `source` announced the server last. `failures` counts the looks in a row without a list. Times are seconds since
    the epoch.
    """

    model_config = ConfigDict(frozen=True)

    server_id: str
    endpoint: Endpoint
    declared_name: str = ""
    protocol_version: str | None = None
    groups: frozenset[str] = frozenset()
    labels: dict[str, str] = {}
    status: Status = "running"
    source: str = ""
    tool_count: int = 0
    tokens: dict[Encoding, int] = {}
    uncounted: dict[Encoding, tuple[str, ...]] = {}
    rejected: tuple[RejectedTool, ...] = ()
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
    def is_listed(self) -> bool:
        """Return whether the sums speak of tools that the index holds now."""
        return self.last_listed_at is not None and self.features_version == FEATURES_VERSION


@dataclass(frozen=True, slots=True)
class ToolPage:
    """A page of tools in a stable order; `next_after` is the point id it ends with, None at the end."""

    tools: Sequence[IndexedTool]
    next_after: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All tools a server offered in one complete walk over its pages, and those that had to be left out."""

    declared_name: str
    protocol_version: str
    tools: tuple[ToolDefinition, ...]
    rejected: tuple[RejectedTool, ...] = field(default=())
