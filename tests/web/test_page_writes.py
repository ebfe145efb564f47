"""What the page changes: only by a form that a page of this service showed to this caller, and once."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from query.auth.authentication import Authentication
from query.caller import Caller
from query.catalogue import Catalogue
from query.listener import open_listener
from query.records import Ledger
from query.web.page import Means
from query.web.routes import page_routes
from query.web.writes import MAX_FORM_BYTES, page_token
from shared.settings import load_settings
from tests.support.fakes import FakeEmbedder, make_tool
from tests.support.filled import index_of
from tests.support.http_callers import entry, http_client, static

pytestmark = pytest.mark.anyio

OWN = "http://127.0.0.1"
PAGE, RETRY = "/ui/servers/mail", "/ui/retry/mail"


class Site:
    """A page over a failing server, and the servers whose listing was requested."""

    def __init__(self, authentication: Authentication | None = None, **settings: Any) -> None:
        self.resyncs: list[str] = []
        failed: dict[str, Any] = {"stale_since": 2.0, "last_error": "connection refused"}
        index = index_of(make_tool("mail", "send", groups=["team"]), **failed)
        with closing(open_listener(load_settings(port=0, **settings), authentication)) as listener:
            self.catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
            routes = page_routes(self.catalogue, listener, Means(self.resyncs.append))
            self.app = Starlette(routes=routes)

    @asynccontextmanager
    async def opened(self, bearer: str | None = None) -> AsyncGenerator[tuple[httpx2.AsyncClient, str]]:
        """Yield a client, and the token of the form on the page of the failing server."""
        async with http_client(self.app, bearer) as http:
            yield http, token_of(await http.get(PAGE))


def token_of(page: httpx2.Response) -> str:
    (found,) = re.findall(r'name="token" value="([^"]+)"', page.text)
    return str(found)


async def send(http: httpx2.AsyncClient, token: str, **headers: str) -> httpx2.Response:
    sent = {"origin": OWN} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post(RETRY, data={"token": token}, headers={name: sent[name] for name in sent if sent[name]})


@pytest.mark.parametrize("site", [{}, {"sec_fetch_site": "same-origin"}, {"x_forwarded_prefix": "/tools"}])
async def test_a_form_of_the_page_is_obeyed_once(site: dict[str, str]) -> None:
    page = Site()
    async with page.opened() as (http, token):
        first, second = [await send(http, token, **site) for _ in range(2)]

    prefix = site.get("x_forwarded_prefix", "")
    assert (first.status_code, first.headers["location"]) == (303, f"{prefix}{PAGE}?done=requested")
    assert second.status_code == 403
    assert page.resyncs == ["mail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ""},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},  # a page of another port of this machine
        {"origin": "http://localhost"},
        {"origin": "https://evil.example.org"},
        {"origin": "ftp://127.0.0.1"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "none"},
    ],
)
async def test_a_form_of_another_origin_is_refused_on_loopback_too_with_the_right_token(
    headers: dict[str, str],
) -> None:
    page = Site()
    async with page.opened() as (http, token):
        refused = await send(http, token, **headers)
        obeyed = await send(http, token)  # nothing was used up

    assert refused.status_code == 403
    assert obeyed.status_code == 303
    assert page.resyncs == ["mail"]


@pytest.mark.parametrize(
    "token", ["", "guessed", "A" * 22, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")]
)
async def test_a_form_without_a_token_of_the_page_is_refused(token: str) -> None:
    page = Site()
    async with page.opened() as (http, _):
        assert (await send(http, token)).status_code == 403

    assert page.resyncs == []


async def test_a_token_of_one_caller_is_of_no_use_to_another_or_for_anything_else(tmp_path: Path) -> None:
    page = Site(static(tmp_path / "t.toml", ann=entry("ann"), eve=entry("eve")))
    kept = page.catalogue.response_policy.kept

    async with page.opened("ann") as (http, token):
        of_eve = await http.post(RETRY, data={"token": token}, headers={"origin": OWN, "authorization": "Bearer eve"})
        cursor = await send(http, kept.put(b"", "ann", "find_tool", "time"))
        own = await send(http, token)

    assert [of_eve.status_code, cursor.status_code, own.status_code] == [403, 403, 303]


@pytest.mark.parametrize(
    ("rights", "status"),
    [
        ({}, 303),
        ({"permissions": ["catalog:read", "tools:call", "toolsets:write"]}, 403),
        ({"groups": ["team"]}, 403),
    ],
)
async def test_a_change_needs_its_permission_and_its_button_is_shown_to_nobody_else(
    tmp_path: Path, rights: dict[str, Any], status: int
) -> None:
    page = Site(static(tmp_path / "t.toml", ann=entry("ann", **rights)))
    token = page_token(Caller("ann"), page.catalogue.response_policy.kept)

    async with http_client(page.app, "ann") as http:
        shown = RETRY in (await http.get(PAGE)).text
        answer = await send(http, token)

    assert answer.status_code == status
    assert shown == (status == 303)
    assert page.resyncs == ["mail"] * shown


async def test_behind_an_ingress_the_public_url_is_this_service_too(tmp_path: Path) -> None:
    page = Site(static(tmp_path / "t.toml", ann=entry("ann")), public_url="https://tools.example.org/mcp")
    async with page.opened("ann") as (http, token):
        answer = await send(http, token, origin="https://tools.example.org")

    assert answer.status_code == 303


async def test_a_body_that_never_ends_is_refused() -> None:
    page = Site()
    async with page.opened() as (http, token):
        answer = await send(http, token + "x" * MAX_FORM_BYTES)

    assert answer.status_code == 413
    assert page.resyncs == []
