"""The service that a command uses, over HTTP: its JSON API, and its tools over MCP; or the stores, if they are servers.

MCP needs no SDK here, which takes half a second to import: since the revision 2026-07-28, a request is one POST.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, urlencode, urlsplit

from shared.errors import ConfigInvalid, ServiceRejected, ServiceUnreachable
from shared.quoting import printable
from shared.service.command_line import COMMAND_LINE
from toolscale.client.background import service_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import httpx2

    from query.backup import Stores
    from query.operations import Operations
    from shared.intents.intents import Intents
    from shared.settings import Settings

REVISION = "2026-07-28"
TIMEOUT_S = 60.0
"""Of silence; during a long call, the service sends a line each 15 seconds."""
MAX_REASON_CHARACTERS = 500
INTERNAL_ERROR = -32603
"""Of JSON-RPC, such as a call that a stopping service cut off."""

Object = dict[str, Any]

Confirm = Callable[[str], bool]
"""Return whether the user confirms a call; the argument is the question."""

_NEEDS_TOKEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_PERMISSIONS = {
    "/toolsets": "toolsets:write",
    "/api/servers": "catalog:read",
    "/api/sign-ins": "catalog:read",
    "/api/savings": "catalog:read",
    "/api/advice": "catalog:read",
}
_META: Object = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    # the service counts no answer to a command as one to an agent
    "io.modelcontextprotocol/clientInfo": {"name": COMMAND_LINE, "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


def open_service(url: str | None, token: str | None, data_dir: Path | None = None) -> Service:
    """Return the service at this URL, or by default that of the settings, which starts where none runs.

    Raises: the errors of `service_of`.
    """
    if url:
        return Service(url, token)
    from shared.settings import load_settings  # noqa: PLC0415  # a URL needs no settings

    found = service_of(load_settings(data_dir=data_dir))
    return Service(found.url, token or found.secret or None)


@contextmanager
def open_operations(
    url: str | None = None, token: str | None = None, data_dir: Path | None = None
) -> Generator[Operations | Service]:
    """Yield the operations; the URL and the token are for a service.

    Raises:
        IntentsUnavailable: Redis does not answer.
        ServiceUnreachable, InstanceMismatch, ConfigInvalid: from `service_of`.
    """
    from shared.settings import load_settings  # noqa: PLC0415  # as above

    settings = load_settings(data_dir=data_dir)
    if settings.is_embedded:
        with open_service(url, token, data_dir) as service:
            yield service
        return
    from query.operations import Operations  # noqa: PLC0415  # the stores' clients take long to import
    from shared.intents.intents import open_intents  # noqa: PLC0415
    from shared.service.tracing import configure_tracing  # noqa: PLC0415
    from workers.emit import Emitter, message_time_s  # noqa: PLC0415

    configure_tracing("toolscale", os.environ)
    with closing(open_intents(settings)) as intents:
        emitter = Emitter(intents, _send_reconcile, message_time_s(settings))
        yield Operations(intents, emitter.emit_all, emitter.accept, partial(_stores, settings, intents))


@contextmanager
def _stores(settings: Settings, intents: Intents) -> Generator[Stores]:
    from query.backup import Stores  # noqa: PLC0415  # loads the clients of the stores
    from query.usage.usage import open_usage  # noqa: PLC0415
    from shared.index.versions import open_index_versions  # noqa: PLC0415
    from shared.text.embedding import FastEmbedder  # noqa: PLC0415

    versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    with closing(versions.store), closing(open_usage(settings)) as usage:
        versions.ensure_own_version()
        yield Stores(intents, versions.current()[0].index, usage, settings.savings_keep_days)


def _send_reconcile(server_id: str) -> None:
    """Send a message for this server; if that fails, the next sweep of a worker takes the event."""
    import structlog  # noqa: PLC0415
    from kombu.exceptions import OperationalError  # noqa: PLC0415

    from workers.app import app  # noqa: PLC0415  # reads the environment, and loads Celery
    from workers.celery_app import send_reconcile  # noqa: PLC0415

    try:
        send_reconcile(app, server_id)
    except OperationalError as error:
        structlog.get_logger().warning("enqueue_failed", server=server_id, reason=str(error))


def mcp_address(url: str) -> str:
    """Return the URL of MCP at a service: as given if its path ends so, or names a toolset there.

    Raises:
        ConfigInvalid: this is no URL of HTTP.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigInvalid(f"{printable(url)}: expected the URL of a service, such as http://127.0.0.1:8765")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if re.search(r"/mcp(/[^/]+)?$", path) else f"{path}/mcp").geturl()


