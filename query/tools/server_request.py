"""A request to a server for a caller, whose client answers what the server asks before it has a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mcp_types import CallToolResult, InputRequiredResult, Result
from starlette.requests import HTTPConnection

from query.answers.pages import OwnText
from query.calling.call import ResolvedTool
from query.calling.dialogue import Dialogue
from query.calling.sessions import CallResources
from query.questions import NO_INPUT, STATE_INVALID, Asked, ClientInput, Questions, named_capabilities, of_server
from shared.errors import InputRequired, ServerError, StateInvalid
from shared.upstream.auth import CLIENT_OWNER, Requester

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from query.caller import Caller
    from query.calling.upstreams import Upstreams
    from query.kept import Kept
    from query.tool import ToolCallContext
    from query.tools.audit import CallAudit

SERVER = "server"
"""The topic of what a server asks."""

ResultT = TypeVar("ResultT", bound=Result)
Send = Callable[[CallResources], Awaitable[tuple[ResultT | InputRequiredResult, str]]]
"""Sends the request to a server; returns the result, or a question, and the server that returned it."""


class ServerRequest:
    """A request that is sent now, or, with `is_sent`, that waits in this process for the answers that this one brings.

    The questions of the first are results of the server; those of the second come in mid-call.
    """

    def __init__(
        self,
        context: ToolCallContext,
        upstreams: Upstreams,
        questions: Questions,
        audit: CallAudit,
        servers: Collection[str],
    ) -> None:
        """`servers` may get the request, or one of them has got it."""
        self._context = context
        self._upstreams = upstreams
        self._questions = questions
        self._audit = audit
        self._waiting = upstreams.waiting.take(context.request_state, questions.binding, servers)

    @property
    def is_sent(self) -> bool:
        """Return whether the request was sent, and waits for the answers."""
        return self._waiting is not None

    async def result(self, send: Send[ResultT]) -> tuple[ResultT, str]:
        """Return the result and the server that returned it; `send` is called unless the request was sent.

        An error names what the server asked for in vain.

        Raises:
            InputRequired: a server asks the caller's client.
            ClientNotAsked: it asks what the client cannot answer.
            CallsExhausted: the caller has as many calls in flight as the limit allows.
            ServerError: from `send`.
        """
        dialogue = self._waiting or self._upstreams.waiting.dialogue(self._questions.capabilities, self._report)
        self._context.exit_stack.callback(dialogue.release)
        try:
            result, server_id = await self._outcome(dialogue, send)
        except ServerError as error:
            named, self._audit.has_asked = named_capabilities(error), bool(dialogue.unanswered)
            raise (named.with_note(dialogue.complaint) if dialogue.unanswered else named) from error
        except InputRequired:
            self._audit.server = dialogue.asked_by
            raise
        if isinstance(result, InputRequiredResult):
            self._audit.server = server_id
            requests = {key: of_server(asked, server_id) for key, asked in (result.input_requests or {}).items()}
            await self._questions.ask(requests, SERVER, [server_id], result.request_state)
        if isinstance(result, CallToolResult) and result.is_error and dialogue.unanswered:
            self._audit.has_asked = True
            complaint = OwnText(text=f"{server_id} {dialogue.complaint}")
            result = result.model_copy(update={"content": [*result.content, complaint]})
        return result, server_id

    async def _outcome(self, dialogue: Dialogue, send: Send[ResultT]) -> tuple[ResultT | InputRequiredResult, str]:
        binding = self._questions.binding
        if self._waiting:
            dialogue.resume(self._questions.answers, self._report)
            return cast("tuple[ResultT | InputRequiredResult, str]", await dialogue.continued(binding))
        slot = dialogue.resources.enter_context(self._upstreams.admission.admitted(self._context.caller.name))
        requester = requester_of(self._context.caller, self._context.mcp_context)
        resources = CallResources(dialogue.progress, slot, requester, self._audit.on_failover, dialogue)
        return await dialogue.result_of(partial(send, resources), binding)

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        # the session drops reports to a caller that did not ask for progress
        await self._context.mcp_context.session.report_progress(progress, total, message)


def questions_of(context: ToolCallContext, kept: Kept, *request: str) -> Questions:
    """Return the questions about a call of a tool, or a read; see `Questions`."""
    given = ClientInput(context.input_responses, context.request_state)
    return Questions(context.caller.name, context.mcp_context, given, kept, *request)


def requester_of(caller: Caller, context: ServerRequestContext[Any]) -> Requester:
    """Return for whom a server is called: the caller, with the headers of his request."""
    request: object = context.request
    client, headers = caller.client, dict[str, str]()
    if isinstance(request, HTTPConnection):
        headers = dict(request.headers)
        # clients without a token, or another name, are told apart as far as their addresses differ
        client = client or (request.client.host if request.client else "")
    session = caller.name if caller.has_token else f"{CLIENT_OWNER}{caller.name} {client}"
    return Requester(caller.identity, headers, session, caller.directory)


def given_to(asked: Asked | None, questions: Questions) -> ClientInput:
    """Return what a server gets of the client's answers: those to its own questions, or to none of ours."""
    if asked is None or asked.topic == SERVER:
        return ClientInput(questions.answers or None, asked.state if asked else None)
    return NO_INPUT


def at_servers_of(asked: Asked | None, resolved: ResolvedTool) -> ResolvedTool:
    """Return the tool with those of its replicas that the client's answers are for.

    Raises:
        StateInvalid: none of them may be called now.
    """
    if asked is None:
        return resolved
    replicas = tuple(record for record in resolved.replicas if record.server_id in asked.servers)
    if not replicas:
        raise StateInvalid(STATE_INVALID)
    return replace(resolved, replicas=replicas)
