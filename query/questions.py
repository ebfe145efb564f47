"""Questions to a caller's client, and its answers: one way for the operator's policy, for servers, and for sign-ins.

In the newest revision of MCP a server sends no requests. The result of a request is a question with a state, and the
client repeats the request with its answers and the state. Our state names an entry that is bound to the caller and to
the request, and is taken once. `toolscale serve --stdio` asks older clients the same questions by requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import anyio.to_thread
from mcp import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    CreateMessageRequest,
    ElicitRequest,
    ElicitRequestURLParams,
    InputRequest,
    InputRequiredResult,
    InputResponses,
    ListRootsRequest,
    MissingRequiredClientCapabilityErrorData,
    RootsCapability,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from query.kept import Kept
from shared.errors import (
    ClientNotAsked,
    CursorInvalid,
    CursorsUnavailable,
    InputRequired,
    ServerError,
    ServerFailed,
    StateInvalid,
)
from shared.quoting import encodable, printable, quoted
from shared.text.invisible import mark_text, marked

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

ANSWER_S = 300.0
"""Seconds that a client has for an answer."""

STATE_INVALID = (
    "requestState: expected that of the last answer to the same request by the same caller, unchanged and not expired; "
    "it works once, and where a server waits in mid-call, only in the process that asked. "
    "Send the request again without it"
)
STORE_UNAVAILABLE = "a question to your client cannot be stored or read at the moment; try again in a few seconds"
NO_QUESTIONS = (
    "this client cannot be asked: it has not declared that it can, or it uses HTTP with a revision of MCP before "
    f"{MODERN_PROTOCOL_VERSIONS[0]}"
)
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ClientInput:
    """What a request brings for a question: the answers, and the state of the one who asked."""

    responses: InputResponses | None = None
    state: str | None = None


NO_INPUT = ClientInput()


@dataclass(frozen=True, slots=True)
class Asked:
    """The question that a repeated request answers: its topic, its servers, and the state of the server that asked."""

    topic: str
    servers: tuple[str, ...]
    state: str | None


class Questions:
    """The questions about one request of a caller; `request` are texts that no other request of it has."""

    def __init__(
        self, caller: str, context: ServerRequestContext[Any], given: ClientInput, kept: Kept, *request: str
    ) -> None:
        """`context` carried the request, with what is `given` in it."""
        self.binding = (caller, "question", *request)
        self.capabilities = capabilities_of(context)
        self.answers: InputResponses = dict(given.responses or {})
        self._state = given.state
        self._kept = kept

    async def asked(self) -> Asked | None:
        """Return the question that this request answers, once; None for a first request.

        Raises:
            StateInvalid: the state is not of a question about this request, or was used.
            ClientNotAsked: the store of questions does not answer.
        """
        if self._state is None:
            return None
        try:
            entry = json.loads(await anyio.to_thread.run_sync(self._kept.take, self._state, *self.binding))
        except CursorInvalid as error:
            raise StateInvalid(STATE_INVALID) from error
        except CursorsUnavailable as error:
            raise ClientNotAsked("toolscale", STORE_UNAVAILABLE) from error
        return Asked(entry["topic"], tuple(entry["servers"]), entry["state"])

    async def ask(
        self, requests: Mapping[str, InputRequest], topic: str, servers: Sequence[str], state: str | None = None
    ) -> NoReturn:
        """Raise InputRequired with these requests; `asked` returns the rest when the request is repeated.

        Raises:
            InputRequired: always, unless one of the others.
            ClientNotAsked: the client cannot answer, or the store of questions does not answer.
        """
        check_client(self.capabilities, requests, servers[0])
        entry = json.dumps({"topic": topic, "servers": list(servers), "state": state}).encode()

        def stored() -> str:
            return self._kept.put(entry, *self.binding, ttl_s=ANSWER_S)

        try:
            raise InputRequired(requests, await anyio.to_thread.run_sync(stored))
        except CursorsUnavailable as error:
            raise ClientNotAsked(servers[0], STORE_UNAVAILABLE) from error


def question_of(required: InputRequired) -> InputRequiredResult:
    """Return the question as the result of a request."""
    return InputRequiredResult.model_validate(
        {"input_requests": dict(required.requests) or None, "request_state": required.state}
    )


def capabilities_of(context: ServerRequestContext[Any]) -> ClientCapabilities | None:
    """Return what the caller's client declares that it can be asked; None if it has no way to answer."""
    declared = context.session.client_capabilities
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return None
    if declared is None:
        return ClientCapabilities()
    roots = RootsCapability() if declared.roots else None  # a change of the roots is not relayed
    return ClientCapabilities(elicitation=declared.elicitation, sampling=declared.sampling, roots=roots)


