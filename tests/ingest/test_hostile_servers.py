"""Each way in which a server can be broken or hostile ends in its own error, in time, and in bounded memory."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import (
    ListingTooLarge,
    ProtocolViolation,
    ServerAuthRequired,
    ServerError,
    ServerFailed,
    ServerFlooded,
    ServerTimeout,
    ServerUnreachable,
)
from shared.upstream import stdio
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.hostile import messages, scripts
from tests.support.hostile.messages import Pages, answer, circular, crowded, endless, tool
from tests.support.hostile.processes import scripted_stdio
from tests.support.hostile.scripted_http import Exchange, Respond, scripted_http
from tests.support.hostile.scripts import on_tools_list, plays, status
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

LIMITS = Limits(timeout_s=60, max_pages=30, max_message_bytes=1 << 20)
# for those who must be ended by the clock
IMPATIENT = replace(LIMITS, timeout_s=1.2)
IMPATIENT_CHILD = replace(LIMITS, timeout_s=2)
# for those who are ended by the clock, but must have said what is wrong before
AFTER_ALL = replace(LIMITS, timeout_s=6)
# A busy machine may start a child late; what must not happen is waiting for the SDK's probe or for ever.
SLACK_S = 60

Kind = type[ServerError]

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("patient_probe")]


def assert_ends_in(kind: Kind, target: Target, limits: Limits) -> ServerError:
    """Return the error, which is of this kind, names the server first, and came in time."""
    started = time.monotonic()
    with pytest.raises(ServerError) as caught:
        fetch_tools_blocking("team/srv", target, limits)
    elapsed_s = time.monotonic() - started

    assert type(caught.value) is kind, repr(caught.value)
    assert str(caught.value).startswith("team/srv: ")
    assert elapsed_s < limits.timeout_s + SLACK_S
    return caught.value


HTTP: dict[str, tuple[Respond, Kind, str]] = {
    "401": (status(401), ServerAuthRequired, "HTTP 401"),
    "403": (status(403), ProtocolViolation, "HTTP 403"),
    "401 after connecting": (on_tools_list(status(401)), ServerAuthRequired, "HTTP 401"),
    "404": (status(404), ProtocolViolation, "HTTP 404"),
    "429": (status(429), ServerFailed, "HTTP 429"),
    "500": (status(500), ServerFailed, "HTTP 500"),
    "503 after connecting": (on_tools_list(status(503)), ServerFailed, "HTTP 503"),
    "hang at once": (scripts.hangs, ServerTimeout, "no complete list"),
    "hang after connecting": (on_tools_list(scripts.hangs), ServerTimeout, "no complete list"),
    "drip-fed headers": (on_tools_list(scripts.drips_headers), ServerTimeout, "no complete list"),
    "drip-fed body": (on_tools_list(scripts.drips_json), ServerTimeout, "no complete list"),
    "drip-fed events": (on_tools_list(scripts.drips_events), ServerTimeout, "no complete list"),
    "chatter of list_changed": (on_tools_list(scripts.chatters), ServerFlooded, "messages"),
    "repeated cursor": (plays(circular), ProtocolViolation, "same cursor twice"),
    "endless cursors": (plays(endless), ListingTooLarge, "30 pages"),
    "forgotten cursor": (on_tools_list(scripts.forgets_cursors), ServerFailed, "no longer accepts the cursor"),
    "100,000 tools on pages": (plays(crowded), ListingTooLarge, "10000 tools"),
    "huge description": (on_tools_list(scripts.huge_json), ListingTooLarge, "1048576 bytes"),
    "huge event": (on_tools_list(scripts.huge_event), ListingTooLarge, "1048576 bytes"),
    "declared size": (on_tools_list(scripts.declares_huge), ListingTooLarge, "1048576 bytes"),
    "compressed body": (on_tools_list(scripts.zip_bomb), ProtocolViolation, "compressed"),
    "invalid JSON": (scripts.invalid_json, ProtocolViolation, "is cut off"),
    "invalid JSON after connecting": (on_tools_list(scripts.invalid_json), ProtocolViolation, "is cut off"),
    "HTML": (scripts.html, ProtocolViolation, "text/html"),
    "unknown version in initialize": (scripts.unknown_version, ProtocolViolation, "1999-01-01"),
    "unknown version in discover": (scripts.unknown_modern_version, ProtocolViolation, "-32022"),
    "redirect": (scripts.redirects("http://169.254.169.254/latest"), ProtocolViolation, "redirects to"),
    "redirect on the same host": (scripts.redirects("/elsewhere"), ProtocolViolation, 'redirects to "/elsewhere"'),
    "death in mid-list": (scripts.dies_in_mid_list, ServerUnreachable, "broke"),
    "wrong id": (scripts.wrong_id, ProtocolViolation, "never sent (id 4711)"),
    "tools that are no list": (plays(lambda _: {"tools": "none"}), ProtocolViolation, "tools"),
}


@pytest.mark.parametrize("name", HTTP)
def test_a_broken_http_server_ends_in_its_own_error_in_time(name: str) -> None:
    respond, kind, words = HTTP[name]

    with scripted_http(respond) as server:
        limits = AFTER_ALL if name == "wrong id" else IMPATIENT if kind is ServerTimeout else LIMITS
        error = assert_ends_in(kind, HttpTarget(server.url), limits)

    assert words in error.reason


def test_a_hundred_thousand_tools_on_one_page_are_refused() -> None:
    page = {"tools": [tool(f"tool_{number}") for number in range(100_000)]}
    roomy = replace(LIMITS, max_message_bytes=64 << 20)

    with scripted_http(plays(lambda _: page)) as server:
        assert_ends_in(ListingTooLarge, HttpTarget(server.url), LIMITS)
        assert_ends_in(ListingTooLarge, HttpTarget(server.url), roomy)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert_ends_in(ServerUnreachable, HttpTarget(f"http://127.0.0.1:{port}/mcp"), LIMITS)


def test_a_listener_that_never_answers_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert_ends_in(ServerTimeout, HttpTarget(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), IMPATIENT)


SSE: dict[str, tuple[Respond, Kind]] = {
    "401": (status(401), ServerAuthRequired),
    "500": (status(500), ServerFailed),
    "hang": (scripts.hangs, ServerTimeout),
    "HTML": (scripts.html, ProtocolViolation),
    "drip-fed events": (scripts.drips_events, ServerTimeout),
    "no endpoint": (lambda exchange: exchange.send_events(), ProtocolViolation),
    "huge event": (lambda exchange: exchange.send_events("a" * 3_000_000), ListingTooLarge),
    "redirect": (scripts.redirects("http://169.254.169.254/"), ProtocolViolation),
}


@pytest.mark.parametrize("name", SSE)
def test_a_broken_sse_server_ends_in_its_own_error_in_time(name: str) -> None:
    respond, kind = SSE[name]

    with scripted_http(respond) as server:
        assert_ends_in(kind, HttpTarget(server.url, "sse"), IMPATIENT if kind is ServerTimeout else LIMITS)


STDIO: dict[str, tuple[Kind, str]] = {
    "silent": (ServerTimeout, "no complete list of tools; stopped by Toolscale after "),
    "stubborn": (ServerTimeout, "no complete list of tools; stopped by Toolscale after "),
    "drips": (ServerTimeout, "no complete list of tools; stopped by Toolscale after "),
    "chatters": (ServerFlooded, "messages"),
    "babbles": (ProtocolViolation, "{this is not JSON"),
    "wrong_id": (ProtocolViolation, "never sent (id 4711)"),
    "unknown_version": (ProtocolViolation, "1999-01-01"),
    "circular": (ProtocolViolation, "same cursor twice"),
    "endless": (ListingTooLarge, "30 pages"),
    "crowded": (ListingTooLarge, "10000 tools"),
    "huge": (ListingTooLarge, "1048576 bytes"),
    "fails": (ServerFailed, 'password *** rejected" (-32603)'),
    "dies_at_start": (ServerUnreachable, 'exit code 3; its last words: "panic: out of cheese"'),
    "dies_in_mid_list": (ServerUnreachable, 'exit code 3; its last words: "panic: out of cheese"'),
}


@pytest.mark.parametrize("mode", STDIO)
def test_a_broken_child_ends_in_its_own_error_in_time(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, words = STDIO[mode]
    # a child that has sent no message may be an installer, which gets time after SIGTERM
    monkeypatch.setattr(stdio, "INSTALLER_GRACE_S", 1.0)

    limits = AFTER_ALL if mode in ("babbles", "wrong_id") else IMPATIENT_CHILD if kind is ServerTimeout else LIMITS
    error = assert_ends_in(kind, scripted_stdio(mode, PASSWORD="hunter2-hunter2"), limits)

    assert words in error.reason
    assert "exit code -" not in error.reason


def test_a_child_killed_by_another_process_is_not_called_stopped_by_toolscale() -> None:
    killed = StdioTarget("sh", ("-c", "kill -KILL $$"))

    error = assert_ends_in(ServerUnreachable, killed, LIMITS)

    assert error.reason.endswith("; ended by SIGKILL, which Toolscale did not send")


def test_a_missing_program_is_named_with_a_similar_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp-server-git").touch(0o755)
    (tmp_path / "mcp-server-gut").touch(0o644)  # not executable
    monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path / 'missing'}")

    error = assert_ends_in(ServerUnreachable, StdioTarget("mcp-server-gitt"), LIMITS)

    reason = "there is no program 'mcp-server-gitt' in its PATH; did you mean mcp-server-git?"
    assert error.reason == f"cannot be started: {reason}"


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (None, 0o755, "PROGRAM does not exist; install it, or correct the path"),
        ("#!/bin/sh\n", 0o644, "PROGRAM is not executable; run `chmod +x PROGRAM`, or name its interpreter"),
        (
            "#!/no/such/interpreter\n",
            0o755,
            "PROGRAM cannot be started; install the interpreter in its first line",
        ),
    ],
)
def test_a_file_that_cannot_be_started_is_named_with_the_repair(
    tmp_path: Path, text: str | None, mode: int, reason: str
) -> None:
    program = tmp_path / "program"
    if text is not None:
        program.write_text(text)
        program.chmod(mode)

    error = assert_ends_in(ServerUnreachable, StdioTarget(str(program)), LIMITS)

    assert error.reason == f"cannot be started: {reason}".replace("PROGRAM", str(program))


MEMORY_PROBE = """
import json, sys, threading, psutil
from shared.upstream.target import HttpTarget, StdioTarget
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.definitions import Limits

