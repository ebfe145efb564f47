"""Questions to the client's user: the confirmation of a call, in the way of the client's revision of MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from mcp import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from query.calling.confirmation import CONFIRM_S
from shared.errors import CallNotConfirmed, ConfirmationRequired, CursorsUnavailable
from shared.quoting import quoted_name

if TYPE_CHECKING:
    from query.calling.confirmation import CallToConfirm, Confirmations
    from query.tools.tool import ToolCallContext

KEY = "confirm"
# The user accepts or declines, and fills in nothing.
_FORM: dict[str, Any] = {"type": "object", "properties": {}}

CANNOT_ASK = (
    "calls of {tool} need the user's confirmation by the operator's policy, and this client cannot ask for it: it has "
    "no elicitation, or it uses HTTP with a revision of MCP before 2026-07-28"
)
STATE_REFUSED = "the confirmation of {tool} is for another call, was used, or has expired; call the tool again"
STORE_UNAVAILABLE = "the confirmation of {tool} cannot be stored or read at the moment; try again in a few seconds"
DECLINED = "the user did not confirm the call of {tool}, so it was not sent"


async def confirm(call: CallToConfirm, context: ToolCallContext, confirmations: Confirmations) -> None:
    """Return if the user has confirmed this call, or an equal one that was not sent; each confirmation counts once.

    Raises:
        ConfirmationRequired: the client has to ask its user, and to repeat the call.
        CallNotConfirmed: the user declined or did not answer, the client cannot ask, its answer is of another call, or
            the store of cursors does not answer.
    """
    if not _can_ask(context):
        raise _not_confirmed(call, CANNOT_ASK)
    if context.request_state is None and await anyio.to_thread.run_sync(confirmations.take_back, call):
        return
    if context.mcp_context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answer = await _repeated(call, context, confirmations)
    else:
        answer = await _elicited(call, context)
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        raise _not_confirmed(call, DECLINED)


def question_of(required: ConfirmationRequired) -> InputRequiredResult:
    """Return the question as the result of a call."""
    form = ElicitRequestFormParams(message=required.question, requested_schema=_FORM)
    return InputRequiredResult(input_requests={KEY: ElicitRequest(params=form)}, request_state=required.state)


def _can_ask(context: ToolCallContext) -> bool:
    session = context.mcp_context.session
    capability = session.client_capabilities.elicitation if session.client_capabilities else None
    has_forms = capability is not None and (capability.form is not None or capability.url is None)
    return has_forms and (session.can_send_request or session.protocol_version in MODERN_PROTOCOL_VERSIONS)


async def _repeated(call: CallToConfirm, context: ToolCallContext, confirmations: Confirmations) -> object:
    """Return the answer in a repeated call; a first call raises ConfirmationRequired."""
    try:
        if context.request_state is None:
            state = await anyio.to_thread.run_sync(confirmations.seal, call)
            raise ConfirmationRequired(call.question, state)
        is_accepted = await anyio.to_thread.run_sync(confirmations.accepts, context.request_state, call)
    except CursorsUnavailable as error:
        raise _not_confirmed(call, STORE_UNAVAILABLE) from error
    if not is_accepted:
        raise _not_confirmed(call, STATE_REFUSED)
    return (context.input_responses or {}).get(KEY)


async def _elicited(call: CallToConfirm, context: ToolCallContext) -> ElicitResult | None:
    """Return the answer to a request of our own; None if the client has no valid one in time."""
    with anyio.move_on_after(CONFIRM_S):
        try:
            return await context.mcp_context.session.elicit_form(call.question, _FORM, context.mcp_context.request_id)
        except (MCPError, ValidationError):
            return None
    return None


def _not_confirmed(call: CallToConfirm, reason: str) -> CallNotConfirmed:
    return CallNotConfirmed(call.server_ids[0], reason.format(tool=quoted_name(call.tool.definition.name)))
