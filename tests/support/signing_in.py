"""A query service over HTTP whose callers have tokens, before servers that need a sign-in."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
from mcp.client.session import ElicitationFnT
from mcp.types import CallToolResult
from starlette.applications import Starlette

from query.api import api_routes
from query.app import http_app
from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.listener import HttpListener
from query.mcp import caller_of_request, service_of
from query.sign_in import SignInFlows
from query.sign_in_routes import SignInRoutes
from query.web.routes import page_routes
from shared.upstream.auth import Auth, OAuthClient
from shared.upstream.dial import Dialler
from shared.upstream.options import ServerOptions
from shared.upstream.sign_ins import SignIns
from shared.upstream.target import HttpTarget
from tests.support.calling import catalogue_of, text_of
from tests.support.fakes import make_tool
from tests.support.http_callers import entry, mcp_client, static

LINK = re.compile(r"https?://\S+/oauth/start/\S+")


@dataclass
class Service:
    """The application, and what its servers were asked to reconcile."""

    app: Starlette
    sign_ins: SignIns
    resyncs: list[str] = field(default_factory=list[str])


def signing_in(
    directory: Path,
    urls: Mapping[str, str],
    sign_ins: SignIns,
    callers: Mapping[str, Mapping[str, Any]],
    auth: Mapping[str, Auth],
    tools: tuple[str, ...] = ("whoami",),
    public_url: str | None = None,
) -> Service:
    """Return a service with these servers, sign-ins, callers by token, ways to authenticate, and public URL."""
    options = {name: ServerOptions(auth=how) for name, how in auth.items()}
    targets = {name: HttpTarget(url) for name, url in urls.items()}
    dialler = Dialler(
        targets,
        frozenset(),
        None,
        {},
        read_options=lambda server_id, _: options.get(server_id, ServerOptions(oauth=OAuthClient.model_validate({}))),
        sign_ins=sign_ins,
    )
    catalogue = catalogue_of([make_tool(server, tool) for server in urls for tool in tools])
    authentication = static(directory / "tokens.toml", **{name: entry(name, **more) for name, more in callers.items()})
    listener = HttpListener(socket.socket(), authentication, public_url=public_url)
    upstreams = Upstreams(dialler.target, CallLimits(timeout_s=60, max_connections=1_000), dialler.authenticated)
    resyncs: list[str] = []
    flows = SignInFlows(
        *(dialler, sign_ins, catalogue.response_policy.kept, listener.public_address, resyncs.append), is_local=False
    )
    routes = [
        *page_routes(catalogue, listener),
        *api_routes(catalogue, listener),
        *SignInRoutes(catalogue, flows, sign_ins, listener).routes(),
    ]
    server = service_of(catalogue, upstreams, caller_of_request, flows)
    listener.close()
    return Service(http_app(server, listener, index=catalogue.index, routes=routes), sign_ins, resyncs)


async def called(
    service: Service,
    token: str,
    tool: str,
    user: ElicitationFnT | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> CallToolResult:
    """Return the result of a call by the caller of this token, whose client asks this user, with these headers."""
    transport = httpx2.ASGITransport(app=service.app)
    sent = {"authorization": f"Bearer {token}", **headers}
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=sent) as own,
        mcp_client(own, mode="2026-07-28", user=user) as client,
    ):
        return await client.call_tool("call_tool", {"tool_name": tool})


def link_in(result: CallToolResult) -> str:
    """Return the link of a result that asks for a sign-in."""
    found = LINK.search(text_of(result))
    assert found, text_of(result)
    return found[0]


async def agree(http: httpx2.AsyncClient, link: str, token: str, person: str) -> httpx2.Response:
    """Follow a link as the browser of a caller, agree as this person, and return the page at the end."""
    basic = httpx2.BasicAuth("me", token)
    start = await http.get(link, auth=basic)
    if start.status_code != 307:  # HTTP's
        return start
    async with httpx2.AsyncClient() as browser:
        agreed = await browser.get(f"{start.headers['location']}&login_hint={person}")
    return await http.get(agreed.headers["location"], auth=basic)
