"""Whatever a stranger writes into the headers of a request, the service answers it, and logs one line at most."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Generator
from contextlib import closing, contextmanager

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jwt.utils import base64url_encode

from query.auth.authentication import Authentication, authentication_of
from shared.service.http import HttpLimits
from shared.service.logging import LIBRARIES
from shared.settings import load_settings
from tests.support.fakes import FakeIndex
from tests.support.http_callers import app_of, entry, token_file
from tests.support.http_limits import Address, connected, limited_server, read_status, request_bytes
from tests.support.issuer import AUDIENCE, ISSUER, issuer
from tests.support.profiles import examples

pytestmark = pytest.mark.process

LIMITS = HttpLimits(request_within_s=0.3, body_within_s=0.3)
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
ROUTES = (
    "GET /",
    "GET /ui",
    "GET /ui/",
    "GET /ui/find?q=time",
    "GET /ui/servers/x",
    "GET /ui/static/page.css",
    "GET /metrics",
    "GET /toolsets",
    "PUT /toolsets/x",
    "GET /readyz",
    "GET /healthz",
    "GET /.well-known/oauth-protected-resource/mcp",
    "POST /mcp",
    "POST /mcp/x",
    "GET /nothing/",
)

# --- values of headers ---

anything = st.binary(max_size=40) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass"))
nearly = st.sampled_from(
    [b"", b"%", b"\xed\xa0\x80", b"\xff", b"=", b";;", b",", b"[::1", b"zz:yy", b"1" * 5_000, b"\xe9"]
)
PARTS = st.sampled_from(
    [
        b"{}",
        b'{"alg":"ES256","kid":"first"}',
        b'{"alg":' + b"[" * 5_000,
        b'{"alg":1e999}',
        b'{"kid":"\\ud800"}',
        b"\xed\xa0\x80",
    ]
)
jwts = st.lists(PARTS.map(base64url_encode) | anything, min_size=3, max_size=3).map(b".".join)
tokens = st.just(b"good") | jwts | anything | nearly
basic = st.tuples(anything | nearly, tokens).map(lambda pair: base64.b64encode(b":".join(pair)))
authorizations = st.tuples(
    st.sampled_from([b"Basic", b"basic", b"Bearer", b"bearer", b"Digest", b"Negotiate", b""]),
    st.sampled_from([b" ", b"  ", b""]),
    basic | tokens,
).map(b"".join)
VALUES: dict[str, st.SearchStrategy[bytes]] = {
    "Authorization": authorizations,
    "Host": st.sampled_from(
        [b"127.0.0.1", b"127.0.0.1:x", b"LOCALHOST", b"[::1]:1", b"evil.example", b"a b", b"[", b"a\xe9"]
    ),
    "Origin": st.sampled_from([b"http://127.0.0.1:8765", b"null", b"http://evil.example", b"http://[", b"\xff"]),
    "X-Forwarded-For": st.sampled_from([b"zz:yy", b"::1", b"1.2.3.4, zz", b"[::1]:x", b"1.2.3.4:99999", b"%"]),
    "X-Forwarded-Proto": st.sampled_from([b"https", b"gopher", b"\xff"]),
    "X-Forwarded-Host": anything,
    "X-Forwarded-Prefix": anything,
    "Forwarded": st.sampled_from([b"for=zz:yy", b'for="[::1]:x"', b"for=;"]),
    "Cookie": st.sampled_from([b"a=b", b"=;=", b"\xff=\xff", b"a=" + b"1" * 5_000]),
    "Content-Length": st.sampled_from([b"0", b"-1", b"+1", b"1e3", b"\xb2", b"9" * 30, b"5", b"1,1"]),
    "Content-Type": st.sampled_from([b"application/json", b"text/plain", b"application/json; charset=x", b"\xff"]),
    "Accept": st.sampled_from(
        [
            b"application/openmetrics-text; version=zz",
            b"text/plain; version=1.x",
            b"*/*",
            b"text/event-stream",
            b"a;q=\xff",
        ]
    ),
    "Accept-Encoding": anything,
    "Range": st.sampled_from(
        [b"bytes=5-2", b"bytes=x-", b"bytes=-", b"bytes=0-0,2-1,9-", b"\xff", b"bytes=" + b"9" * 5_000 + b"-"]
    ),
    "If-Range": anything,
    "Traceparent": st.sampled_from([b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"zz", b"00-\xff-\xff-\xff"]),
    "MCP-Protocol-Version": st.sampled_from([b"2025-11-25", b"2026-07-28", b"1999-01-01", b"\xff", b"9" * 5_000]),
    "Mcp-Session-Id": anything,
    "Mcp-Method": st.sampled_from([b"ping", b"tools/call", b"\xff"]),
    "Mcp-Name": st.sampled_from([b"find_tool", b"=?base64?////?=", b"\xff"]),
    "Last-Event-ID": anything,
}


def _sendable(value: bytes) -> bytes:
    """Return the bytes of a value that do not end it; the parser of HTTP has its own tests for the others."""
    return value.translate(None, b"\r\n\0")


headers = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda name: st.tuples(st.just(name), (VALUES[name] | anything | nearly).map(_sendable))
    ),
    max_size=4,
)


def basic_of(password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(b"ann:" + password)


# --- the services ---


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Authentication:
    directory = tmp_path_factory.mktemp("tokens")
    jwks = directory / "jwks.json"
    jwks.write_text(json.dumps(issuer().jwks()), encoding="utf-8")
    file = token_file(directory / "tokens.toml", ann=entry("good"))
    found = authentication_of(
        load_settings(tokens_file=file, jwt_issuer=ISSUER, jwt_jwks=str(jwks), public_url=AUDIENCE)
    )
    assert found
    return found


@pytest.fixture(scope="module")
def addresses(known: Authentication) -> Generator[dict[str, Address]]:
    """Yield the addresses of a service with tokens, of one without, and of one with open metrics."""
    with (
        limited_server(app_of(FakeIndex(), known), LIMITS) as with_tokens,
        limited_server(app_of(FakeIndex()), LIMITS) as without,
        limited_server(app_of(FakeIndex(), known, metrics_public=True), LIMITS) as with_open_metrics,
    ):
        yield {"with tokens": with_tokens, "without": without, "with open metrics": with_open_metrics}


class Lines(logging.Handler):
    """The lines of libraries, at the levels that the service has."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()} {record.exc_info or ''}")


