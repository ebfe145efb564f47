"""Whatever a stranger sends to a real service, it is answered, and costs one short line of the log at most."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.http_callers import entry, token_file
from tests.support.http_limits import Address, connected, request_bytes
from tests.support.ports import free_port
from tests.support.processes import Composition, Running
from tests.support.profiles import examples

pytestmark = [pytest.mark.process, pytest.mark.slow]

PING = b'{"id": 1, "jsonrpc": "2.0", "method": "ping"}'
STRUCTURED, BATCH = b"application/cloudevents+json", b"application/cloudevents-batch+json"
TOKEN = "events-token-of-a-test"
PRODUCER = ("Authorization", f"Bearer {TOKEN}".encode())
SHORT = 2_000
"""Characters of a line, with the values of the request."""

# --- requests ---

noise = st.binary(max_size=30) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
odd = st.sampled_from(
    [
        b"",
        b"\xed\xa0\x80",
        b"\xff\xfe",
        b"%ed%a0%80",
        b"zz:yy",
        b"[::1",
        b"-1",
        b"9" * 4_000,
        b"\\ud800",
        b"=?utf-8?b?7aCA?=",
        b"a, b;c=\xe9",
        b'"',
        b"\t",
    ]
)
encoded = (noise | odd).map(base64.b64encode)
values = st.one_of(
    noise,
    odd,
    st.tuples(st.sampled_from([b"Basic ", b"bearer ", b"Bearer", b"DPoP "]), encoded | noise | odd).map(b"".join),
    st.sampled_from(
        [
            b"application/json",
            b"application/cloudevents+json; charset=\xff",
            b"application/cloudevents-batch+json",
            b"text/event-stream",
            b"multipart/form-data; boundary=",
            b"*/*;q=x",
            b"chunked",
            b"gzip, chunked",
            b"100-continue",
            b"localhost:99999",
            b"LOCALHOST.",
            b"null",
            b"00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-zz",
            b"bytes=0-,0-,0-",
            b'W/"x", *',
            b"Thu, 99 Foo 99999 00:00:00 GMT",
        ]
    ),
)
NAMES = sorted(
    {
        *(
            "Authorization",
            "Host",
            "Origin",
            "Cookie",
            "Accept",
            "Accept-Charset",
            "Accept-Encoding",
            "Accept-Language",
        ),
        *("Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Connection", "Expect", "Upgrade"),
        *("Range", "If-None-Match", "If-Modified-Since", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto"),
        *("X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-IP", "Last-Event-ID", "Mcp-Session-Id"),
        *("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-X", "Traceparent", "Tracestate", "Baggage"),
        *("Ce-Id", "Ce-Type", "Ce-Source", "Ce-Specversion", "Toolscale-Directory", "Toolscale-Toolset"),
    }
)
headers = st.lists(
    st.tuples(st.sampled_from(NAMES), values.map(lambda value: value.translate(None, b"\r\n\0"))), max_size=4
)
TARGETS = (
    b"/ /ui /ui/ /ui/find?q=%ED%A0%80 /ui/servers/%ED%A0%80 /ui/tools/%FF:%00 /ui/servers?page=9e9"
    b" /ui/history?days=\xc2\xb2 /mcp /mcp/%ED%A0%80 /mcp/../ui /events /api/servers /api/tools?q=%ff /api/sign-ins"
    b" /oauth/start/%ED%A0%80 /oauth/callback?state=%ED%A0%80&code=x /oauth/client.json"
    b" /healthz /readyz /metrics //evil.example/.. * /%"
    b" http://evil.example/ui /.well-known/oauth-protected-resource/mcp /ui/static/../../../etc/passwd"
    b" /ui/static/page.css"
).split()
targets = st.one_of(
    st.sampled_from([*TARGETS, b"/?" + b"a=" * 3_000]),
    noise.map(lambda path: b"/" + re.sub(rb"[\s\x00-\x20\x7f]", b"", path)),
)
HALF = "\ud800"
EVENT: dict[str, object] = {
    **{"specversion": "1.0", "id": HALF, "source": "/x", "type": "dev.toolscale.server.up", HALF: HALF},
    "data": {"server_id": HALF, "url": f"http://127.0.0.1/{HALF}", "labels": {HALF: HALF}},
}
bodies = st.one_of(
    noise,
    st.sampled_from(
        [
            json.dumps({"jsonrpc": "2.0", "id": "\ud800", "method": "ping"}).encode(),
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "\ud800"}).encode(),
            json.dumps(EVENT).encode(),
            json.dumps([HALF]).encode(),
            json.dumps({HALF: HALF}).encode(),
            b'{"id": "\xed\xa0\x80"}',
            b"[" * 9_000,
            b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}',
            b"",
        ]
    ),
)
methods = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"BREW"])


# --- the services ---


@dataclass
class Port:
    """A port of a service, and its log, as far as a test has not read it."""

    address: Address
    running: Running
    read_characters: int = 0

    def logged(self) -> list[str]:
        """Return the lines since the last time."""
        output = self.running.output()
        new, self.read_characters = output[self.read_characters :], len(output)
        return new.splitlines()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Port]]:
    """Yield the ports of a service with tokens, of one without, and of the events API."""
    found: dict[str, Port] = {}
    with ExitStack() as stack:
        for name in ("with tokens", "without tokens"):
            directory = tmp_path_factory.mktemp("serve")
            (directory / "mcp.json").write_text('{"mcpServers": {}}')
            environment = {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_EVENTS_TOKEN": TOKEN}
            if name == "with tokens":
                environment["TOOLSCALE_TOKENS_FILE"] = str(token_file(directory / "tokens.toml", ann=entry("good")))
            port = free_port()
            command = ("-m", "toolscale", "serve", "--config", str(directory / "mcp.json"), "--port", str(port))
            running = stack.enter_context(Composition("", directory, environment).run("serve", *command))
            running.wait_for("query_service_started")
            found[name] = Port(("127.0.0.1", port), running)
        yield found


def answer_of(port: Port, request: bytes) -> bytes:
    """Return the whole response, empty if the service waits for the rest of a body."""
    with closing(connected(port.address)) as connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(request)
        connection.settimeout(1)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        assert received, "no answer"
        return received
    return b""


@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["with tokens", "without tokens"]), methods, targets, headers, bodies)
@example("with tokens", b"GET", b"/ui", [("Authorization", b"Basic " + base64.b64encode(b"a:\xed\xa0\x80"))], b"")
@example("with tokens", b"GET", b"/ui", [("X-Forwarded-For", b"zz:yy")], b"")
@example("without tokens", b"POST", b"/events", [PRODUCER, ("Content-Type", STRUCTURED)], json.dumps(EVENT).encode())
@example("without tokens", b"POST", b"/events", [PRODUCER, ("Content-Type", BATCH)], json.dumps([EVENT]).encode())
@example("without tokens", b"POST", b"/events", [PRODUCER, ("Ce-Id", b"%ED%A0%80")], b"{}")
@example("without tokens", b"POST", b"/mcp", [("Last-Event-ID", b"\xed\xa0\x80")], PING.replace(b"1", b'"\\ud800"', 1))
@example("without tokens", b"POST", b"/mcp", [("Mcp-Session-Id", b"\xed\xa0\x80")], PING)
@example("without tokens", b"GET", b"/ui/find?q=%ED%A0%80", [], b"")
@example("without tokens", b"GET", b"/ui/servers/%ED%A0%80", [], b"")
@example("without tokens", b"GET", b"/oauth/callback?state=%ED%A0%80", [], b"")
def test_no_request_of_a_stranger_reaches_an_unexpected_error(
    ports: dict[str, Port], name: str, method: bytes, target: bytes, given_headers: list[tuple[str, bytes]], body: bytes
) -> None:
    port = ports[name]
    port.logged()

    response = answer_of(port, request_bytes(method, target, given_headers, body, is_last=True))

    lines = port.logged()
    status = int(response.split()[1]) if response else 100
    assert status < 500, response[:300]
    assert b"location: http" not in response.lower()
    assert not any("Traceback" in line or "exc_info" in line or "exception" in line for line in lines), lines
    assert len(lines) <= 1, lines
    assert sum(map(len, lines)) < SHORT + sum(len(value) for _, value in given_headers) + 4 * len(target)
