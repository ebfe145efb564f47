"""Every answer of ours within its budget: what the server does around each tool."""

from __future__ import annotations

from dataclasses import replace

import anyio
import structlog
from mcp.types import CallToolResult
from pydantic import ValidationError

from query.paging.budget import BoundedRequest, Budget
from query.paging.policy import Answers
from query.paging.results import Reader, bound, fits_plainly, read_on
from query.tools.tool import OWN_ARGUMENTS, PAGES_UNREACHABLE, Asked, Offer, first_problem, refusal
from shared.errors import CursorsUnavailable

CALL_TOOL = "call_tool"


_log = structlog.get_logger()


async def answered(offer: Offer, asked: Asked, answers: Answers) -> CallToolResult:
    """Return the tool's answer within the budget; with a cursor, the next page of an earlier one.

    Raises:
        CursorInvalid: the cursor is not of this caller and tool, was changed, or has expired.
    """
    match offer.pages:
        case "own":
            return await offer.answer(asked)
        case "foreign":
            result = await offer.answer(asked)
            return await _bounded(result, Reader(asked.caller.name, CALL_TOOL), answers.budget(), answers)
        case "kept":
            return await _kept(offer, asked, answers)


async def _kept(offer: Offer, asked: Asked, answers: Answers) -> CallToolResult:
    ours = {name: value for name, value in asked.arguments.items() if name in OWN_ARGUMENTS}
    others = {name: value for name, value in asked.arguments.items() if name not in OWN_ARGUMENTS}
    try:
        request = BoundedRequest.model_validate(ours)
    except ValidationError as error:
        return refusal(first_problem(error))
    reader, budget = Reader(asked.caller.name, offer.tool.name), answers.budget(request.max_tokens)
    if request.cursor is not None:
        return await _next_page(request.cursor, reader, budget, answers)
    return await _bounded(await offer.answer(replace(asked, arguments=others)), reader, budget, answers)


async def _next_page(cursor: str, reader: Reader, budget: Budget, answers: Answers) -> CallToolResult:
    try:
        return await anyio.to_thread.run_sync(read_on, cursor, reader, budget, answers)
    except CursorsUnavailable as error:
        _log.warning("pages_unreachable", reason=str(error))
        return refusal(PAGES_UNREACHABLE)


async def _bounded(result: CallToolResult, reader: Reader, budget: Budget, answers: Answers) -> CallToolResult:
    if fits_plainly(result, budget):
        return result
    # long texts take milliseconds to count, and keeping the rest asks Redis
    return await anyio.to_thread.run_sync(bound, result, reader, budget, answers)
