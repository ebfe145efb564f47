"""Values of the write side and the read side: definitions, servers, tools and scopes. No I/O here."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Encoding = Literal["cl100k_base", "o200k_base", "heuristic"]

ENCODINGS: tuple[Encoding, ...] = ("cl100k_base", "o200k_base", "heuristic")
DEFAULT_ENCODING: Encoding = "cl100k_base"
"""What an answer counts tokens in where it names no encoding."""

Form = Literal["wire", "model"]
"""`wire` is a tool as `tools/list` sends it; `model` is what a model API receives: name, description, input schema."""

FORMS: tuple[Form, ...] = ("wire", "model")

NAMESPACE = uuid.UUID("5f0a2b1e-7d0c-5f6e-9a53-0c1f6f2f7a11")

# Part of every digest, of each listed server's record, and of the names of the tools' collections. Raise it when the
# points of the same definition get other ids, vectors, counts or payload keys: then every server is listed again.
FEATURES_VERSION = "6"

# Definitions that a process need not parse again, and the longest of them in characters: some 10 MiB, at most 50.
DEFINITIONS_REMEMBERED = 4096
SMALL_DEFINITION = 4096

# The fields of a definition that reach a model; titles, annotations and output schemas do not.
MODEL_FIELDS = ("name", "description", "inputSchema")


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool as its server declares it.

    `wire` is the JSON of `tools/list`: compact, with its keys in the server's order.
    `read_only` is the server's unverified `readOnlyHint`.
    """

    name: str
    wire: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    read_only: bool = False

    @staticmethod
    def from_wire(wire: str) -> ToolDefinition:
        """Return the definition with the fields that search needs.

        Raises:
            ValueError: `wire` is not a JSON object with a string `name`.
        """
        return (_remembered if len(wire) <= SMALL_DEFINITION else _parsed)(wire)

    def as_object(self) -> dict[str, Any]:
        """Return the decoded JSON object."""
        decoded: dict[str, Any] = json.loads(self.wire)
        return decoded

    def for_model(self) -> dict[str, Any]:
        """Return the fields that a model API receives, in the server's order."""
        return {key: value for key, value in self.as_object().items() if key in MODEL_FIELDS}


def _parsed(wire: str) -> ToolDefinition:
    tool = object_of(json.loads(wire))
    if not isinstance(tool.get("name"), str):
        raise ValueError("expected a JSON object with a string 'name'")  # the same class as for invalid JSON
    return ToolDefinition(
        name=tool["name"],
        wire=wire,
        description=str(tool.get("description") or tool.get("title") or ""),
        parameters=tuple(object_of(object_of(tool.get("inputSchema")).get("properties"))),
        read_only=object_of(tool.get("annotations")).get("readOnlyHint") is True,
    )


_remembered = lru_cache(DEFINITIONS_REMEMBERED)(_parsed)


def object_of(value: object) -> dict[str, Any]:
    """Return a JSON value that is an object, else an empty object: servers declare what they like."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


Annotation = Literal[
    "read_only", "not_read_only", "destructive", "not_destructive", "idempotent", "not_idempotent", "open_world",
    "closed_world",
]  # fmt: skip


def annotations_of(definition: ToolDefinition) -> frozenset[Annotation]:
    """Return the annotations that hold for a tool by its hints, which are claims of its server.

    Absent and invalid hints have the defaults of MCP: not read-only, destructive, not idempotent, open world.
    A tool that declares itself read-only and destructive counts as both.
    """
    hints = object_of(definition.as_object().get("annotations"))
    read_only = hints.get("readOnlyHint") is True
    destructive = hints["destructiveHint"] if isinstance(hints.get("destructiveHint"), bool) else not read_only
    return frozenset(
        (
            "read_only" if read_only else "not_read_only",
            "destructive" if destructive else "not_destructive",
            "idempotent" if hints.get("idempotentHint") is True else "not_idempotent",
            "closed_world" if hints.get("openWorldHint") is False else "open_world",
        )
    )


def digest(definition: ToolDefinition, declared_name: str) -> str:
    """Return 32 hex digits that change whenever the tool or its vectors change.

    The order of the definition's keys is ignored, since some servers change it with each listing.
    The server's declared name is included, since it is embedded.
    The server's id is not, so that replicas of one server share their digests.
    """
    digest_of = _remembered_digest if len(definition.wire) <= SMALL_DEFINITION else _digest
    return digest_of(definition.wire, declared_name)


def _digest(wire: str, declared_name: str) -> str:
    canonical = json.dumps(json.loads(wire), sort_keys=True)
    material = "\x00".join((FEATURES_VERSION, declared_name, canonical))
    return hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_remembered_digest = lru_cache(DEFINITIONS_REMEMBERED)(_digest)


def catalog_digest(digests: Mapping[str, str]) -> str:
    """Return 32 hex digits for a server's whole set of tools, given their digests by name."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def point_id(server_id: str, tool_name: str) -> str:
    """Return the tool's point id, a UUID of version 8 (RFC 9562); the same pair always has the same id.

    The first half is a hash of the server, with 60 bits; the second is one of the tool within the server, with 62.
    Two of 20,000 tools of a server share an id with a probability of 4e-11, and tools of two servers with less.
    """
    server = uuid.uuid5(NAMESPACE, server_id)
    first, second = str(server), str(uuid.uuid5(server, tool_name))
    return f"{first[:14]}8{first[15:19]}{second[19:]}"


