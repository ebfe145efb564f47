"""All errors of Toolscale, divided into those to retry and those to report.

    ToolscaleError
    ├── Retryable                 the same attempt may succeed later
    │   ├── ServerUnreachable     no connection, or it broke
    │   ├── ServerTimeout         no complete answer before the deadline
    │   ├── ServerFailed          the server answered with an error (5xx, 429, -32603)
    │   ├── ReplicasFailed        no replica of a tool's server answered a call
    │   ├── ServerNotRunning      the server is stopped or quarantined, so it is not called
    │   ├── InputRequired         the client has to answer a question, and to repeat its request
    │   ├── CallsExhausted        a limit on calls, connections, large results or waiting requests is reached
    │   ├── IndexUnavailable      Qdrant did not answer
    │   ├── IndexLost             an IndexUnavailable: Qdrant has lost a collection
    │   ├── ModelUnavailable      the embedding model cannot be loaded
    │   ├── IntentsUnavailable    the intent store (Redis or the data directory) did not answer
    │   ├── ServiceUnreachable    a running service did not answer the command line
    │   ├── KeysUnavailable       the keys for JWTs could not be fetched
    │   ├── CursorsUnavailable    the store of cursors did not answer
    │   ├── SignInsUnavailable    the store of sign-ins did not answer
    │   ├── FollowedConfigUnavailable  the state of the followed mcp.json cannot be read or stored
    │   ├── HistoryUnavailable    the history of savings (Redis or the data directory) did not answer
    │   └── LeaseHeld             another reconciliation of this server is running
    └── Permanent                 a person has to change something first
        ├── EventInvalid          an event violates the contract; names the field
        ├── ServerAuthRequired    401 or 403: credentials are missing or wrong
        ├── SignInRequired        a ServerAuthRequired: a person has to sign in to the server
        ├── ProtocolViolation     not MCP: broken JSON, a repeated cursor, no common protocol version
        ├── SessionNotShared      the server has a process for each caller, and this service has replicas
        ├── ServerFlooded         the server sent more messages than it may
        ├── NotificationsUnsupported  the server does not notify of changes
        ├── ListingTooLarge       a limit on bytes, pages or tools was exceeded
        ├── AddressForbidden      the operator does not allow the endpoint
        ├── ToolNotFound          the caller's scope has no tool of that name, or several
        ├── CallDenied            the operator's policy denies the call
        ├── ToolExcluded          a CallDenied: the operator excludes the tool from those of its server
        ├── CallNotConfirmed      the user did not confirm the call, or the client cannot ask
        ├── ClientNotAsked        the caller's client cannot be asked what a server asks for
        ├── StateInvalid          the state of a question is another request's, was used, or has expired
        ├── ResourceNotFound      the caller has no such link, or the server no such resource or prompt
        ├── ArgumentsInvalid      the tool's input schema rejects the arguments; names the field
        ├── AuthenticationFailed  a caller's token is unknown, expired, or for another service
        ├── BudgetTooSmall        the shortest response exceeds the requested tokens
        ├── CursorInvalid         a cursor was changed, is another caller's, or has expired
        ├── ServiceRejected       a running service rejects a request of the command line
        ├── InstanceMismatch      another Toolscale answers at the address of this one
        ├── ServerUnknown         no server of this name was ever announced
        ├── ToolsetUnknown        the caller has no toolset of this name
        ├── ConfigInvalid         a setting or an mcp.json is invalid
        ├── UsageInvalid          a command has a wrong option or argument
        ├── IndexHeld             a ConfigInvalid: another process uses the data directory
        ├── BackupInvalid         the directory of a backup cannot be written, or has an invalid file
        ├── AssetInvalid          a bundled file is missing or has another digest
        └── CountFailed           the tokens of a text could not be counted

Errors about one server have a `server_id`, and their messages begin with it.
"""

import copy
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Self

from shared.quoting import quoted_name
from shared.validation import nearest_names


class ToolscaleError(Exception):
    """The root of the tree above."""


class Retryable(ToolscaleError):
    """The same attempt may succeed later."""


class Permanent(ToolscaleError):
    """A person has to change something first; an unchanged retry fails again."""


class ServiceUnreachable(Retryable):
    """A running service did not answer the command line."""


class ServiceRejected(Permanent):
    """A running service rejects a request of the command line."""


class InstanceMismatch(Permanent):
    """Another Toolscale answers at the address of this one."""