target = HttpTarget(sys.argv[2]) if sys.argv[1] == "http" else StdioTarget(sys.argv[2], tuple(sys.argv[3:]))
process, stop = psutil.Process(), threading.Event()
before = peak = process.memory_info().rss
def watch():
    global peak
    while not stop.wait(0.002):
        peak = max(peak, process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
kind = None
try:
    fetch_tools_blocking("big", target, Limits())
except Exception as error:
    kind = type(error).__name__
stop.set()
watcher.join()
print(json.dumps({"kind": kind, "grown_mib": (max(peak, process.memory_info().rss) - before) >> 20}))
"""


def memory_probe(*arguments: str) -> dict[str, object]:
    """Fetch in a process of its own, with the default limits, and return the error and how much memory it took."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE, *arguments], capture_output=True, text=True, timeout=100, check=True
    )
    measured: dict[str, object] = json.loads(run.stdout)
    return measured


@pytest.mark.parametrize("over", ["http", "events", "stdio"])
def test_a_description_of_256_megabytes_takes_little_memory(over: str) -> None:
    child = scripted_stdio("huge")
    huge = scripts.huge_event if over == "events" else scripts.huge_json

    with scripted_http(on_tools_list(huge)) as server:
        arguments = ("stdio", child.command, *child.args) if over == "stdio" else ("http", server.url)
        measured = memory_probe(*arguments)

    assert measured["kind"] == "ListingTooLarge"
    assert isinstance(measured["grown_mib"], int)
    assert measured["grown_mib"] < 80