def server_half(point: str) -> str:
    """Return the half of a tool's point id that all tools of its server share.

    Two of 100,000 servers share it with a probability of 4e-9.
    """
    return point[:18]


# The version of stored documents. A document of this version has the fields of its model, or fewer, or those of a
# newer release too: readers fill in defaults and ignore unknown fields. So a new field with a default needs no new
# version. A release that changes or removes a field raises the version one release after the readers accept both.
Version = Literal[1]


class StoredDocument(BaseModel):
    """A document that other releases read. Without a version it has the first; with an unknown one it is unreadable."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Version = 1


Status = Literal["running", "stopped", "quarantined"]

ServerState = Literal["quarantined", "sign-in", "failing", "stale", "waiting", "installing", "stopped", "listed"]
"""The words for a server's state, from the one to look at first to the usual one.

`quarantined`: its tools are hidden after too many failures. `sign-in`: a person has to sign in to it, and the tools of
an earlier listing are found. `failing`: never listed, and its last listing failed.
`stale`: its tools are those of an earlier listing, since the last one failed. `waiting`: it was not listed yet.
`installing`: the same of a stdio server, which may install packages at its first start. `listed`: its tools are found.
"""
SERVER_STATES: tuple[ServerState, ...] = get_args(ServerState)

Transport = Literal["streamable-http", "sse", "stdio"]

DefinitionPolicy = Literal["open", "notify", "approve"]
"""A tool with a changed definition is accepted at once, served with a mark, or held until an operator accepts it."""

POLICIES: tuple[DefinitionPolicy, ...] = ("open", "notify", "approve")
"""From the least strict to the strictest."""

# The label that joins servers, or separates them, as replicas.
REPLICA_SET = "replica_set"

# The label with the name of a server as its operator wrote it, if its id is another.
NAME_LABEL = "name"

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
    `subjects` are what most of its tools are for, of `shared.text.subjects`.
    `features_version` is the version of the features that the sums were computed from.
    `catalog_digest` is the digest of the definitions behind the sums; it is empty while the tools are being changed.
    `revision` is the number of the reconciliation that wrote the record, increasing over all servers.
    `source` announced the server last. `failures` counts consecutive reconciliations without a list. `stopped_at` is
    None for a server that is not stopped.
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
    subjects: tuple[str, ...] = ()
    features_version: str = ""
    catalog_digest: str = ""
    generation: int = 0
    revision: int = 0
    last_listed_at: float | None = None
    stopped_at: float | None = None
    stale_since: float | None = None
    last_error: str | None = None
    needs_sign_in: bool = False
    failures: int = 0
    next_reconcile_at: float | None = None

    @property
    def state(self) -> ServerState:
        """Return the state of the server, as the page, `toolscale ls` and the metrics name it."""
        if self.status != "running":
            return self.status
        if self.stale_since is not None and self.needs_sign_in:
            return "sign-in"
        if self.stale_since is not None:
            return "failing" if self.last_listed_at is None else "stale"
        if self.is_listed:
            return "listed"
        return "installing" if self.endpoint.transport == "stdio" else "waiting"

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


@dataclass(frozen=True, slots=True)
class IndexedTool:
    """A tool in the index.

    `token_counts` counts the wire form, `model_counts` the model form. Both lack an encoding whose count failed.
    The heuristic has one estimate for both forms.
    `changed_since` is the ISO date of a change that no operator has accepted yet.
    """

    server_id: str
    definition: ToolDefinition
    digest: str
    token_counts: Mapping[Encoding, int]
    groups: frozenset[str] = frozenset()
    status: Status = "running"
    model_counts: Mapping[Encoding, int] = field(default_factory=dict["Encoding", int])
    changed_since: str | None = None

    def counts(self, form: Form) -> Mapping[Encoding, int]:
        """Return the counts of this form."""
        return self.model_counts if form == "model" else self.token_counts

    @property
    def qualified_name(self) -> str:
        """Return `server:tool`, the name for agents and people."""
        return f"{self.server_id}:{self.definition.name}"

    @property
    def definition_id(self) -> str:
        """Return an id that equal definitions share: the digest, or the point's id while the digest is cleared."""
        return self.digest or point_id(self.server_id, self.definition.name)

    @property
    def definition_name(self) -> str:
        """Return `tool@digest`, the name of the definition on any server, with the first 8 digits of its digest."""
        return f"{self.definition.name}@{self.digest[:8]}"


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool's server, name and digest; equal digests are equal definitions."""

    server_id: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class ToolPage:
    """A page of tools in a stable order; `next_after` is the last point id, None on the last page."""

    tools: Sequence[IndexedTool]
    next_after: str | None = None