@contextmanager
def logged() -> Generator[list[str]]:
    """Yield the lines that the block logs, those of libraries too, filled at its end."""
    lines: list[str] = []
    handler, loggers = Lines(), {name: logging.getLogger(name) for name in LIBRARIES}
    levels = {name: logger.level for name, logger in loggers.items()}
    root = logging.getLogger()
    root_level = root.level
    root.setLevel(logging.INFO)
    for name, logger in loggers.items():
        logger.setLevel(max(LIBRARIES[name], logging.INFO))
    root.addHandler(handler)
    try:
        with structlog.testing.capture_logs() as own:
            yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(root_level)
        for name, logger in loggers.items():
            logger.setLevel(levels[name])
    lines += handler.lines + [str(line) for line in own]


def sent(route: str, given_headers: list[tuple[str, bytes]]) -> bytes:
    """Return a request of this method and path with these headers."""
    method, path = route.encode().split()
    return request_bytes(method, path, given_headers, b"" if method == b"GET" else PING)


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(["with tokens", "without", "with open metrics"]), st.sampled_from(ROUTES), headers)
@example("with tokens", "GET /ui", [("Authorization", basic_of(b"a.\xed\xa0\x80.c"))])
@example("with tokens", "GET /ui", [("Authorization", b"Bearer a.\xe9.c")])
@example("with tokens", "POST /mcp", [("Authorization", b"Bearer " + base64url_encode(b"[" * 9_000) + b".e30.e30")])
@example("without", "GET /metrics", [("Accept", b"application/openmetrics-text; version=zz")])
@example("with open metrics", "GET /metrics", [("Accept", b"text/plain; version=1.x")])
@example("without", "GET /ui/", [("Host", b"evil.example")])
@example("with tokens", "GET /ui", [("X-Forwarded-For", b"zz:yy")])
def test_no_header_of_a_stranger_reaches_an_unexpected_error(
    addresses: dict[str, Address], service: str, route: str, given_headers: list[tuple[str, bytes]]
) -> None:
    with logged() as lines, closing(connected(addresses[service])) as connection:
        connection.sendall(sent(route, given_headers))
        status = read_status(connection)

    assert status < 500
    assert len(lines) <= 1, lines
    assert not any("Traceback" in line or "exc_info" in line or "Error(" in line for line in lines), lines
    assert sum(map(len, lines)) < 1_000 + sum(len(value) for _, value in given_headers)


def test_a_surrogate_in_a_password_is_a_wrong_password(addresses: dict[str, Address]) -> None:
    with closing(connected(addresses["with tokens"])) as connection:
        connection.sendall(sent("GET /ui", [("Authorization", basic_of(b"a.\xed\xa0\x80.c"))]))

        assert read_status(connection) == 401


def test_a_host_is_never_repeated(addresses: dict[str, Address]) -> None:
    with closing(connected(addresses["without"])) as connection:
        connection.sendall(sent("GET /ui/", [("Host", b"evil.example"), ("Connection", b"close")]))
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))

    assert b"evil" not in received


def test_a_client_that_leaves_in_its_body_causes_no_line(addresses: dict[str, Address]) -> None:
    with logged() as lines:
        for route in ("PUT /toolsets/x", "POST /mcp"):
            with closing(connected(addresses["without"])) as connection:
                connection.sendall(sent(route, [("Content-Length", b"100")]))
        with closing(connected(addresses["without"])) as connection:  # the server has read the others before
            connection.sendall(sent("GET /healthz", []))
            assert read_status(connection) == 200

    assert lines == []
