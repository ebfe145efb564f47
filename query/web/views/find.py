"""A search as an agent makes it, with the answer that the agent receives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from query.answers.detail import summary
from query.find import find_tool
from query.replicas import Replicated
from query.search.ranking import DEPTH, ScoreParts, score_parts
from query.search.request import FindRequest
from query.search.steps import embed_steps
from query.toolsets.offers import Offers
from query.web.call_example import call_example
from query.web.page import Page, PageRequest
from shared.catalog import IndexedTool, point_id
from shared.errors import BudgetTooSmall, CursorInvalid, CursorsUnavailable
from shared.text.tokens import json_text
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.answers.detail import FoundTool

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A tool of the answer as the catalogue has it; `parts` are those of its score, None if only its name matched."""

    found: FoundTool
    tool: IndexedTool
    summary: str
    call: str
    parts: ScoreParts | None


def find(request: PageRequest) -> Page:
    """Return the answer of `find_tool` beside the cost of all tools; the search is not recorded."""
    question, cursor = request.query.get("q", "").strip(), request.query.get("cursor")
    values: dict[str, Any] = {"question": question, "cursor": cursor, "answer": None, "problem": None}
    if not question:
        return Page("find.html", values)
    arguments = {"tool_description": question} | ({"cursor": cursor} if cursor else {})
    try:
        find_request = FindRequest.model_validate(arguments)
        request.catalogue.ledger.refresh()
        offered = Offers(request.catalogue).cost(request.caller, request.catalogue.encoding)
        response, timings = find_tool(find_request, request.caller.scope, request.catalogue, request.caller, offered)
    except ValidationError as error:
        return Page("find.html", values | {"problem": first_invalid_argument(error)}, 400)
    except (CursorInvalid, BudgetTooSmall) as error:
        return Page("find.html", values | {"problem": str(error)}, 400)
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        return Page("find.html", values | {"problem": "Further tools cannot be shown at the moment."}, 503)
    with_scores = "scores" in request.query
    parts = _parts(find_request, request) if with_scores else {}
    values |= {"arguments": json.dumps(arguments, ensure_ascii=False, indent=2), "with_scores": with_scores}
    values |= {"text": json_text(response.as_object()), "rows": _rows(response.tools, parts, request)}
    return Page("find.html", values | {"answer": response, "timings": timings, "encoding": request.catalogue.encoding})


def _rows(found: list[FoundTool], parts: dict[str, ScoreParts], request: PageRequest) -> list[FoundRow]:
    """Return the rows of these tools, without those removed since the search."""
    points = [point_id(*each.first_server) for each in found]
    tools = request.catalogue.pinned().index.get(points)
    return [
        _row(each, tools[point], parts, request) for each, point in zip(found, points, strict=True) if point in tools
    ]


def _row(found: FoundTool, tool: IndexedTool, parts: dict[str, ScoreParts], request: PageRequest) -> FoundRow:
    call = call_example(found.name, tool.definition)
    return FoundRow(found, tool, summary(tool.definition), call, _of(found, parts, request))


def _parts(find_request: FindRequest, request: PageRequest) -> dict[str, ScoreParts]:
    """Return the parts of the scores by point, from the first round of the search."""
    catalogue, scope = request.catalogue.pinned(), request.caller.scope
    searched = Replicated.of(scope, catalogue.ledger.replica_sets(scope)).scope
    (step,) = embed_steps(find_request.steps, catalogue.embedder)
    whole, *clauses = catalogue.index.search(step.queries, searched, DEPTH)
    return score_parts(whole, clauses)


def _of(found: FoundTool, parts: dict[str, ScoreParts], request: PageRequest) -> ScoreParts | None:
    """Return the parts of a tool's score, which the search found on the first server of a replica set."""
    sets = request.catalogue.ledger.replica_sets(request.caller.scope)
    server_id, name = found.first_server
    servers = found.served_by.servers if found.served_by else [server_id]
    points = [point_id(sets.representative(each), name) for each in servers]
    return next((parts[point] for point in points if point in parts), None)
