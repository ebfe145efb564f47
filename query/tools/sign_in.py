"""Sign-ins that a call needs: a link for the caller's user, shown by the client, or else in the error of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mcp_types import ElicitRequest, ElicitRequestURLParams, ElicitResult
from starlette.requests import HTTPConnection

from query.questions import can_answer
from query.turns import run_in_thread
from shared.errors import (
    NEEDS_SIGN_IN,
    CallsExhausted,
    ConfigInvalid,
    CursorsUnavailable,
    ServerAuthRequired,
    ServerError,
    SignInRequired,
    SignInsUnavailable,
)
from shared.upstream.auth import Challenge

if TYPE_CHECKING:
    from query.questions import Asked, Questions
    from query.sign_in import SignInFlows
    from query.tool import ToolCallContext
    from shared.index.tools import ToolIndex

TOPIC = KEY = "sign-in"

BY_LINK = (
    "{needed}, so the call was not sent. Ask the user to open this link within five minutes, and call the tool again "
    "afterwards: {link}"
)
DECLINED = f"{NEEDS_SIGN_IN}, and the user declined it"
# The user signs in while the client waits for the repeated call.
FINISHED_WITHIN_S = 45.0
# The first, and another for more rights; a server that refuses these tokens too would ask without end.
MOST_LINKS = 2


class SignInOfCall:
    """The sign-in that one call needs."""

    def __init__(
        self, flows: SignInFlows | None, index: ToolIndex, context: ToolCallContext, questions: Questions
    ) -> None:
        """Without flows, nobody signs in."""
        self._flows, self._index, self._context, self._questions = flows, index, context, questions
        self._links = 0  # that this call has shown

    async def ask(self, needed: SignInRequired) -> ServerError:
        """Return the error of the call, which has a link where the caller may sign in.

        Raises:
            InputRequired: the client shows the link to its user, and repeats the call.
        """
        request: object = self._context.mcp_context.request
        caller = self._context.caller
        server = await run_in_thread(caller.name, self._index.server, needed.server_id)
        if self._flows is None or server is None or not isinstance(request, HTTPConnection):
            return needed
        connection = cast("HTTPConnection", request)
        try:
            owner = self._flows.permitted_owner(server, connection, caller)
            address = self._flows.address(connection)
            challenge = needed.challenge if isinstance(needed.challenge, Challenge) else None
            ticket = await self._flows.begin(server, owner, caller, address, challenge)
        except ServerError as error:
            return error
        except (ConfigInvalid, CallsExhausted, CursorsUnavailable, SignInsUnavailable) as error:
            return ServerAuthRequired(needed.server_id, f"{NEEDS_SIGN_IN}, and has no link now: {error}")
        message = f"{server.server_id} {NEEDS_SIGN_IN}: open the link, and agree there."
        params = ElicitRequestURLParams(message=message, url=ticket.link, elicitation_id=ticket.name)
        question = ElicitRequest(params=params)
        if self._links < MOST_LINKS and can_answer(self._questions.capabilities, question):
            state = f"{self._links + 1} {ticket.name}"
            await self._questions.ask({KEY: question}, TOPIC, [server.server_id], state)
        reason = needed.reason.partition(";")[0]  # without the command
        return SignInRequired(server.server_id, BY_LINK.format(needed=reason, link=ticket.link))

    async def finish(self, asked: Asked | None) -> None:
        """Wait for the sign-in that the client was asked for, if the request answers that; it may not end in time.

        Raises:
            ServerAuthRequired: the user declined, or the sign-in failed.
        """
        if asked is None or asked.topic != TOPIC or self._flows is None:
            return
        answer = self._questions.answers.get(KEY)
        if not isinstance(answer, ElicitResult) or answer.action != "accept":
            raise ServerAuthRequired(asked.servers[0], DECLINED)
        links, _, ticket = (asked.state or "").partition(" ")
        self._links = int(links)
        outcome = await self._flows.finished(ticket, self._context.caller, FINISHED_WITHIN_S)
        if outcome.reason:
            raise ServerAuthRequired(asked.servers[0], outcome.reason)