@dataclass(frozen=True, slots=True)
class TokenSum:
    """The tokens of all counted tools in a scope, and how many tools could not be counted."""

    tokens: int
    counted: int
    uncounted: int

    @property
    def tools(self) -> int:
        """Return the number of tools, counted or not."""
        return self.counted + self.uncounted


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of hashed terms: `indices` are distinct, ascending and of 32 bits; `values` has a weight for each."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ToolVectors:
    """The vectors of a tool. The dense vectors are float32, unit length, of the collection's dimension.

    `name` is embedded from server and tool name, `text` from name, description and parameter names;
    `terms` are the tool's side of BM25.
    """

    name: NDArray[np.float32]
    text: NDArray[np.float32]
    terms: SparseVector


@dataclass(frozen=True, slots=True)
class ToolFeatures:
    """Token counts and vectors of a definition. Equal digests have equal vectors, on any server.

    `token_counts` and `model_counts` count the forms of the definition `wire`. Both lack an encoding whose count
    failed, and the heuristic, which also reads the server's id.
    """

    token_counts: Mapping[Encoding, int]
    model_counts: Mapping[Encoding, int]
    vectors: ToolVectors
    wire: str


@dataclass(frozen=True, slots=True)
class EmbeddedTool:
    """A tool ready to be written."""

    tool: IndexedTool
    vectors: ToolVectors


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The vectors of a query. `dense` is float32, unit length; None searches by terms only.

    Without terms, `dense` decides alone.
    """

    dense: NDArray[np.float32] | None
    terms: SparseVector = SparseVector((), ())


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best tools of one query in three lists of at most `depth` scores by point id, best first.

    `name` and `text` are cosine similarities to the two dense vectors, `terms` are BM25 scores, all above 0.
    A list shorter than `depth` holds every matching tool of the scope.
    """

    depth: int
    name: Mapping[str, float]
    text: Mapping[str, float]
    terms: Mapping[str, float]

    @property
    def points(self) -> Set[str]:
        """Return the ids of all candidates."""
        return self.name.keys() | self.text.keys() | self.terms.keys()