class Service:
    """A running service, with the permissions of a token."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Prepare for requests; the URL may be that of MCP.

        Raises:
            ConfigInvalid: this is no URL of HTTP.
        """
        import httpx2  # noqa: PLC0415  # `toolscale --help` loads all commands, and needs no HTTP

        self.mcp_url = mcp_address(url)
        parts = urlsplit(self.mcp_url)
        self.url = parts._replace(path=re.sub(r"/mcp(/[^/]+)?$", "", parts.path), query="").geturl()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON at a path; parameters that are None are left out.

        Raises:
            ServiceUnreachable: it does not answer, or with a server error.
            ServiceRejected: it rejects the request, or answers without JSON; the message has the reason.
        """
        given = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        return self._json("GET", f"{path}?{given}" if given else path)

    def post(self, path: str, body: object) -> Any:
        """Send JSON, and return that of the response; raises as `get`."""
        return self._json("POST", path, body)

    def put(self, path: str, body: object) -> Any:
        """Store JSON, and return that of the response; raises as `get`."""
        return self._json("PUT", path, body)

    def delete(self, path: str) -> None:
        """Delete what is at a path; raises as `get`."""
        self._json("DELETE", path)

    def end_sign_ins(self, server_id: str | None, caller: str | None, *, for_service: bool = False) -> list[str]:
        """End the sign-ins of a server, and of a caller or the service; return the servers; raises as `get`."""
        known = {"server": server_id, "caller": caller, "service": "1" if for_service else None}
        given = {name: value for name, value in known.items() if value is not None}
        return cast("list[str]", self._json("DELETE", f"/api/sign-ins?{urlencode(given)}")["ended"])

    def servers(self) -> Object:
        """Return the servers that the token may see, as `query.servers` describes them; raises as `get`."""
        return cast("Object", self.get("/api/servers"))

    def record(self, event: str | Object) -> Object:
        """Record a CloudEvent, as JSON text or as an object; return the server's intent after it; raises as `get`."""
        return cast("Object", self.post("/api/events", event))

    def resync(self, server_ids: Sequence[str] = ()) -> list[Object]:
        """Request reconciliations of these servers, or of all that should run; return each intent; raises as `get`."""
        return cast("list[Object]", self.post("/api/intents", {"servers": list(server_ids)}))

    def intents_of(self, server_ids: Sequence[str] = ()) -> list[Object]:
        """Return the intents of these servers, or of all; raises as `get`."""
        return cast("list[Object]", self.get("/api/intents", servers=list(server_ids)))

    def changes(self, server_id: str, tools: Sequence[str] = ()) -> Object:
        """Return the changed definitions of a server, or of these tools; raises as `get`."""
        return cast("Object", self.get(f"/api/definitions/{quote(server_id)}", tools=list(tools)))

    def approve(self, server_id: str, tools: Sequence[str] = ()) -> Object:
        """Accept the changed definitions of a server, or of these tools; raises as `get`."""
        return cast("Object", self.post(f"/api/definitions/{quote(server_id)}", {"tools": list(tools)}))

    def dead_letters(self, limit: int) -> list[Object]:
        """Return the latest rejected events and messages, newest first; raises as `get`."""
        return cast("list[Object]", self.get("/api/dead-letters", lines=limit))

    def backup(self, kind: str) -> list[Object]:
        """Return the documents of a kind; raises as `get`."""
        return cast("list[Object]", self.get(f"/api/backup/{kind}"))

    def restore(self, kind: str, documents: Sequence[Object]) -> Object:
        """Add the missing documents of a kind, and return the numbers of added and present ones; raises as `get`."""
        return cast("Object", self.post(f"/api/backup/{kind}", list(documents)))

    def ask(self, tool: str, arguments: Mapping[str, Any]) -> Object:
        """Return the structured content of a tool of the service.

        Raises:
            ServiceUnreachable: it does not answer, or cannot do so now.
            ServiceRejected: it rejects the arguments, or the token.
        """
        result = self.call(tool, arguments)
        if result.get("isError"):
            message = " ".join(block.get("text", "") for block in result.get("content", ()))
            is_temporary = result.get("_meta", {}).get("dev.toolscale/temporary")
            raise (ServiceUnreachable if is_temporary else ServiceRejected)(message)
        return cast("Object", result.get("structuredContent", {}))

    def call(self, tool: str, arguments: Mapping[str, Any], confirm: Confirm = lambda _: False) -> Object:
        """Return the whole result of a tool of the service; `confirm` is asked if the operator's policy requires it.

        Raises: the errors of `ask`, but no error of the tool.
        """
        params: Object = {"name": tool, "arguments": dict(arguments), "_meta": _META}
        while (result := self._result(params)).get("resultType") == "input_required":
            answers: Object = {}
            for key, asked in result.get("inputRequests", {}).items():
                is_accepted = confirm(asked.get("params", {}).get("message", ""))
                answers[key] = {"action": "accept", "content": {}} if is_accepted else {"action": "decline"}
            params |= {"inputResponses": answers, "requestState": result.get("requestState")}
        return result

    def _result(self, params: Object) -> Object:
        """Return the result of a `tools/call`, from JSON or from a stream of events."""
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": params["name"],
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        response = self._response("POST", self.mcp_url, body, headers)
        answer = next((each for each in _messages(response) if "result" in each or "error" in each), None)
        if answer is None:
            raise ServiceUnreachable(
                f"{self.mcp_url} does not answer as an MCP server of the revision {REVISION}: {response.status_code}"
            )
        if error := answer.get("error"):
            raised = ServiceUnreachable if error.get("code") == INTERNAL_ERROR else ServiceRejected
            raise raised(f"{self.mcp_url}: {printable(str(error.get('message')))[:MAX_REASON_CHARACTERS]}")
        return cast("Object", answer["result"])

    def _json(self, method: str, path: str, body: object = None) -> Any:
        response = self._response(method, f"{self.url}{path}", body)
        if not response.is_success:
            reason = _reason(response)
            if response.status_code == HTTPStatus.NOT_FOUND and "json" not in response.headers.get("content-type", ""):
                reason = f"{self.url} does not offer this; run the command with the settings of its workers"
            raise (ServiceUnreachable if response.is_server_error else ServiceRejected)(reason)
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise ServiceRejected(f"{_shown(response)} answers without JSON") from error

    def _response(
        self, method: str, url: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        import httpx2  # noqa: PLC0415  # as above

        content = None if body is None else json.dumps(body)  # in ASCII: texts may have lone surrogates
        sent = {"Content-Type": "application/json", **(headers or {})}
        try:
            response = self._http.request(method, url, content=content, headers=sent)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServiceUnreachable(
                f"{url if url == self.mcp_url else self.url} does not answer: {type(error).__name__}; "
                "is `toolscale serve` running?"
            ) from error
        if response.status_code == HTTPStatus.FORBIDDEN and "json" in response.headers.get("content-type", ""):
            raise ServiceRejected(f"{self.url} answered 403: {_reason(response)}")
        if response.status_code in _NEEDS_TOKEN:
            path = url.removeprefix(self.url).partition("?")[0]
            usual = "tools:call" if url == self.mcp_url else "operate"
            permission = next((of for prefix, of in _PERMISSIONS.items() if path.startswith(prefix)), usual)
            needed = f"pass a token with the permission {permission} by --token or TOOLSCALE_TOKEN"
            raise ServiceRejected(f"{self.url} answered {response.status_code}: {needed}")
        return response


def _messages(response: httpx2.Response) -> Iterator[Object]:
    """Yield the JSON objects of a response; a stream of events has one in the data of each."""
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    texts = re.split(r"\r?\n\r?\n", response.text) if is_stream else [response.text]
    for text in texts:
        lines = re.split(r"\r?\n", text) if is_stream else []
        data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:")) if is_stream else text
        try:
            message = json.loads(data)
        except ValueError:
            continue  # a comment that keeps the connection open, or a page of a proxy
        if isinstance(message, dict):
            yield cast("Object", message)


def _reason(response: httpx2.Response) -> str:
    """Return the `error` of a JSON object, else the status and the text; a page of HTML has no text for people."""
    try:
        return printable(str(response.json()["error"])[:MAX_REASON_CHARACTERS])
    except (ValueError, TypeError, LookupError):
        is_page = "html" in response.headers.get("content-type", "")
        text = "" if is_page else f": {printable(response.text[:MAX_REASON_CHARACTERS])}"
        return f"{_shown(response)} answered {response.status_code}{text}"


def _shown(response: httpx2.Response) -> str:
    return str(response.url.copy_with(query=None))
