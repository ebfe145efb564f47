"""Advice on the tools of a toolset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from query.toolsets.advice import advice_for
from query.web.page import Page, PageRequest
from shared.errors import HistoryUnavailable, ToolsetUnknown
from shared.toolset import ToolsetName
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.toolsets.advice import Advice

NO_HISTORY = "No history can be read at the moment, or none is kept here."

_log = structlog.get_logger()


class AdviceRequest(BaseModel):
    """The toolset, by default the caller's, and the limit of tokens in place of the toolset's."""

    model_config = ConfigDict(extra="ignore")

    toolset: ToolsetName | None = None
    budget: int | None = Field(default=None, ge=1, le=10**9)


def advice(request: PageRequest) -> Page:
    """Return the advice, or the reason why there is none."""
    found, problem, status = _read(request)
    asked = {name: request.query.get(name, "") for name in AdviceRequest.model_fields}
    return Page("advice.html", {"advice": found, "problem": problem, "asked": asked}, status)


def _read(request: PageRequest) -> tuple[Advice | None, str, int]:
    """Return the advice, else the problem, and the status."""
    catalogue = request.catalogue
    try:
        asked = AdviceRequest.model_validate({name: value for name, value in request.query.items() if value})
        if catalogue.usage is None:
            return None, NO_HISTORY, 503
        return advice_for(request.caller, catalogue, catalogue.usage, asked.toolset, asked.budget), "", 200
    except ValidationError as error:
        return None, first_invalid_argument(error), 400
    except ToolsetUnknown as error:
        return None, str(error), 404
    except HistoryUnavailable as error:
        _log.warning("savings_read_failed", reason=str(error))
        return None, NO_HISTORY, 503