@dataclass(frozen=True, slots=True)
class Selection:
    """Tools by their qualified names, and all tools of some servers."""

    servers: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()

    def admits(self, server_id: str, tool_name: str) -> bool:
        """Return whether this tool is selected."""
        return server_id in self.servers or f"{server_id}:{tool_name}" in self.tools

    def admits_some_of(self, server_id: str) -> bool:
        """Return whether any tool of this server may be selected."""
        return server_id in self.servers or any(tool.startswith(f"{server_id}:") for tool in self.tools)


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """Denies or permits tools: those of these servers, of these names, and with one of these annotations; None: any."""

    is_denial: bool
    servers: frozenset[str] | None = None
    names: frozenset[str] | None = None
    annotations: frozenset[Annotation] | None = None

    @property
    def is_of_whole_servers(self) -> bool:
        """Return whether the rule covers all tools of a server or none, for every server."""
        return self.names is None and self.annotations is None

    def is_for(self, server_id: str) -> bool:
        """Return whether the rule may cover tools of this server."""
        return self.servers is None or server_id in self.servers


DENY_ALL = (ScopeRule(is_denial=True),)
"""The rules of a scope, or of a server, without tools."""


def effective(rules: Iterable[ScopeRule]) -> tuple[ScopeRule, ...]:
    """Return the rules that decide, where the first that covers a tool does and a tool without one is permitted."""
    found: list[ScopeRule] = []
    for rule in rules:
        found.append(rule)
        if rule.servers is None and rule.is_of_whole_servers:
            break
    while found and not found[-1].is_denial:
        found.pop()
    if found and found[-1] == DENY_ALL[0]:
        while len(found) > 1 and found[-2].is_denial:
            del found[-2]
    return tuple(found)


class ToolPolicy(Hashable, Protocol):
    """Decides on single tools. Equal ones, of equal hashes, decide alike."""

    def denies(self, server_id: str, definition: ToolDefinition) -> bool:
        """Return whether nobody in the scope may call this tool."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """The tools that a caller may see. Search and baseline use the same scope, so savings never count a hidden tool.

    `None` means no restriction, for `status` too; an empty set matches nothing. `groups` matches a tool with any of
    these groups. `read_only` restricts the scope to tools with `readOnlyHint`. `exclude` removes tools by their
    qualified names. `within` restricts the scope to a toolset. `hidden` removes servers: replicas that another server
    represents. `seen` removes definitions by their digests. Of the `rules`, those of the operator's policy, the first
    that covers a tool denies or permits it; a tool that none covers is permitted. The rules know the servers and names
    of some moment, and are for filters and sums; the `policy` itself decides on a tool that was read.
    """

    groups: frozenset[str] | None = None
    servers: frozenset[str] | None = None
    status: Status | None = "running"
    read_only: bool = False
    exclude: frozenset[str] = frozenset()
    within: Selection | None = None
    hidden: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    rules: tuple[ScopeRule, ...] = ()
    policy: ToolPolicy | None = None

    @property
    def is_of_whole_servers(self) -> bool:
        """Return whether the scope contains all tools of a server or none, for every server."""
        return not self.is_of_some_tools and all(rule.is_of_whole_servers for rule in self.rules)

    @property
    def is_of_some_tools(self) -> bool:
        """Return whether the scope may contain some tools of a server and not others, whatever the rules."""
        return bool(self.read_only or self.exclude or self.seen or (self.within and self.within.tools))

    def divides(self, server_id: str) -> bool:
        """Return whether the scope may contain some tools of this server and not others."""
        return self.is_of_some_tools or self.rules_of(server_id) not in ((), DENY_ALL)

    def rules_of(self, server_id: str) -> tuple[ScopeRule, ...]:
        """Return the rules that decide on tools of this server, without their servers: equal ones treat tools alike."""
        if not self.rules:
            return ()
        return effective(replace(rule, servers=None) for rule in self.rules if rule.is_for(server_id))

    def permits(self, server_id: str, definition: ToolDefinition) -> bool:
        """Return whether the policy permits this tool; without one, every tool is permitted."""
        return self.policy is None or not self.policy.denies(server_id, definition)

    def admits(self, server: ServerRecord) -> bool:
        """Return whether the scope may contain tools of this server."""
        return (
            self.status in (None, server.status)
            and (self.groups is None or not self.groups.isdisjoint(server.groups))
            and (self.servers is None or server.server_id in self.servers)
            and server.server_id not in self.hidden
            and (self.within is None or self.within.admits_some_of(server.server_id))
            and self.rules_of(server.server_id) != DENY_ALL
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
            and self.permits(tool.server_id, tool.definition)
        )
