"""Every error Toolscale raises on purpose, split by what a caller does about it.

    ToolscaleError
    ├── Retryable                 the same attempt may succeed later
    │   ├── ServerUnreachable     no connection, or it broke
    │   ├── ServerTimeout         no complete answer before the deadline
    │   ├── ServerFailed          the server answered with an error of its own (5xx, 429, -32603)
    │   ├── ServerNotRunning      the server is stopped or quarantined, so it is not called
    │   ├── CallsExhausted        as many calls, connections or large results as there may be
    │   ├── IndexUnavailable      Qdrant did not answer
    │   ├── IndexLost             an IndexUnavailable: Qdrant did, and a collection is gone
    │   ├── ModelUnavailable      the embedding model cannot be loaded
    │   ├── IntentsUnavailable    the intent store (Redis or the data directory) did not answer
    │   ├── ServiceUnreachable    a running service that the command line asks did not answer
    │   ├── KeysUnavailable       the keys that tokens are checked with could not be fetched
    │   ├── CursorsUnavailable    what a cursor goes on with cannot be kept or read now
    │   ├── HistoryUnavailable    the history of savings (Redis or the data directory) did not answer
    │   └── LeaseHeld             another run is looking at this server right now
    └── Permanent                 it needs a change by someone
        ├── EventInvalid          an event that does not follow the contract; names the field
        ├── ServerRefused         401 or 403: credentials are missing or wrong
        ├── ServerMisbehaved      not MCP: broken JSON, a repeated cursor, no common protocol version
        ├── NoNotifications       the server does not tell when its tools change
        ├── ListingTooLarge       a guard on bytes, pages or tools was hit
        ├── AddressForbidden      the endpoint is outside what the operator allows
        ├── ToolNotFound          no tool, or several, of that name lie within the caller's scope
        ├── ArgumentsInvalid      arguments that a tool's input schema refuses; names the field
        ├── CallerRefused         a caller's token opens nothing: unknown, expired, or for someone else
        ├── BudgetTooSmall        not even the shortest answer fits into the tokens that were asked for
        ├── CursorInvalid         a cursor that was changed, is another's, or has expired
        ├── ServiceRefused        a running service refuses what the command line asks
        ├── ServerUnknown         no server of the name that was given was ever announced
        ├── ConfigInvalid         a setting or an mcp.json that cannot be used
        ├── IndexHeld             a ConfigInvalid: another process uses the data directory
        ├── AssetInvalid          a bundled file is missing or is not the one it should be
        └── CountFailed           a text whose tokens could not be counted

Errors about one server carry its `server_id` and begin with it.
"""


class ToolscaleError(Exception):
    """The root of the tree above."""


class Retryable(ToolscaleError):
    """The same attempt may succeed later."""


class Permanent(ToolscaleError):
    """It needs a change by someone; trying again unchanged cannot help."""


class ServiceUnreachable(Retryable):
    """A running service that the command line asks did not answer."""


class ServiceRefused(Permanent):
    """A running service refuses what the command line asks."""


class ServerError(ToolscaleError):
    """An error about one server, named in `server_id` and at the front of the message."""

    def __init__(self, server_id: str, reason: str) -> None:
        super().__init__(server_id, reason)  # as they are, so that a copy from another process can be made of them
        self.server_id = server_id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server_id}: {self.reason}"

    @property
    def kind(self) -> str:
        """Return the error's class name, the short form that records and logs carry."""
        return type(self).__name__


class ServerUnreachable(ServerError, Retryable):
    """No connection to the server, or it broke."""


class ServerTimeout(ServerError, Retryable):
    """No complete answer from the server before the deadline."""


class ServerFailed(ServerError, Retryable):
    """The server answered with an error of its own."""


class ServerNotRunning(ServerError, Retryable):
    """The server is stopped or quarantined, so it is not called."""


class CallsExhausted(Retryable):
    """As many calls are under way, connections open, or large results in hand as may be; says when to try again."""


class ServerRefused(ServerError, Permanent):
    """The server wants other credentials (401 or 403)."""


class ServerMisbehaved(ServerError, Permanent):
    """The server does not speak MCP as it should."""


class NoNotifications(ServerError, Permanent):
    """The server does not tell when its tools change."""


class ListingTooLarge(ServerError, Permanent):
    """The server's list exceeds a guard on bytes, pages or tools."""


class AddressForbidden(ServerError, Permanent):
    """The endpoint is outside what the operator allows."""


class ToolNotFound(Permanent):
    """No tool of this name lies within the caller's scope, or several do; `candidates` are `server:tool` names."""

    def __init__(self, name: str, reason: str, candidates: tuple[str, ...]) -> None:
        super().__init__(name, reason, candidates)
        self.name = name
        self.reason = reason
        self.candidates = candidates

    def __str__(self) -> str:
        said = f"{self.name!r} {self.reason}"
        return f"{said}: {', '.join(self.candidates)}" if self.candidates else said


class ServerUnknown(Permanent):
    """No server of this name was ever announced; `candidates` are those that are spelt alike."""

    def __init__(self, server_id: str, candidates: tuple[str, ...]) -> None:
        super().__init__(server_id, candidates)
        self.server_id = server_id
        self.candidates = candidates

    def __str__(self) -> str:
        meant = f"; did you mean {' or '.join(self.candidates)}?" if self.candidates else ""
        return f"no server {self.server_id!r} is known{meant}"


class ArgumentsInvalid(Permanent):
    """Arguments that a tool's input schema refuses; `field` is the path of the first offending one."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class LeaseHeld(ServerError, Retryable):
    """Another run is looking at this server right now."""


class IndexUnavailable(Retryable):
    """Qdrant did not answer."""


class IndexLost(IndexUnavailable):
    """Qdrant answers, and a collection that should be there is gone; the sweep makes it again."""


class ModelUnavailable(Retryable):
    """The embedding model cannot be loaded; a download may work later."""


class IntentsUnavailable(Retryable):
    """The intent store did not answer."""


class KeysUnavailable(Retryable):
    """The keys that tokens are checked with could not be fetched, and none are known from before."""


class CursorsUnavailable(Retryable):
    """What a cursor goes on with cannot be kept, or cannot be read now."""


class HistoryUnavailable(Retryable):
    """The history of savings did not answer."""


class BudgetTooSmall(Permanent):
    """Not even the shortest answer fits into the tokens that were asked for."""


class CursorInvalid(Permanent):
    """A cursor was changed, belongs to another caller or question, or has expired."""


class EventInvalid(Permanent):
    """An event does not follow the contract; `field` is the path of the first offending field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class CallerRefused(Permanent):
    """A caller's token opens nothing; the reason never quotes it."""


class ConfigInvalid(Permanent):
    """A setting or a configuration file cannot be used."""


class IndexHeld(ConfigInvalid):
    """Another process uses the data directory; it is the one to ask."""


class AssetInvalid(Permanent):
    """A bundled file is missing or is not the one it should be."""


class CountFailed(Permanent):
    """A text whose tokens could not be counted."""
