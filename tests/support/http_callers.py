"""The query service's HTTP application in this process, and MCP clients that show tokens to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette

from query.api import api_routes
from query.app import http_app, metrics_route
from query.auth.authentication import Authentication
from query.auth.tokens import StaticTokens, TokenEntry, as_toml
from query.caller import PERMISSIONS, Caller
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.listener import HttpListener
from query.mcp import caller_of_request, service_of
from query.policy import ReadPolicy, no_policy
from query.records import Ledger
from query.usage.usage import Usage
from query.web.routes import page_routes
from shared.errors import KeysUnavailable
from shared.index.tools import ToolIndex
from shared.service.token_file import digest
from shared.upstream.followed_config import FollowedConfig
from tests.support.fakes import FakeEmbedder

URL = "http://127.0.0.1/mcp"


def entry(token: str, groups: Any = "*", **more: Any) -> TokenEntry:
    """Return the entry of a token with all rights; `more` overrides them."""
    return TokenEntry.model_validate({"sha256": digest(token), "groups": groups, "permissions": PERMISSIONS} | more)


def token_file(path: Path, **entries: TokenEntry) -> Path:
    """Write a token file and return its path."""
    path.write_text("\n\n".join(as_toml(name, grant) for name, grant in entries.items()), encoding="utf-8")
    return path


def static(path: Path, **entries: TokenEntry) -> Authentication:
    """Return how these callers are known."""
    return Authentication(StaticTokens(token_file(path, **entries)))


class Unreachable(Authentication):
    """Authentication whose issuer does not answer."""

    async def caller(self, token: str) -> Caller:
        raise KeysUnavailable("the issuer's keys cannot be fetched")


def app_of(
    index: ToolIndex,
    authentication: Authentication | None = None,
    upstreams: Upstreams | None = None,
    usage: Usage | None = None,
    *,
    metrics_public: bool = False,
    followed: FollowedConfig | None = None,
    http_hosts: tuple[str, ...] = (),
    read_policy: ReadPolicy = no_policy,
) -> Starlette:
    """Return the application; its socket is never accepted from."""
    entrance = HttpListener(socket.socket(), authentication, http_hosts)
    catalogue = Catalogue(
        index, FakeEmbedder(), Ledger(index), usage=usage, followed_config=lambda: followed, read_policy=read_policy
    )
    server = service_of(catalogue, upstreams, caller_of_request)
    metrics = metrics_route(catalogue, entrance, is_open=metrics_public)
    routes = [*page_routes(catalogue, entrance), metrics, *api_routes(catalogue, entrance)]
    entrance.close()
    return http_app(server, entrance, index=index, routes=routes, followed_config=catalogue.followed_config)


@asynccontextmanager
async def http_client(app: Starlette, token: str | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """Start the application and yield a client that shows this token to it."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
    ):
        yield client


@asynccontextmanager
async def mcp_client(
    http: httpx2.AsyncClient, mode: str = "auto", url: str = URL, user: ElicitationFnT | None = None
) -> AsyncGenerator[Client]:
    """Yield an MCP client over this HTTP client, which asks this user."""
    transport = streamable_http_client(url, http_client=http)
    async with Client(transport, mode=mode, elicitation_callback=user) as client:
        yield client
