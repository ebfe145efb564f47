"""Payloads of tools, servers and toolsets, and the conditions of a scope."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog
from pydantic import TypeAdapter

from shared.catalog import FORMS, IndexedTool, Scope, ServerRecord, ToolDefinition, point_id
from shared.catalog.drift import StoredChanges
from shared.index.contract import ToolState
from shared.index.points import Condition, Filter, Indexes, Payload, VectorSchema, any_of, equal_to
from shared.observability.unreadable import count_unreadable
from shared.toolset import StoredToolset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shared.catalog import DefinitionChange, Encoding, Form
    from shared.toolset import Toolset

COUNT_KEYS: Mapping[Form, Mapping[Encoding, str]] = {
    "wire": {"cl100k_base": "token_count", "o200k_base": "token_count_o200k", "heuristic": "token_estimate"},
    "model": {"cl100k_base": "model_count", "o200k_base": "model_count_o200k", "heuristic": "token_estimate"},
}
# All keys of counts; both forms share the estimate.
TOOL_COUNT_KEYS = tuple(dict.fromkeys(key for keys in COUNT_KEYS.values() for key in keys.values()))
STATE_KEYS = ("tool_name", "digest", "status", "groups", "changed_since", *TOOL_COUNT_KEYS)

NAME_VECTOR = "dense_name"
TEXT_VECTOR = "dense_text"
TERMS_VECTOR = "bm25"

TOOL_INDEXES: Indexes = {
    "server_id": "keyword",
    "digest": "exact keyword",
    "names": "exact keyword",
    "read_only": "keyword",
    "groups": "keyword",
    "status": "keyword",
    **dict.fromkeys(TOOL_COUNT_KEYS, "count"),
}
SERVER_INDEXES: Indexes = {"revision": "integer", "changed_at": "integer"}
# The keys of a server's changes without their diffs.
CHANGE_KEYS = ("server_id", "changes")
_DIFFS = TypeAdapter(list[str])

_log = structlog.get_logger()

M = TypeVar("M")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def tool_vector_schema(dimension: int) -> VectorSchema:
    """Return the schema of a tool's vectors."""
    return VectorSchema(dimension, dense=(NAME_VECTOR, TEXT_VECTOR), sparse=(TERMS_VECTOR,))


def tool_payload(tool: IndexedTool) -> Payload:
    """Return the payload of a tool, without keys for failed counts or for an accepted definition."""
    counts = {COUNT_KEYS[form][encoding]: count for form in FORMS for encoding, count in tool.counts(form).items()}
    return {
        "server_id": tool.server_id,
        "groups": sorted(tool.groups),
        "status": tool.status,
        "tool_name": tool.definition.name,
        "names": [tool.definition.name, tool.qualified_name],
        "read_only": "yes" if tool.definition.read_only else "no",  # Qdrant Edge cannot match a bool
        "digest": tool.digest,
        "definition": _escape_surrogates(tool.definition.wire),
        **({"changed_since": tool.changed_since} if tool.changed_since else {}),
        **counts,
    }


def counts_from(payload: Payload, form: Form) -> dict[Encoding, int]:
    """Return the token counts of a tool's payload, in one form."""
    return {encoding: payload[key] for encoding, key in COUNT_KEYS[form].items() if key in payload}


def state_from(payload: Payload) -> ToolState:
    """Return the state of a tool's payload, or of its `STATE_KEYS`."""
    wire, model = (counts_from(payload, form) for form in FORMS)
    groups, changed_since = frozenset(payload["groups"]), payload.get("changed_since")
    return ToolState(payload["digest"], payload["status"], groups, wire, model, changed_since)


def tool_from(payload: Payload) -> IndexedTool:
    """Return the tool of a payload; lone surrogates are escaped in `wire`."""
    return IndexedTool(
        server_id=payload["server_id"],
        definition=ToolDefinition.from_wire(payload["definition"]),
        digest=payload["digest"],
        token_counts=counts_from(payload, "wire"),
        model_counts=counts_from(payload, "model"),
        groups=frozenset(payload["groups"]),
        status=payload["status"],
        changed_since=payload.get("changed_since"),
    )


def server_payload(record: ServerRecord) -> Payload:
    """Return the payload of a server: its record as JSON, and the keys for filters."""
    # not model_dump_json, which rejects lone surrogates in a server's error text
    stored = json.dumps(record.model_dump(mode="python"), default=list)
    return {"server_id": record.server_id, "revision": record.revision, "record": stored}


