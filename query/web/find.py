"""The page of a search: the tools with their closeness, each to be tried, and the answer that an agent gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from query.answers.answer import first_sentence
from query.find import find_tool
from query.search.ranking import adjusted_similarity, similarities
from query.search.request import FindRequest
from query.search.search import embed_steps
from query.toolsets.offers import NOTHING
from query.web.page import Page, PageRequest
from query.web.tool import parameters
from shared.catalog import Candidates, IndexedTool, point_id
from shared.errors import BudgetTooSmall, CursorInvalid, CursorsUnavailable, ModelUnavailable
from shared.text.tokens import json_text
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.answers.answer import FoundTool
    from query.catalogue import Catalogue
    from query.web.form import Parameter

# The scale of closeness: hardly any tool is as close to a question as this.
CLOSEST = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A tool of the answer as the catalogue has it, with the fields of its form.

    `closeness` is what the threshold of a match is compared with, None without the model.
    """

    found: FoundTool
    tool: IndexedTool
    does: str
    parameters: Sequence[Parameter]
    closeness: float | None


def find(request: PageRequest) -> Page:
    """Return the tools that `find_tool` finds, and its answer beside the cost of all tools; it is not recorded."""
    question, cursor = request.query.get("q", "").strip(), request.query.get("cursor")
    values: dict[str, Any] = {"question": question, "cursor": cursor, "answer": None, "problem": None}
    if not question:
        return Page("find.html", values)
    catalogue = request.catalogue.pinned()
    arguments = {"tool_description": question} | ({"cursor": cursor} if cursor else {})
    try:
        find_request = FindRequest.model_validate(arguments)
        catalogue.ledger.refresh()
        offered = request.offers.cost(request.caller, catalogue.encoding) if request.offers else NOTHING
        answer, timings = find_tool(find_request, catalogue.scope(request.caller), catalogue, request.caller, offered)
    except ValidationError as error:
        return Page("find.html", values | {"problem": first_invalid_argument(error)}, 400)
    except (CursorInvalid, BudgetTooSmall) as error:
        return Page("find.html", values | {"problem": str(error)}, 400)
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        return Page("find.html", values | {"problem": "Further tools cannot be shown at the moment."}, 503)
    values |= {
        "answer": answer,
        "arguments": json.dumps(arguments, ensure_ascii=False, indent=2),
        "text": json_text(answer.as_object()),
        "rows": _rows(answer.tools, question, catalogue),
        "threshold": max(catalogue.no_match_threshold, 0.0) / CLOSEST,
        "timings": timings,
        "encoding": catalogue.encoding,
        "may_call": "tools:call" in request.caller.permissions,
    }
    return Page("find.html", values)


def _rows(found: Sequence[FoundTool], question: str, catalogue: Catalogue) -> list[FoundRow]:
    """Return the rows of these tools, without those removed since the search."""
    points = [point_id(*each.first_server) for each in found]
    tools = catalogue.index.get(points)
    close = closeness(question, tools, catalogue)
    return [
        FoundRow(
            each,
            tools[point],
            first_sentence(tools[point].definition.description),
            parameters(tools[point].definition),
            close.get(point),
        )
        for each, point in zip(found, points, strict=True)
        if point in tools
    ]


def closeness(question: str, tools: Mapping[str, IndexedTool], catalogue: Catalogue) -> dict[str, float]:
    """Return how close tools are to a question by meaning, by point id; 0 to CLOSEST, as the match is decided."""
    (step,) = embed_steps([question], catalogue.embedder)
    query = step.whole.dense
    if query is None:
        return {}
    features = catalogue.index.features_by_digest({tool.digest for tool in tools.values() if tool.digest})
    found: dict[str, float] = {}
    try:
        for point, tool in tools.items():
            if of_tool := features.get(tool.digest):
                name, text = (float(query @ vector) for vector in (of_tool.vectors.name, of_tool.vectors.text))
                alone = similarities(Candidates(depth=1, name={point: name}, text={point: text}, terms={}))
                found[point] = min(max(adjusted_similarity(step.whole, alone, catalogue.embedder), 0.0), CLOSEST)
    except ModelUnavailable:
        return {}
    return found
