"""Behind a proxy or in a container: the service knows its hosts however they are written, and names the setting."""

from __future__ import annotations

import re

import anyio
import httpx2
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route

from query.endpoint import HOSTS_SETTING
from shared.service.logging import LineLimit
from shared.service.routes import application, liveness_route
from tests.support.fakes import FakeIndex
from tests.support.http_callers import app_of, http_client
from tests.support.profiles import examples

pytestmark = pytest.mark.anyio

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"accept": "application/json, text/event-stream"}
HOSTS = (
    "tools.example.org",
    "Fleet.Example.org",
    "gateway:8443",
    "secure.example.org:443",
    "[2001:db8::1]",
    "https://by.url",
)

OURS = [
    "tools.example.org",
    "TOOLS.example.ORG",
    "tools.example.org.",
    "tools.example.org:80",
    "tools.example.org:8765",
    "tools.example.org.:443",
    "tools.example.org:",
    "fleet.example.org",
    "FLEET.EXAMPLE.ORG:1",
    "gateway:8443",
    "Gateway.:8443",
    "secure.example.org:443",
    "[2001:db8::1]",
    "[2001:DB8:0:0::1]:8765",
    "[2001:0db8::0001]",
    "by.url",
    "localhost",
    "LocalHost:8765",
    "127.0.0.1",
    "[::1]",
    "[0:0:0:0:0:0:0:1]:99",
]
STRANGE = [
    "",
    "evil.example",
    "tools.example.org.evil.example",
    "eviltools.example.org",
    "tools.example.org@evil.example",
    "evil.example#tools.example.org",
    "tools.example.org:80:80",
    "tools.example.org:x",
    "tools.example.org:-1",
    "tools.example.org, evil.example",
    "tools.example.org..",
    "gateway",
    "gateway:8444",
    "secure.example.org:8443",
    "[::1",
    "::1",
    "[::ffff:127.0.0.1]",
    "[::1%25eth0]",
    "127.0.0.1.evil.example",
    "2130706433",
    "http://localhost",
]  # fmt: skip


async def answered(app: Starlette, **headers: str) -> httpx2.Response:
    async with http_client(app) as http:
        return await http.post("/mcp", json=PING, headers=ACCEPT | headers)


@pytest.mark.parametrize("host", OURS)
@pytest.mark.parametrize("header", ["host", "http origin", "https origin"])
async def test_a_host_of_the_service_is_known_however_it_is_written(host: str, header: str) -> None:
    scheme, _, name = header.rpartition(" ")
    sent = {"host": "localhost", **({name: f"{scheme}://{host}"} if scheme else {"host": host})}

    answer = await answered(app_of(FakeIndex(), http_hosts=HOSTS), **sent)

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("host", STRANGE)
async def test_another_host_is_refused_with_the_setting_and_never_repeated(host: str) -> None:
    async with http_client(app_of(FakeIndex(), http_hosts=HOSTS)) as http:
        refused = await http.post("/mcp", json=PING, headers=ACCEPT | {"host": host})
        as_origin = await http.post("/mcp", json=PING, headers=ACCEPT | {"origin": f"https://{host}"})

    assert refused.status_code == 421
    assert as_origin.status_code == 403
    for answer in (refused, as_origin):
        assert HOSTS_SETTING in answer.text
        assert "evil" not in answer.text
        assert "evil" not in str(answer.headers)


@pytest.mark.parametrize(
    "origin", ["null", "file://", "localhost", "ftp://localhost", "http:localhost", "chrome-extension://x"]
)
async def test_an_origin_that_is_no_page_of_the_service_is_refused(origin: str) -> None:
    assert (await answered(app_of(FakeIndex()), origin=origin)).status_code == 403


async def test_a_refused_host_is_logged_once_with_the_setting_and_many_fill_neither_log_nor_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("query.endpoint._refused", LineLimit())  # other tests of this process have used up its own
    with structlog.testing.capture_logs() as lines:
        async with http_client(app_of(FakeIndex())) as http:
            for path in ("/mcp", "/mcp/x"):
                for _ in range(3):
                    await http.post(path, json=PING, headers=ACCEPT | {"host": "logged-once.example"})
            first = [line for line in lines if line["event"] == "host_refused"]
            for number in range(300):
                await http.post("/mcp", json=PING, headers=ACCEPT | {"host": f"h{number}.example" + "x" * 5_000})

    assert [(line["host"], line["setting"]) for line in first] == [("logged-once.example", HOSTS_SETTING)]
    assert len(lines) < 50
    assert all(len(line["host"]) <= 200 for line in lines if line["event"] == "host_refused")


# The page below a path of a proxy


PATHS = ["/ui", "/ui/servers", "/ui/find?q=time", "/ui/history", "/ui/advice", "/ui/servers/unknown"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("prefix", ["/toolscale", "/a/b-c_d.e~f/", "/tools"])
async def test_each_link_of_a_page_begins_with_the_forwarded_prefix(path: str, prefix: str) -> None:
    async with http_client(app_of(FakeIndex())) as http:
        page = await http.get(path, headers={"x-forwarded-prefix": prefix})
        plain = await http.get(path)

    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(links) > 5
    assert all(link.startswith(f"{prefix.rstrip('/')}/ui") for link in links)
    assert len(page.content) == int(page.headers["content-length"])
    assert re.findall(r'(?:href|src|action)="(/[^"]*)"', plain.text)[0].startswith("/ui")


@pytest.mark.parametrize("path", ["/", "/ui/"])
@pytest.mark.parametrize(
    ("prefix", "location"),
    [
        ("/toolscale", "/toolscale/ui"),
        ("//evil.example", "/ui"),
        ("https://evil.example", "/ui"),
        ("/\\evil.example", "/ui"),
        ('/"><script>', "/ui"),
        ("/a/../..//evil.example", "/ui"),
        ("evil", "/ui"),
        ("/a b", "/ui"),
        ("/a, /b", "/ui"),
        ("/" + "x" * 5_000, "/ui"),
        ("", "/ui"),
    ],
)
async def test_the_redirect_to_the_page_follows_a_plain_prefix_alone(path: str, prefix: str, location: str) -> None:
    async with http_client(app_of(FakeIndex())) as http:
        answer = await http.get(path, headers={"x-forwarded-prefix": prefix, "x-forwarded-host": "evil.example"})
        page = await http.get("/ui", headers={"x-forwarded-prefix": prefix})

    assert (answer.status_code, answer.headers["location"]) == (307, location)
    assert "evil" not in page.text
    assert "<script>" not in page.text


@settings(max_examples=examples(100), deadline=None)
@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=30))
def test_no_prefix_writes_more_than_a_path_into_a_page(prefix: str) -> None:
    async def page() -> httpx2.Response:
        async with http_client(app_of(FakeIndex())) as http:
            return await http.get("/ui", headers={b"x-forwarded-prefix": prefix.encode("latin-1")})

    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', anyio.run(page).text)
    assert all(re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)*/ui(?:[/?][^\"]*)?", link) for link in links)


@pytest.mark.parametrize(
    "path", ["/healthz/", "/readyz/", "/metrics/", "/mcp/x/", "/ui/servers/", "/events/", "/api/servers/"]
)
async def test_no_path_redirects_to_the_host_of_the_request(path: str) -> None:
    other = application([liveness_route(), Route("/events", HTTPEndpoint)])
    for app in (app_of(FakeIndex()), other):
        async with http_client(app) as http:
            for host in ("evil.example", "localhost"):
                answer = await http.get(path, headers={"host": host})
                assert host not in answer.headers.get("location", "")
