"""The MCP tool `get_active_toolset`; `query.toolsets.report` implements it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.advice.report import toolset_advice
from query.caller import Caller
from query.history.recent_calls import REFRESH_S
from query.recent import Recent
from query.tools.schema import input_schema
from query.tools.tool import CatalogueTool
from query.toolsets.report import ToolsetRequest, toolset_report
from shared.errors import HistoryUnavailable
from shared.text.tokens import json_text

if TYPE_CHECKING:
    from query.catalogue import Catalogue

GET_ACTIVE_TOOLSET = Tool(
    name="get_active_toolset",
    description="Show your toolset: its tools, what they cost your context, and your budget.",
    input_schema=input_schema(ToolsetRequest),
    annotations=ToolAnnotations(title="Show toolset", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)

# Callers and states of their toolsets.
_KEPT = 64

_log = structlog.get_logger()


class GetActiveToolset(CatalogueTool[ToolsetRequest]):
    """Shows a caller its toolset. The advice on an unchanged toolset is read again after REFRESH_S seconds."""

    tool = GET_ACTIVE_TOOLSET
    request_model = ToolsetRequest

    def __init__(self, catalogue: Catalogue, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._catalogue, self._clock_s = catalogue, clock_s
        self._recent: Recent[dict[str, Any]] = Recent(most=_KEPT)
        self._kept = lru_cache(_KEPT)(self._sentences)

    def respond(self, request: ToolsetRequest, caller: Caller) -> dict[str, Any]:
        """Return the toolset report with the advice on it; log its size."""
        response = toolset_report(request, caller, self._catalogue, self._recent)
        is_unknown = response["toolset"] is not None and not response["tools"]
        if not is_unknown and (advice := self._advice(response, caller)):
            response["advice"] = advice
        _log.info("toolset_shown", toolset=response["toolset"], tools=len(response["tools"]))
        return response

    def _advice(self, response: dict[str, Any], caller: Caller) -> list[str]:
        try:
            return list(self._kept(response["toolset"], caller, json_text(response), self._clock_s() // REFRESH_S))
        except HistoryUnavailable as error:
            _log.warning("savings_read_failed", reason=str(error))
            return ["The calls of the last weeks cannot be read at the moment."]

    def _sentences(self, toolset: str | None, caller: Caller, _response: str, _period: float) -> list[str]:
        recorder = self._catalogue.recorder
        if recorder is None:
            return []
        advice = toolset_advice(caller, self._catalogue, recorder.history, toolset)
        return advice.sentences_with_rivals if toolset or advice.calls else []
