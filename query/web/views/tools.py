"""One tool: its definition, its tokens, its use, its servers, and the tools nearest to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from query.answers.detail import first_sentence
from query.replicas import Replicated, Serving, servings
from query.usage.report import UsageRow, use_of_tool
from query.web.page import Page, PageRequest, message_page
from query.web.row_pages import ROWS
from query.web.servers import ServerRow
from query.web.tool_tokens import token_table
from query.web.views.history import DEFAULT_PERIOD
from shared.catalog import QueryVectors, point_id
from shared.errors import HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.catalog import IndexedTool, Scope
    from shared.index.tools import ToolIndex

NEAR = 8
# Candidates of which the nearest distinct definitions are shown.
NEAR_DEPTH = 40

_log = structlog.get_logger()


def tool(request: PageRequest) -> Page:
    """Return one tool of the caller's scope, running or not."""
    request.catalogue.ledger.refresh()
    found, record = _tool_named(request.path["name"], request), None
    if found is not None:
        record = request.catalogue.ledger.record(found.server_id)
    if found is None or record is None:
        return message_page(404, "No such tool", "There is no tool of this name that you may see.")
    index, encoding = request.catalogue.pinned().index, request.catalogue.encoding
    replicated = Replicated.of(request.caller.scope, request.catalogue.ledger.replica_sets(request.caller.scope))
    serving = _serving(found, replicated, index)
    use, mean_ms = _use(found, serving.servers, request)
    values: dict[str, Any] = {
        "tool": found,
        "does": first_sentence(found.definition.description),
        "server": ServerRow(record, record.state, None, None, None),
        "encoding": encoding,
        "table": token_table(found, encoding),
        "forms": {"model": _indented(found.definition.for_model()), "wire": _indented(found.definition.as_object())},
        "serving": serving,
        "servers": _rows(serving.servers, request),
        "also_on": _rows(serving.also_on, request),
        "use": use,
        "mean_ms": mean_ms,
        "days": DEFAULT_PERIOD,
        "near": _nearest(found, replicated.scope, index),
        "shown": ROWS,
    }
    return Page("tool.html", values)


def _tool_named(name: str, request: PageRequest) -> IndexedTool | None:
    """Return the tool of this qualified name; None if the caller may not see it."""
    server_id, _, tool_name = name.partition(":")
    point = point_id(server_id, tool_name)
    found = request.catalogue.pinned().index.get([point]).get(point)
    if found is None or not replace(request.caller.scope, status=found.status).contains(found):
        return None
    return found


def _serving(found: IndexedTool, replicated: Replicated, index: ToolIndex) -> Serving:
    """Return the servers of a tool and its name for calls; a tool that is not running has its own server alone."""
    represented = replace(found, server_id=replicated.sets.representative(found.server_id))
    return servings([represented], replicated, replicated, index)[represented.qualified_name]


def _rows(server_ids: Sequence[str], request: PageRequest) -> list[ServerRow]:
    records = filter(None, map(request.catalogue.ledger.record, server_ids))
    return [ServerRow(record, record.state, None, None, None) for record in records]


def _use(found: IndexedTool, server_ids: Collection[str], request: PageRequest) -> tuple[UsageRow | None, int | None]:
    """Return the tool's use of the last days and the mean duration of a call; None where they are not known."""
    usage, name = request.catalogue.usage, found.definition.name
    if usage is None:
        return None, None
    try:
        return use_of_tool(request.caller, name, server_ids, f"{DEFAULT_PERIOD}d", usage)
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None, None


def _nearest(found: IndexedTool, scope: Scope, index: ToolIndex) -> list[tuple[IndexedTool, float]]:
    """Return the tools of the scope with the nearest descriptions, and their cosines; each definition once."""
    features = index.features_by_digest([found.digest] if found.digest else []).get(found.digest)
    if features is None:
        return []
    query, others = QueryVectors(features.vectors.text), replace(scope, seen=frozenset({found.digest}))
    (candidates,) = index.search([query], others, NEAR_DEPTH)
    tools = index.get(list(candidates.text))
    near = [(tools[point], cosine) for point, cosine in candidates.text.items() if point in tools]
    distinct: dict[str, tuple[IndexedTool, float]] = {}
    for each, cosine in near:
        distinct.setdefault(each.definition_id, (each, cosine))
    return list(distinct.values())[:NEAR]


def _indented(definition: dict[str, Any]) -> str:
    return json.dumps(definition, ensure_ascii=False, indent=2)