def check_client(capabilities: ClientCapabilities | None, requests: Mapping[str, InputRequest], server_id: str) -> None:
    """Return if a client with these capabilities can answer these requests.

    Raises:
        ClientNotAsked: it cannot; the message names what was asked for.
    """
    refused = [request for request in requests.values() if not can_answer(capabilities, request)]
    if refused or capabilities is None:
        wanted = " and ".join(map(described, refused)) or "the request again, with a state"
        raise ClientNotAsked(server_id, f"asks for {wanted}, and {NO_QUESTIONS}")


def check_capabilities(error: Exception, protocol_version: str) -> None:
    """Return unless the error is that of a server which requires what a client of the newest revision lacks.

    Raises:
        MCPError: the server's own error, which the client may act on.
    """
    is_modern = protocol_version in MODERN_PROTOCOL_VERSIONS
    if is_modern and isinstance(error, ServerFailed) and error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
        raise MCPError(error.code, str(error), error.data) from error


def named_capabilities(error: ServerError) -> ServerError:
    """Return the error; one about what the client lacks then names it."""
    if not isinstance(error, ServerFailed) or error.code != MISSING_REQUIRED_CLIENT_CAPABILITY:
        return error
    with suppress(ValidationError):
        data = MissingRequiredClientCapabilityErrorData.model_validate(error.data)
        names = " and ".join(data.required_capabilities.model_dump(exclude_none=True))
        return error.with_note(f"it asks the client for {names}, and {NO_QUESTIONS}")
    return error


def can_answer(capabilities: ClientCapabilities | None, request: InputRequest) -> bool:
    """Return whether a client with these capabilities can answer this request."""
    if capabilities is None:
        return False
    match request:
        case ElicitRequest(params=params):
            modes = capabilities.elicitation
            if isinstance(params, ElicitRequestURLParams):
                return modes is not None and modes.url is not None
            # a client that declares no mode has forms
            return modes is not None and (modes.form is not None or modes.url is None)
        case CreateMessageRequest(params=params):
            sampling = capabilities.sampling
            return sampling is not None and (params.tools is None or sampling.tools is not None)
        case ListRootsRequest():
            return capabilities.roots is not None


def described(request: InputRequest) -> str:
    """Return what a request asks a client for, for a sentence of ours."""
    match request:
        case ElicitRequest(params=ElicitRequestURLParams(message=message, url=url)):
            return f"a visit of {_quoted(url)} by the user (elicitation of mode url): {_quoted(message)}"
        case ElicitRequest(params=params):
            return f"an input of the user (elicitation of mode form): {_quoted(params.message)}"
        case CreateMessageRequest():
            return "an answer of the client's model (sampling)"
        case ListRootsRequest():
            return "the client's directories (roots)"


def of_server(request: InputRequest, server_id: str) -> InputRequest:
    """Return a server's request for the caller's client: a text for the user begins with the server's id.

    The user cannot see otherwise which of many servers asks. The keys in `_meta` are of the connection to the server.
    """
    shown = marked(request)
    if shown.params is None:
        return shown
    without: dict[str, object] = {"meta": None}
    if isinstance(shown, ElicitRequest):
        without["message"] = encodable(f"{server_id}: {shown.params.message}")
    if not isinstance(shown, ListRootsRequest):
        without["task"] = None  # a task belongs to the connection too
    return shown.model_copy(update={"params": shown.params.model_copy(update=without)})


def _quoted(text: str) -> str:
    line = printable(mark_text(" ".join(text.split())))
    return quoted(line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…")
