"""`SSL_CERT_FILE` for Qdrant and MCP servers, and an egress proxy for both; Redis is in test_redis_urls.py."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shared.catalog import Endpoint
from shared.errors import ServerUnreachable
from shared.index import unreachable_reason
from shared.index.client import ServerClient
from shared.index.records import SERVERS_SPEC
from shared.index.server import ServerEngine
from shared.upstream.dial import Dialler
from shared.upstream.http import (
    proxy_for,
    tls_context,
)
from shared.upstream.target import HttpTarget
from tests.support.certificates import server_context, write_certificate
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import ScriptedServer, scripted_http
from tests.support.http_thread import SilentHandler, served
from tests.support.scripted_qdrant import creating, scripted_qdrant
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=30)
NAME = "mcp.example.org"


@pytest.fixture(autouse=True)
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[Path, Path]]:
    """A certificate of this machine and of NAME, with its key, and an environment without proxies."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    tls_context.cache_clear()
    yield write_certificate(tmp_path, NAME)
    tls_context.cache_clear()


@contextmanager
def tool_server(certificate: tuple[Path, Path]) -> Generator[ScriptedServer]:
    """Yield an MCP server with one tool, over TLS."""
    pages = one_page(tool("only_tool"))
    with scripted_http(lambda exchange: exchange.play(pages), tls=server_context(*certificate)) as server:
        yield server


def listed(target: HttpTarget) -> list[str]:
    return [definition.name for definition in fetch_tools_blocking("s", target, LIMITS).tools]


def test_an_mcp_server_of_a_private_authority_is_listed(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tool_server(certificate) as server:
        with pytest.raises(ServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            listed(HttpTarget(server.url))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        tls_context.cache_clear()

        assert listed(HttpTarget(server.url)) == ["only_tool"]


def test_a_qdrant_server_of_a_private_authority_is_used(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_qdrant(creating(set()), tls=server_context(*certificate)) as url:
        assert "CERTIFICATE_VERIFY_FAILED" in str(unreachable_reason(url))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

        assert unreachable_reason(url) is None
        with closing(ServerEngine(ServerClient(url, None))) as engine:
            assert not engine.exists("servers")
            assert engine.collection(SERVERS_SPEC).scroll({}, 5) == ([], None)


@pytest.mark.parametrize("exempt", ["", "inside.lan", "127.0.0.1", "inside.lan,127.0.0.1:{port}", "inside.lan, *"])
def test_all_requests_to_a_qdrant_server_use_the_proxy_of_the_environment(
    exempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_qdrant(creating(set())) as url, running_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removeprefix("http://"))
        monkeypatch.setenv("NO_PROXY", exempt.format(port=urlsplit(url).port))
        with closing(ServerEngine(ServerClient(url, None))) as engine:
            assert not engine.exists("servers")
            assert engine.collection(SERVERS_SPEC).scroll({}, 5) == ([], None)

        asked = [f"{url}/collections/servers/{path}" for path in ("exists", "points/scroll")]
        assert proxy.asked == (asked if exempt in ("", "inside.lan") else [])


@dataclass
class Proxy:
    """An HTTP proxy on loopback; `asked` holds the targets of its requests."""

    url: str
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def running_proxy(*, refuses: bool = False) -> Generator[Proxy]:
    """Yield a proxy that forwards requests, and connects `CONNECT` requests or refuses them."""
    asked: list[str] = []

    class Handler(SilentHandler):
        def do_CONNECT(self) -> None:  # the name http.server looks for
            asked.append(self.path)
            if refuses:
                self.send_error(403)
                return
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                self.send_response(200)
                self.end_headers()
                _relay(self.connection, server)

        def do_POST(self) -> None:
            asked.append(self.path)
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with closing(HTTPConnection(str(parts.hostname), parts.port)) as server:
                server.request(self.command, parts.path, body, dict(self.headers))
                response = server.getresponse()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(response.read())

        do_GET = do_DELETE = do_POST  # the names http.server looks for

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as proxy:
        yield Proxy(f"http://127.0.0.1:{proxy.server_port}", asked)


def _relay(client: socket.socket, server: socket.socket) -> None:
    others = {client: server, server: client}
    while True:
        for ready in select.select(list(others), [], [])[0]:
            chunk = ready.recv(65_536)
            if not chunk:
                return
            others[ready].sendall(chunk)


def announced(url: str) -> HttpTarget:
    """Return the target of an event with this URL, whose host resolves to this machine."""
    dialler = Dialler({}, frozenset({NAME}), None, {}, resolve=lambda _host, _port: ["127.0.0.1"])
    target = dialler.target("s", Endpoint(transport="streamable-http", url=url))
    assert isinstance(target, HttpTarget)
    return target


def test_a_proxy_is_asked_for_the_checked_address_and_the_certificate_is_that_of_the_name(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with tool_server(certificate) as server, running_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)

        assert listed(announced(f"https://{NAME}:{server.server_port}/mcp")) == ["only_tool"]

        assert set(proxy.asked) == {f"127.0.0.1:{server.server_port}"}
        assert server.seen[0].headers["host"] == f"{NAME}:{server.server_port}"


def test_requests_without_tls_name_the_checked_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = one_page(tool("only_tool"))
    with scripted_http(lambda exchange: exchange.play(pages)) as server, running_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)

        assert listed(announced(f"http://{NAME}:{server.server_port}/mcp")) == ["only_tool"]

        assert set(proxy.asked) == {f"http://127.0.0.1:{server.server_port}/mcp"}
        assert server.seen[0].headers["host"] == f"{NAME}:{server.server_port}"


def test_a_proxy_that_refuses_makes_a_server_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_proxy(refuses=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)

        with pytest.raises(ServerUnreachable, match=r"no connection: .*403"):
            listed(announced(f"https://{NAME}/mcp"))


def target(host: str, *addresses: str, scheme: str = "https") -> HttpTarget:
    return HttpTarget(f"{scheme}://{host}/mcp", addresses=addresses)


@pytest.mark.parametrize(
    ("target", "proxied"),
    [
        (target(NAME, "8.8.8.8"), True),
        (target(NAME), True),
        (target(NAME, scheme="http"), False),
        (target("localhost"), False),
        (target("127.0.0.1"), False),
        (target("inside.lan", "8.8.8.8"), False),
        (target("deep.inside.lan", "8.8.8.8"), False),
        (target("other.lan", "10.1.2.3"), False),
        (target("other.lan", "10.1.2.3", "8.8.8.8"), True),
        (target("10.1.2.3"), False),
    ],
)
def test_no_proxy_names_hosts_and_networks(target: HttpTarget, proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.lan:3128")
    monkeypatch.setenv("NO_PROXY", "inside.lan, 10.0.0.0/8")

    assert proxy_for(target) == ("http://proxy.lan:3128" if proxied else None)
