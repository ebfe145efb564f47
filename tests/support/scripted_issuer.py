"""An MCP server that needs a sign-in, and its authorization server, with the answers that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from tests.support.http_thread import SilentHandler, served

RESOURCE = "/.well-known/oauth-protected-resource/mcp"
ISSUER = "/.well-known/oauth-authorization-server"


@dataclass(frozen=True)
class Answer:
    """A response: a status, headers, and JSON."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    content: Any = None


@dataclass(frozen=True)
class Received:
    """A request: its path, headers by lower-case name, and body."""

    path: str
    headers: dict[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        """Return the fields of a form."""
        return dict(parse_qsl(self.body))


@dataclass
class ScriptedIssuer:
    """Answers each path as in `answers`, and 404 elsewhere; `/mcp METHOD` is for a method of MCP 2026-07-28.

    `received` are all requests.
    """

    address: str
    answers: dict[str, Answer]
    received: list[Received] = field(default_factory=list[Received])

    @property
    def url(self) -> str:
        """Return the URL of the MCP server."""
        return f"{self.address}/mcp"

    def publish(self, **metadata: Any) -> None:
        """Add fields to the metadata of the authorization server."""
        content = {**self.answers[ISSUER].content, **metadata}
        self.answers[ISSUER] = Answer(content=content)

    def requests(self, path: str) -> list[Received]:
        """Return the requests for a path."""
        return [each for each in self.received if each.path == path]


@contextmanager
def scripted_issuer() -> Generator[ScriptedIssuer]:
    """Run one that behaves well, until the block ends."""

    class Handler(SilentHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            headers = {name.lower(): value for name, value in self.headers.items()}
            issuer.received.append(Received(self.path, headers, body))
            of_method = issuer.answers.get(f"{self.path} {headers.get('mcp-method')}")
            answer = of_method or issuer.answers.get(self.path, Answer(404))
            content = json.dumps(answer.content).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        issuer = ScriptedIssuer(address, _well_behaved(address))
        yield issuer


def _well_behaved(address: str) -> dict[str, Answer]:
    metadata = {
        "issuer": address,
        "authorization_endpoint": f"{address}/authorize",
        "token_endpoint": f"{address}/token",
        "registration_endpoint": f"{address}/register",
        "response_types_supported": ["code"],
    }
    token = {"access_token": "access-1", "token_type": "Bearer", "expires_in": 3_600, "refresh_token": "refresh-1"}
    return {
        "/mcp": Answer(401, {"WWW-Authenticate": "Bearer"}),
        RESOURCE: Answer(content={"resource": f"{address}/mcp", "authorization_servers": [address]}),
        ISSUER: Answer(content=metadata),
        "/register": Answer(201, content={"client_id": "registered", "redirect_uris": []}),
        "/token": Answer(content=token),
    }
