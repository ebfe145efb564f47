"""An MCP server that needs a sign-in, with its authorization server: both of the SDK, behind one real port.

It agrees to every authorization at once, for the person that the browser names by `login_hint`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.responses import Response

from tests.support.ports import free_port
from tests.support.waiting import eventually

_person: ContextVar[str] = ContextVar("person", default="somebody")


@dataclass
class People:
    """The provider of the authorization server: its clients, grants and tokens, in memory.

    Access tokens of `lifetime_s`. `refreshes` counts the refreshes by person, and a refresh token is good once.
    `log` has every token that was ever given; `withheld` are scopes that none gets.
    """

    lifetime_s: int = 3_600
    scopes: list[str] = field(default_factory=lambda: ["read"])
    withheld: set[str] = field(default_factory=set[str])
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict[str, OAuthClientInformationFull])
    codes: dict[str, AuthorizationCode] = field(default_factory=dict[str, AuthorizationCode])
    access: dict[str, AccessToken] = field(default_factory=dict[str, AccessToken])
    refresh: dict[str, RefreshToken] = field(default_factory=dict[str, RefreshToken])
    refreshes: Counter[str] = field(default_factory=Counter[str])
    authorized: Counter[str] = field(default_factory=Counter[str])
    log: list[str] = field(default_factory=list[str])
    refuses_refresh: bool = False
    refresh_takes_s: float = 0.0
    refreshing: int = 0
    on_refresh: Callable[[], object] = lambda: None

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_hex(20),
            scopes=[scope for scope in params.scopes or self.scopes if scope not in self.withheld],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=_person.get(),
        )
        self.codes[code.code] = code
        self.authorized[_person.get()] += 1
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        assert authorization_code.subject
        return self.given(client, authorization_code.subject, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.refreshing += 1
        self.on_refresh()
        if self.refresh_takes_s:
            await anyio.sleep(self.refresh_takes_s)
        if self.refuses_refresh or self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", "this grant has ended")
        assert refresh_token.subject
        self.refreshes[refresh_token.subject] += 1
        return self.given(client, refresh_token.subject, scopes or refresh_token.scopes)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def revoke(self, person: str) -> None:
        """End all tokens of a person."""
        for kept in (self.access, self.refresh):
            for token in [each for each, about in kept.items() if about.subject == person]:
                del kept[token]

    def given(self, client: OAuthClientInformationFull, person: str, scopes: list[str]) -> OAuthToken:
        """Give a person new tokens."""
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        self.log += [access, refresh]
        self.access[access] = AccessToken(
            token=access,
            client_id=client.client_id,
            scopes=scopes,
            expires_at=int(time.time() + self.lifetime_s),
            subject=person,
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=scopes, subject=person)
        return OAuthToken(
            access_token=access, expires_in=self.lifetime_s, scope=" ".join(scopes), refresh_token=refresh
        )


@dataclass
class ProtectedServer:
    """The running server at `url`; `calls` are the persons whose tokens called `whoami`."""

    url: str
    people: People
    calls: list[str] = field(default_factory=list[str])


def _mcp(server: ProtectedServer, issuer: str) -> MCPServer:
    made = MCPServer(
        "protected",
        auth_server_provider=server.people,
        auth=AuthSettings(
            issuer_url=issuer,  # type: ignore[arg-type]  # pydantic validates it
            resource_server_url=server.url,  # type: ignore[arg-type]
            required_scopes=["read"],
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["read", "write"], default_scopes=["read"]
            ),
            validate_token_resource=False,
        ),
    )

    @made.tool()
    def whoami() -> str:
        """Return who calls."""
        token = get_access_token()
        assert token
        assert token.subject
        server.calls.append(token.subject)
        return token.subject

    @made.tool()
    def leak() -> str:
        """Repeat the access token of the caller."""
        token = get_access_token()
        assert token
        raise ToolError(f"cannot use {token.token}")

    return made


@contextmanager
def protected_server(people: People | None = None) -> Generator[ProtectedServer]:
    """Run a server whose tools `whoami` and `leak` need a sign-in, until the block ends."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    server = ProtectedServer(f"{issuer}/mcp", people or People())
    app: Any = _mcp(server, issuer).streamable_http_app()

    async def as_person(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            query = parse_qs(scope["query_string"].decode())
            if "login_hint" in query:
                _person.set(query["login_hint"][0])
            if scope["path"] == "/mcp" and _lacks_scope(server.people, scope):
                challenge = 'Bearer error="insufficient_scope", scope="write"'
                await Response(status_code=403, headers={"WWW-Authenticate": challenge})(scope, receive, send)
                return
        await app(scope, receive, send)

    running = uvicorn.Server(uvicorn.Config(as_person, host="127.0.0.1", port=port, log_level="error", lifespan="on"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: running.started, within_s=30)
        yield server
    finally:
        running.should_exit = True
        thread.join(30)


def _lacks_scope(people: People, scope: Any) -> bool:
    """Return whether the request calls a tool that needs the scope `write`, without it."""
    headers = dict(scope["headers"])
    token = people.access.get(headers.get(b"authorization", b"").decode().removeprefix("Bearer "))
    return headers.get(b"mcp-name") == b"leak" and token is not None and "write" not in token.scopes