PERHAPS_CARRIED_OUT = "may have been carried out or not"
"""Ends a sentence about a call whose delivery is unknown."""


class Delivery(Enum):
    """How far a tool call got before an error: not sent, perhaps carried out, or answered by its server."""

    NOT_SENT = auto()
    UNKNOWN = auto()
    ANSWERED = auto()


class ServerError(ToolscaleError):
    """An error about one server, whose id begins the message; `delivery` has a meaning for errors of calls only."""

    delivery = Delivery.UNKNOWN

    def __init__(self, server_id: str, reason: str) -> None:
        super().__init__(server_id, reason)  # pickle calls __init__ with these arguments
        self.server_id = server_id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server_id}: {self.reason}"

    def with_note(self, note: str) -> Self:
        """Return a copy whose reason ends with this note."""
        error = copy.copy(self)
        error.reason = f"{self.reason}; {note}"
        return error

    def with_delivery(self, delivery: Delivery) -> Self:
        """Return a copy with this delivery: several calls may share an error of their connection."""
        error = copy.copy(self)
        error.delivery = delivery
        return error

    @property
    def kind(self) -> str:
        """Return the error's class name, for records and logs."""
        return type(self).__name__


class ServerUnreachable(ServerError, Retryable):
    """No connection to the server, or it broke: with `in_mid_call`, while a call was in flight."""

    in_mid_call = False

    def __str__(self) -> str:
        is_uncertain = self.in_mid_call and self.delivery is Delivery.UNKNOWN
        return f"{super().__str__()}, which {PERHAPS_CARRIED_OUT}" if is_uncertain else super().__str__()


class ServerTimeout(ServerError, Retryable):
    """No complete answer from the server before the deadline."""


class ServerFailed(ServerError, Retryable):
    """The server answered with an error; `code` and `data` are those of JSON-RPC, if it has them."""

    code: int | None = None
    data: object = None


class ServerNotRunning(ServerError, Retryable):
    """The server is stopped or quarantined, so it is not called."""


class ToolExcluded(ServerError, Permanent):
    """The operator excludes `tool` from those of its server, for every caller."""

    delivery = Delivery.NOT_SENT

    def __init__(self, server_id: str, tool: str) -> None:
        super().__init__(server_id, f"the operator excludes {quoted_name(tool)} from the tools of this server")
        self.args = (server_id, tool)
        self.tool = tool


class CallNotConfirmed(ServerError, Permanent):
    """The policy requires a confirmation that the user did not give, or that the client cannot ask for."""

    delivery = Delivery.NOT_SENT


class ClientNotAsked(ServerError, Permanent):
    """The caller's client cannot be asked what the server asks for, or the question cannot be stored."""


class InputRequired(Retryable):
    """The client has to answer these requests of MCP, and repeat its own request with the answers and this `state`."""

    def __init__(self, requests: Mapping[str, object], state: str) -> None:
        super().__init__(requests, state)
        self.requests = requests
        self.state = state


class ReplicasFailed(ServerError, Retryable):
    """No replica answered a call; `server_id` is the last one tried, and `reason` names all of them."""

    def __str__(self) -> str:
        return self.reason


class CallsExhausted(Retryable):
    """A limit on calls, connections, large results or waiting requests is reached; the message names when to retry."""

    def __init__(self, reason: str, delivery: Delivery = Delivery.NOT_SENT) -> None:
        super().__init__(reason)
        self.delivery = delivery


class ServerAuthRequired(ServerError, Permanent):
    """The server requires other credentials (401 or 403)."""


NEEDS_SIGN_IN = "needs a sign-in"
"""Begins the reason of a SignInRequired, which the record and the intent of a server keep as text."""


class SignInRequired(ServerAuthRequired):
    """A person has to sign in to the server, or to agree to more scopes; with the server's `challenge`, where it is."""

    delivery = Delivery.NOT_SENT
    challenge: object = None  # a `shared.upstream.auth.Challenge`


class ProtocolViolation(ServerError, Permanent):
    """The server violates the MCP specification."""


class SessionNotShared(ServerError, Permanent):
    """The server has a process for each caller, which one replica of this service cannot share with the others."""

    delivery = Delivery.NOT_SENT


class ServerFlooded(ServerError, Permanent):
    """The server sent more messages than it may, so its session was ended."""


class NotificationsUnsupported(ServerError, Permanent):
    """The server sends no notifications when its tools change."""


class ListingTooLarge(ServerError, Permanent):
    """The server's list exceeds a limit on bytes, pages or tools."""


