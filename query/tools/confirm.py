"""Confirmations of calls by the client's user, which the action `ask` of a rule requires.

In the newest revision of MCP, a server sends no requests: the result of the first call is a question with a state, and
the client repeats the call with the answer. The state names an entry that is bound to the call and accepted once.

A confirmed call that was not sent gives its confirmation back: the next equal call needs no question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from mcp import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from query.kept import Kept, name_of
from shared.errors import CallNotConfirmed, ConfirmationRequired, CursorInvalid, CursorsUnavailable
from shared.quoting import encodable, quoted_name
from shared.text.invisible import mark_text

if TYPE_CHECKING:
    from query.tool import ToolCallContext
    from shared.catalog import IndexedTool

CONFIRM_S = 300
"""Seconds that a user has for an answer."""
KEY = "confirm"
# The user accepts or declines, and fills in nothing.
_FORM: dict[str, Any] = {"type": "object", "properties": {}}
_SHOWN_CHARACTERS = 2_000

CANNOT_ASK = (
    "calls of {tool} need the user's confirmation by the operator's policy, and this client cannot ask for it: it has "
    "no elicitation, or it uses HTTP with a revision of MCP before 2026-07-28"
)
STATE_REFUSED = "the confirmation of {tool} is for another call, was used, or has expired; call the tool again"
STORE_UNAVAILABLE = "the confirmation of {tool} cannot be stored or read at the moment; try again in a few seconds"
DECLINED = "the user did not confirm the call of {tool}, so it was not sent"


@dataclass(frozen=True, slots=True)
class CallToConfirm:
    """One call: its caller, tool and arguments, and the servers that may receive it."""

    caller: str
    tool: IndexedTool
    server_ids: Sequence[str]
    arguments: Mapping[str, Any]

    @property
    def question(self) -> str:
        """Return the question for the user; it quotes all texts of the server and of the model."""
        servers = " or ".join(map(quoted_name, self.server_ids))
        arguments = encodable(mark_text(json.dumps(self.arguments, ensure_ascii=False)))
        cut = f"… ({len(arguments)} characters)" if len(arguments) > _SHOWN_CHARACTERS else ""
        return (
            f"Call the tool {quoted_name(self.tool.definition.name)} of the server {servers} "
            f"with these arguments? {arguments[:_SHOWN_CHARACTERS]}{cut}"
        )

    @property
    def binding(self) -> tuple[str, ...]:
        """Return texts that no other call has; equal definitions have equal digests."""
        tool = json.dumps([list(self.server_ids), self.tool.definition.name, self.tool.definition_id])
        return self.caller, "confirmation", tool, json.dumps(self.arguments, sort_keys=True)

    @property
    def given_back(self) -> tuple[str, ...]:
        """Return the binding of this call's confirmation after the call was not sent; it has one name."""
        return *self.binding, "not sent"


async def confirm(call: CallToConfirm, context: ToolCallContext, kept: Kept) -> None:
    """Return if the user has confirmed this call, or an equal one that was not sent; each confirmation counts once.

    Raises:
        ConfirmationRequired: the client has to ask its user, and to repeat the call.
        CallNotConfirmed: the user declined or did not answer, the client cannot ask, its answer is of another call, or
            the store of confirmations does not answer.
    """
    session = context.mcp_context.session
    is_modern = context.mcp_context.protocol_version in MODERN_PROTOCOL_VERSIONS
    capability = session.client_capabilities.elicitation if session.client_capabilities else None
    has_forms = capability is not None and (capability.form is not None or capability.url is None)
    if not has_forms or not (is_modern or session.can_send_request):
        raise _not_confirmed(call, CANNOT_ASK)
    if context.request_state is None and await anyio.to_thread.run_sync(_take_back, call, kept):
        return
    answer: object = None
    if is_modern:
        answer = await _repeated(call, context, kept)
    else:
        with anyio.move_on_after(CONFIRM_S), suppress(MCPError, ValidationError):
            answer = await session.elicit_form(call.question, _FORM, context.mcp_context.request_id)
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        raise _not_confirmed(call, DECLINED)


def question_of(required: ConfirmationRequired) -> InputRequiredResult:
    """Return the question as the result of a call."""
    form = ElicitRequestFormParams(message=required.question, requested_schema=_FORM)
    return InputRequiredResult(input_requests={KEY: ElicitRequest(params=form)}, request_state=required.state)


def give_back(call: CallToConfirm, kept: Kept) -> None:
    """Let the next equal call pass without a question, within CONFIRM_S; if the store does not answer, it asks."""
    with suppress(CursorsUnavailable):
        kept.put(b"", *call.given_back, name=name_of(*call.given_back), ttl_s=CONFIRM_S)


def _take_back(call: CallToConfirm, kept: Kept) -> bool:
    """Return whether this call has a confirmation that was given back; it is then used."""
    try:
        kept.take(name_of(*call.given_back), *call.given_back)
    except (CursorInvalid, CursorsUnavailable):
        return False
    return True


async def _repeated(call: CallToConfirm, context: ToolCallContext, kept: Kept) -> object:
    """Return the answer in a repeated call; a first call raises ConfirmationRequired."""

    def asked() -> str:
        return kept.put(b"", *call.binding, ttl_s=CONFIRM_S)

    try:
        if context.request_state is None:
            raise ConfirmationRequired(call.question, await anyio.to_thread.run_sync(asked))
        await anyio.to_thread.run_sync(kept.take, context.request_state, *call.binding)
    except CursorsUnavailable as error:
        raise _not_confirmed(call, STORE_UNAVAILABLE) from error
    except CursorInvalid as error:
        raise _not_confirmed(call, STATE_REFUSED) from error
    return (context.input_responses or {}).get(KEY)


def _not_confirmed(call: CallToConfirm, reason: str) -> CallNotConfirmed:
    return CallNotConfirmed(call.server_ids[0], reason.format(tool=quoted_name(call.tool.definition.name)))