DENSE: dict[str, tuple[Pages, str | None, int]] = {
    "too_dense": (messages.too_dense, "ListingTooLarge", 60),
    "too_dense_tools": (messages.too_dense_tools, None, 120),
    "as_dense_as_allowed": (messages.as_dense_as_allowed, None, 120),
}
"""Pages of empty containers, under the limit of bytes: what becomes of them, and the MiB that may take."""


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("over", ["http", "events", "stdio"])
def test_a_page_of_nested_containers_takes_little_memory(over: str, name: str) -> None:
    pages, kind, bound_mib = DENSE[name]
    child = scripted_stdio(name)

    def streams(exchange: Exchange) -> None:
        exchange.send_events(answer(exchange.request_json, pages))

    with scripted_http(on_tools_list(streams) if over == "events" else plays(pages)) as server:
        measured = memory_probe(*(("stdio", child.command, *child.args) if over == "stdio" else ("http", server.url)))

    assert measured["kind"] == kind
    assert isinstance(measured["grown_mib"], int)
    assert measured["grown_mib"] < bound_mib


def test_a_tool_of_too_many_values_costs_its_siblings_nothing() -> None:
    with scripted_http(plays(messages.too_dense_tools)) as server:
        listing = fetch_tools_blocking("s", HttpTarget(server.url), Limits())

    assert [definition.name for definition in listing.tools] == ["good"]
    assert {rejected.reason for rejected in listing.rejected} == {"its definition holds more than 20000 values"}


def test_of_a_crowd_of_unusable_tools_a_hundred_are_named_and_the_others_counted() -> None:
    with scripted_http(plays(messages.one_page(*(["not a tool"] * 345), tool("good")))) as server:
        listing = fetch_tools_blocking("s", HttpTarget(server.url), Limits())

    assert [definition.name for definition in listing.tools] == ["good"]
    assert len(listing.rejected) == 101
    assert listing.rejected[-1].reason == "245 more tools were left out"