class AddressForbidden(ServerError, Permanent):
    """The operator does not allow the endpoint."""


NO_SUCH_TOOL = "no such tool"


class ToolNotFound(Permanent):
    """The caller's scope has no tool of this name, or several; `candidates` are `server:tool` names.

    `hints` are sentences on servers that may have such a tool, and cannot be listed now.
    """

    def __init__(self, name: str, reason: str, candidates: tuple[str, ...], hints: tuple[str, ...] = ()) -> None:
        super().__init__(name, reason, candidates, hints)
        self.name = name
        self.reason = reason
        self.candidates = candidates
        self.hints = hints

    def __str__(self) -> str:
        names = ", ".join(map(quoted_name, self.candidates))
        if self.reason == NO_SUCH_TOOL:
            nearest = (f"Nearest: {names}",) if names else ()
            return " ".join((f"There is no tool {self.name!r}.", *self.hints, *nearest))
        return f"{self.name!r} {self.reason}{f': {names}' if names else ''}"


class CallDenied(ToolNotFound):
    """The operator's policy denies the call of `tool`; the text is that of a tool that does not exist."""

    def __init__(
        self,
        server_id: str,
        tool: str,
        name: str = "",
        candidates: tuple[str, ...] = (),
        hints: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name or f"{server_id}:{tool}", NO_SUCH_TOOL, candidates, hints)
        self.args = (server_id, tool, name, candidates, hints)
        self.server_id = server_id
        self.tool = tool


class ResourceNotFound(Permanent):
    """The caller has no such link, or its server no such resource or prompt."""


class ServerUnknown(Permanent):
    """No server of this name was ever announced; `candidates` are similar names."""

    def __init__(self, server_id: str, candidates: tuple[str, ...]) -> None:
        super().__init__(server_id, candidates)
        self.server_id = server_id
        self.candidates = candidates

    @classmethod
    def near(cls, server_id: str, known: Iterable[str]) -> Self:
        """Return the error for this id, with similar ones of the known ids."""
        return cls(server_id, tuple(nearest_names(server_id, known)))

    def __str__(self) -> str:
        meant = f"; did you mean {' or '.join(self.candidates)}?" if self.candidates else ""
        return f"no server {self.server_id!r} is known{meant}"


class ToolsetUnknown(Permanent):
    """The caller has no toolset of this name."""


class ArgumentsInvalid(Permanent):
    """The tool's input schema rejects the arguments; `field` is the path of the first invalid argument."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class LeaseHeld(ServerError, Retryable):
    """Another reconciliation of this server is running."""


class IndexUnavailable(Retryable):
    """Qdrant did not answer."""


class IndexLost(IndexUnavailable):
    """Qdrant answers, but a collection is missing; the sweep creates it again."""


class ModelUnavailable(Retryable):
    """The embedding model cannot be loaded; a download may work later."""


class IntentsUnavailable(Retryable):
    """The intent store did not answer."""


class KeysUnavailable(Retryable):
    """The keys for JWTs could not be fetched, and none are cached."""


class CursorsUnavailable(Retryable):
    """The store of cursors did not answer."""


class SignInsUnavailable(Retryable):
    """The store of sign-ins did not answer."""


class FollowedConfigUnavailable(Retryable):
    """The state of the followed `mcp.json` (Redis or the data directory) cannot be read or stored."""


class HistoryUnavailable(Retryable):
    """The history of savings did not answer."""


class BudgetTooSmall(Permanent):
    """The shortest response exceeds the requested tokens."""


class StateInvalid(Permanent):
    """The state of a question is another caller's or request's, was used, or has expired."""


class CursorInvalid(Permanent):
    """A cursor was changed, belongs to another caller or question, or has expired."""


class EventInvalid(Permanent):
    """An event violates the contract; `field` is the path of the first invalid field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class AuthenticationFailed(Permanent):
    """A caller's token is not accepted; the reason never quotes it."""


class ConfigInvalid(Permanent):
    """A setting or a configuration file cannot be used."""


class UsageInvalid(Permanent):
    """A command has a wrong option or argument."""


class IndexHeld(ConfigInvalid):
    """Another process uses the data directory."""


class BackupInvalid(Permanent):
    """The directory of a backup cannot be written, or has a missing or an invalid file."""


class AssetInvalid(Permanent):
    """A bundled file is missing or has another digest."""


class CountFailed(Permanent):
    """The tokens of a text could not be counted."""
