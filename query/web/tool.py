"""The page of a tool: its cost, its use, a form that calls it, and its definition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from query.answers.answer import first_sentence
from query.replicas import Replicated, Serving, servings
from query.servers import ServerRow
from query.usage.recent_calls import DAYS
from query.usage.report import use_of_tool
from query.web.form import parameters_of
from query.web.page import ROWS, Page, PageRequest, message_page, read_usage
from shared.catalog import IndexedTool, QueryVectors, point_id

if TYPE_CHECKING:
    from query.web.form import Parameter
    from query.web.trial import Trial
    from shared.catalog import Scope, ToolDefinition
    from shared.index.tools import ToolIndex

NEAR = 8
# Candidates of which the nearest distinct definitions are shown.
NEAR_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool that the caller sees, and its servers."""

    tool: IndexedTool
    serving: Serving
    replicated: Replicated


def shown_tool(request: PageRequest) -> Shown | None:
    """Return the tool of the path, running or not; None if the caller sees none."""
    ledger, index, scope = request.catalogue.ledger, request.catalogue.pinned().index, request.scope
    ledger.refresh()
    server_id, _, name = request.path["name"].partition(":")
    point = point_id(server_id, name)
    found, record = index.get([point]).get(point), ledger.record(server_id)
    if found is None or record is None or not replace(scope, status=found.status).contains(found):
        return None
    replicated = Replicated.of(scope, ledger.replica_sets(scope))
    # a tool that is not running has its own server alone
    represented = replace(found, server_id=replicated.sets.representative(server_id))
    return Shown(found, servings([represented], replicated, replicated, index)[represented.qualified_name], replicated)


def tool(request: PageRequest, trial: Trial | None = None) -> Page:
    """Return one tool of the caller's scope, with the outcome of a call that was tried."""
    shown = shown_tool(request)
    if shown is None:
        return message_page(404, "No such tool", "There is no tool of this name that you may see.")
    found, serving, index = shown.tool, shown.serving, request.catalogue.pinned().index

    def rows(server_ids: Iterable[str]) -> list[ServerRow]:
        records = filter(None, map(request.catalogue.ledger.record, server_ids))
        return [ServerRow(record) for record in records]

    def indented(definition: Mapping[str, Any]) -> str:
        return json.dumps(definition, ensure_ascii=False, indent=2)

    name, period = found.definition.name, f"{DAYS}d"
    use = read_usage(request, lambda usage: use_of_tool(request.caller, name, serving.servers, period, usage))
    values: dict[str, Any] = {
        "tool": found,
        "is_denied": not request.catalogue.scope(request.caller).permits(found.server_id, found.definition),
        "does": first_sentence(found.definition.description),
        "server": rows([found.server_id])[0],
        "encoding": request.catalogue.encoding,
        "forms": {"model": indented(found.definition.for_model()), "wire": indented(found.definition.as_object())},
        "serving": serving,
        "servers": rows(serving.servers),
        "also_on": rows(serving.also_on),
        "use": use[0] if use else None,
        "mean_ms": use[1] if use else None,
        "days": DAYS,
        "near": _nearest(found, shown.replicated.scope, index),
        "shown": ROWS,
        "may_call": "tools:call" in request.caller.permissions and found.status == "running",
        "parameters": trial.parameters if trial else parameters(found.definition),
        "trial": trial,
    }
    return Page("tool.html", values)


def schema_of(definition: ToolDefinition) -> object:
    """Return the input schema of a definition, of any form."""
    return definition.as_object().get("inputSchema")


def parameters(definition: ToolDefinition) -> Sequence[Parameter]:
    """Return the empty form of a tool."""
    return parameters_of(schema_of(definition))


def _nearest(found: IndexedTool, scope: Scope, index: ToolIndex) -> list[tuple[IndexedTool, float]]:
    """Return the tools of the scope with the nearest descriptions, and their cosines; each definition once."""
    features = index.features_by_digest([found.digest] if found.digest else []).get(found.digest)
    if features is None:
        return []
    query, others = QueryVectors(features.vectors.text), replace(scope, seen=frozenset({found.digest}))
    (candidates,) = index.search([query], others, NEAR_DEPTH)
    tools = index.get(list(candidates.text))
    distinct: dict[str, tuple[IndexedTool, float]] = {}
    for point, cosine in candidates.text.items():
        if point in tools:
            distinct.setdefault(tools[point].definition_id, (tools[point], cosine))
    return list(distinct.values())[:NEAR]