def server_from(payload: Payload) -> ServerRecord | None:
    """Return the record of a payload without a newer release's fields; log an invalid one and return None."""
    stored = payload["record"]
    with suppress(ValueError):  # half the time, except for a text with lone surrogates
        return ServerRecord.model_validate_json(stored, extra="ignore")
    return _readable("server", stored, partial(ServerRecord.model_validate, extra="ignore"))


def toolset_payload(toolset: Toolset) -> Payload:
    """Return the payload of a toolset."""
    return {"name": toolset.name, "toolset": json.dumps(StoredToolset.of(toolset).model_dump())}


def toolset_from(payload: Payload) -> Toolset | None:
    """Return the toolset of a payload without a newer release's fields; log an invalid one and return None."""
    return _readable("toolset", payload["toolset"], lambda stored: StoredToolset.model_validate(stored).toolset)


def changes_payload(server_id: str, changes: Sequence[DefinitionChange]) -> Payload:
    """Return the payload of a server's changes, newest first: the diffs are apart, since most readers need none."""
    stored = StoredChanges(changes=tuple(change.without_diff for change in changes))
    return {
        "server_id": server_id,
        "changed_at": int(changes[0].at),
        "changes": json.dumps(stored.model_dump()),
        "diffs": json.dumps([change.diff for change in changes]),
    }


def changes_from(payload: Payload) -> Sequence[DefinitionChange]:
    """Return the changes of a payload, with diffs if it has them; log an invalid payload and return none."""
    return _readable("changes", payload["changes"], partial(_with_diffs, diffs=payload.get("diffs"))) or ()


def _with_diffs(stored: object, diffs: str | None) -> Sequence[DefinitionChange]:
    changes = StoredChanges.model_validate(stored).changes
    if diffs is None:
        return changes
    texts = zip(changes, _DIFFS.validate_python(json.loads(diffs)), strict=True)
    return tuple(change.model_copy(update={"diff": diff}) for change, diff in texts)


def _readable(kind: Literal["server", "toolset", "changes"], stored: str, parse: Callable[[object], M]) -> M | None:
    try:
        return parse(json.loads(stored))
    except ValueError as error:
        count_unreadable(kind)
        _log.error("record_unreadable", kind=kind, reason=str(error))
        return None


def matches_nothing(scope: Scope) -> bool:
    """Return whether a scope cannot contain any tool."""
    is_none_selected = scope.within is not None and not scope.within.servers and not scope.within.tools
    return scope.groups == frozenset() or scope.servers == frozenset() or is_none_selected


def scope_filter(scope: Scope) -> Filter:
    """Return the filter for the tools in the scope."""
    within = scope.within
    return _without_empty(
        must=(
            equal_to("status", scope.status) if scope.status else None,
            any_of("groups", _storable(scope.groups)) if scope.groups is not None else None,
            any_of("server_id", _server_ids(scope.servers)) if scope.servers is not None else None,
            equal_to("read_only", "yes") if scope.read_only else None,
        ),
        must_not=(
            any_of("names", _storable(scope.exclude)) if scope.exclude else None,
            any_of("server_id", _server_ids(scope.hidden)) if scope.hidden else None,
            any_of("digest", sorted(scope.seen)) if scope.seen else None,
        ),
        should=(
            # by id, since another server's tool may have a qualified name as its name
            {"has_id": _point_ids(within.tools)} if within is not None else None,
            any_of("server_id", sorted(within.servers)) if within is not None else None,
        ),
    )


def _without_empty(**conditions: Sequence[Condition | None]) -> Filter:
    present = {name: [each for each in found if each] for name, found in conditions.items()}
    return {name: found for name, found in present.items() if found}


def restricted(where: Filter, condition: Condition) -> Filter:
    """Return the filter for points that meet this condition too."""
    return {**where, "must": [*where.get("must", ()), condition]}


# Replicas restrict each search to the same servers, until a server changes; 2,400 of them take 1.8 ms.
@lru_cache(maxsize=16)
def _server_ids(servers: frozenset[str]) -> tuple[str, ...]:
    return _storable(servers)


def named(*names: str) -> Condition:
    """Return the condition for a tool with one of these names or qualified names."""
    return any_of("names", _storable(names))


def _point_ids(tools: Iterable[str]) -> list[str]:
    return sorted(point_id(server_id, name) for server_id, _, name in (tool.partition(":") for tool in tools))


def _storable(values: Iterable[str]) -> tuple[str, ...]:
    # a caller may send any text, but engines reject lone surrogates; stored names have none
    return tuple(sorted({_LONE_SURROGATE.sub("\ufffd", value) for value in values}))


def _escape_surrogates(wire: str) -> str:
    """Return the JSON document with escaped lone surrogates, which UTF-8 cannot encode; they occur only in strings."""
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", wire)
