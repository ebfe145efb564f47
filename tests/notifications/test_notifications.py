"""Servers in processes of their own that tell when their tools change, cannot tell, or tell too much."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.upstream.target import HttpTarget
from tests.support.builders import down
from tests.support.hostile.messages import initialized, one_page, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import drips_events, status
from tests.support.metrics import shown
from tests.support.notifying import (
    HASTY,
    PROGRAM,
    ListenedServers,
    NotifyingServer,
    listening_to,
    notifying_server,
    notifying_stdio,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


@pytest.fixture
def heard(tmp_path: Path) -> Generator[ListenedServers]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents:
        yield ListenedServers(intents, {})


@pytest.fixture
def logs() -> Generator[list[Any]]:
    with capture_logs() as lines:
        yield lines


@contextmanager
def announced(heard: ListenedServers, kind: str, tools: Path) -> Generator[NotifyingServer]:
    """Run a telling server that was announced and listed long ago, under the name of its kind."""
    with notifying_server(kind, tools, "one") as server:
        heard.targets[kind] = server.target
        heard.announce(kind)
        yield server


def said(logs: list[Any], event: str, server: str) -> int:
    return sum(line["event"] == event and line.get("server") == server for line in logs)


@pytest.mark.parametrize("kind", ["http", "legacy", "sse"])
def test_a_changed_tool_causes_one_event(heard: ListenedServers, logs: list[Any], tmp_path: Path, kind: str) -> None:
    with announced(heard, kind, tmp_path / "tools") as server, listening_to(heard, listen="http"):
        eventually(lambda: heard.events == [kind], what="the reconciliation after the first connection")
        eventually(lambda: server.is_subscribed_to)

        server.offer("one", "two")

        eventually(lambda: heard.events == [kind, kind])
    assert said(logs, "subscription_opened", kind) == 1


def test_a_process_without_the_right_to_listen_closes_its_connections_and_opens_them_with_it(
    heard: ListenedServers, logs: list[Any], tmp_path: Path
) -> None:
    may_listen = True

    def connected() -> float:
        return shown()['toolscale_subscription_servers{state="connected"}']

    with announced(heard, "http", tmp_path / "tools"), listening_to(heard, may_listen=lambda: may_listen):
        eventually(lambda: connected() == 1)

        may_listen = False
        eventually(lambda: connected() == 0)
        beats(heard)
        assert said(logs, "subscription_opened", "http") == 1

        may_listen = True
        eventually(lambda: heard.events == ["http", "http"])


def test_a_read_that_fails_in_an_unknown_way_closes_no_connection_and_ends_no_listening(
    heard: ListenedServers, logs: list[Any], tmp_path: Path
) -> None:
    failures: list[Exception] = []

    def may_listen() -> bool:
        if failures:
            raise failures.pop()
        return True

    with announced(heard, "http", tmp_path / "tools") as server, listening_to(heard, may_listen=may_listen):
        eventually(lambda: heard.events == ["http"])

        failures.append(ArithmeticError("no known error"))
        eventually(lambda: not failures)
        beats(heard)
        server.offer("one", "two")

        eventually(lambda: heard.events == ["http", "http"])
    assert [line["kind"] for line in logs if line["event"] == "intents_unreadable"] == ["ArithmeticError"]
    assert said(logs, "subscription_opened", "http") == 1


@pytest.mark.slow
def test_servers_with_a_connection_are_counted_beside_those_that_should_have_one(
    heard: ListenedServers, logs: list[Any], tmp_path: Path
) -> None:
    def servers(state: str) -> float:
        return shown()[f'toolscale_subscription_servers{{state="{state}"}}']

    with (
        notifying_server("stateless", tmp_path / "mute", "one") as mute,
        announced(heard, "http", tmp_path / "tools") as server,
        listening_to(heard),
    ):
        heard.targets["mute"] = mute.target
        heard.announce("mute")
        eventually(lambda: servers("connected") == 1)
        eventually(lambda: said(logs, "notifications_unsupported", "mute") == 1)
        assert servers("wanted") == 2

        server.kill()
        eventually(lambda: servers("connected") == 0)
        server.start()
        eventually(lambda: servers("connected") == 1)
    assert servers("connected") == 0


def test_a_stdio_server_runs_and_is_subscribed_to_until_it_is_taken_down(
    heard: ListenedServers, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.write_text("one", encoding="utf-8")
    heard.targets["s"] = notifying_stdio(tools)
    heard.announce("s")
    with listening_to(heard, listen="all"):
        eventually(lambda: heard.events == ["s"] and len(children()) == 1)

        tools.write_text("one two", encoding="utf-8")
        eventually(lambda: heard.events == ["s", "s"])

        heard.intents.record(down("s"), due_in_s=5.0)
        eventually(lambda: not children())


def test_a_stdio_server_is_not_started_for_listening_unless_asked(heard: ListenedServers, tmp_path: Path) -> None:
    (tmp_path / "tools").write_text("one", encoding="utf-8")
    heard.targets["s"] = notifying_stdio(tmp_path / "tools")
    heard.announce("s")
    with announced(heard, "http", tmp_path / "others"), listening_to(heard, listen="http"):
        eventually(lambda: heard.events == ["http"])

        assert children() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "legacy"])
def test_a_server_killed_during_a_subscription_is_reconciled_and_subscribed_to_again(
    heard: ListenedServers, logs: list[Any], tmp_path: Path, kind: str
) -> None:
    with announced(heard, kind, tmp_path / "tools") as server, listening_to(heard):
        eventually(lambda: heard.events == [kind])

        server.kill()
        eventually(lambda: said(logs, "subscription_closed", kind))
        server.offer("one", "missed")
        server.start()

        eventually(lambda: heard.events == [kind, kind])
        eventually(lambda: server.is_subscribed_to)
        server.offer("one", "missed", "two")
        eventually(lambda: heard.events == [kind, kind, kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mute", "stateless"])
def test_a_server_without_notifications_is_remembered_and_retried_seldom(
    heard: ListenedServers, logs: list[Any], tmp_path: Path, kind: str
) -> None:
    with announced(heard, kind, tmp_path / "tools"), announced(heard, "http", tmp_path / "others") as other:
        with listening_to(heard):
            eventually(lambda: said(logs, "notifications_unsupported", kind) and "http" in heard.events)
            change(heard, other, times=3)
        assert said(logs, "notifications_unsupported", kind) == 1
        assert kind not in heard.events

        with listening_to(heard, reconnect=replace(HASTY, unsupported_s=0.05)):
            eventually(lambda: said(logs, "notifications_unsupported", kind) >= 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["storm", "legacy-storm"])
def test_a_server_with_endless_notifications_costs_few_reconciliations_and_little_memory(
    heard: ListenedServers, tmp_path: Path, kind: str
) -> None:
    us, pace = psutil.Process(), replace(HASTY, least_between_s=0.5)
    with (
        announced(heard, kind, tmp_path / "tools"),
        announced(heard, "http", tmp_path / "others") as other,
        listening_to(heard, reconnect=pace),
    ):
        eventually(lambda: heard.events.count(kind) >= 2 and "http" in heard.events)
        memory_before, began = us.memory_info().rss, time.monotonic()
        reconciles_before = heard.events.count(kind)

        change(heard, other, times=3)
        eventually(lambda: time.monotonic() - began > 4)

        reconciles = heard.events.count(kind) - reconciles_before
        took_s = time.monotonic() - began  # read last: more time allows more reconciliations
        assert reconciles <= took_s / 0.5 + 1
        assert us.memory_info().rss - memory_before < 32 << 20


@dataclass
class StopsAtStream:
    """Behaves well until the stream of its own messages is asked for; counts its sessions."""

    act: Callable[[Exchange], None]
    sessions: int = 0

    def __call__(self, exchange: Exchange) -> None:
        if exchange.command == "GET":
            self.act(exchange)
        elif exchange.method == "initialize":
            self.sessions += 1
            exchange.send(200, json.dumps(initialized(exchange.request_json)).encode(), mcp_session_id="s1")
        else:
            exchange.play(one_page(tool("one")))


def sends_a_huge_event(exchange: Exchange) -> None:
    exchange.begin(200, "text/event-stream")
    exchange.wfile.write(b"data: ")
    for _ in range(64):
        exchange.wfile.write(b"a" * (1 << 20))


def ends_at_once(exchange: Exchange) -> None:
    exchange.begin(200, "text/event-stream", connection="close")
    exchange.wfile.write(b"retry: 0\n\n")
    exchange.close_connection = True


def test_a_session_is_ended_on_its_server_when_listening_stops(heard: ListenedServers, logs: list[Any]) -> None:
    def waits(exchange: Exchange) -> None:
        exchange.begin(200, "text/event-stream")
        exchange.wfile.flush()
        exchange.hang()

    with scripted_http(StopsAtStream(waits)) as server:
        heard.targets["s"] = HttpTarget(server.url)
        heard.announce("s")
        with listening_to(heard):
            eventually(lambda: said(logs, "subscription_opened", "s"))

        assert server.methods.count("DELETE") == 1


@pytest.mark.slow
@pytest.mark.parametrize("act", [Exchange.hang, sends_a_huge_event, drips_events, ends_at_once, status(500)])
def test_a_hostile_stream_does_not_cost_the_others(
    heard: ListenedServers, tmp_path: Path, act: Callable[[Exchange], None]
) -> None:
    script = StopsAtStream(act)
    with scripted_http(script) as hostile, announced(heard, "http", tmp_path / "tools") as good:
        heard.targets["hostile"] = HttpTarget(hostile.url)
        heard.announce("hostile")
        with listening_to(heard, reconnect=replace(HASTY, connect_s=2.0, first_retry_s=0.5, longest_retry_s=60.0)):
            eventually(lambda: "http" in heard.events and "GET" in hostile.methods)
            change(heard, good, times=2)

        assert hostile.methods.count("GET") <= 2 * script.sessions
        assert heard.events.count("hostile") <= script.sessions


@dataclass
class Flood:
    """Sends a line again and again, as fast as it is taken."""

    line: bytes
    written_at: float = math.inf

    def __call__(self, exchange: Exchange) -> None:
        exchange.begin(200, "text/event-stream")
        while not exchange.server.stopping.is_set():
            exchange.wfile.write(self.line * 100)
            self.written_at = time.monotonic()


@pytest.mark.parametrize("line", [b":\n\n", b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'])
def test_a_flood_is_held_up_at_its_source(heard: ListenedServers, line: bytes) -> None:
    flood = Flood(line)
    with scripted_http(StopsAtStream(flood)) as hostile:
        heard.targets["hostile"] = HttpTarget(hostile.url)
        heard.announce("hostile")
        with listening_to(heard):
            eventually(lambda: time.monotonic() - flood.written_at > 2)

    assert hostile.methods.count("GET") == 1


@pytest.mark.parametrize("code", [404, 405])
def test_a_refused_stream_is_a_server_that_cannot_tell(heard: ListenedServers, logs: list[Any], code: int) -> None:
    with scripted_http(StopsAtStream(status(code))) as server:
        heard.targets["s"] = HttpTarget(server.url)
        heard.announce("s")
        with listening_to(heard):
            eventually(lambda: said(logs, "notifications_unsupported", "s"))

    assert server.methods.count("GET") <= 2
    assert heard.events == []


def test_a_server_that_kills_its_workers_cannot_start_over_by_telling(heard: ListenedServers, tmp_path: Path) -> None:
    with (
        announced(heard, "storm", tmp_path / "tools"),
        announced(heard, "http", tmp_path / "others") as other,
        listening_to(heard),
    ):
        eventually(lambda: {"storm", "http"} <= set(heard.events))
        heard.commits = False
        heard.intents.record(down("storm"), due_in_s=60.0)
        heard.announce("storm", listed=False)
        for _ in range(5):
            heard.intents.begin("storm")
        beats(heard)  # a notification that was on its way before the first `begin` has been recorded
        suspect = heard.intents.intent("storm")

        change(heard, other, times=3)

    assert suspect is not None
    assert suspect.is_suspect
    assert heard.intents.intent("storm") == suspect


@pytest.mark.slow
def test_servers_beyond_the_limit_are_left_to_the_resync_and_the_limit_is_logged_once(
    heard: ListenedServers, logs: list[Any], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        for kind in ("http", "sse"):
            stack.enter_context(announced(heard, kind, tmp_path / kind))
        stack.enter_context(listening_to(heard, most=1))
        eventually(lambda: heard.events)
        beats(heard)

    assert len(set(heard.events)) == 1
    assert [line["servers"] for line in logs if line["event"] == "subscription_limit_reached"] == [2]


def test_a_server_that_moves_is_listened_to_where_it_is_now(
    heard: ListenedServers, logs: list[Any], tmp_path: Path
) -> None:
    with (
        announced(heard, "http", tmp_path / "a"),
        notifying_server("http", tmp_path / "b", "one") as moved,
        listening_to(heard),
    ):
        eventually(lambda: heard.events == ["http"])

        heard.targets["http"] = moved.target
        eventually(lambda: heard.events == ["http", "http"] and said(logs, "subscription_opened", "http") == 2)
        moved.offer("two")

        eventually(lambda: heard.events == ["http", "http", "http"])


def change(heard: ListenedServers, server: NotifyingServer, times: int) -> None:
    """Change a server's tools so often, and wait each time until that was heard."""
    for number in range(times):
        wanted = heard.events.count(server.kind) + 1
        server.offer(f"tool_{wanted}_{number}")
        eventually(partial(has_events, heard, server.kind, wanted))


def has_events(heard: ListenedServers, kind: str, count: int) -> bool:
    return heard.events.count(kind) >= count


def children() -> list[psutil.Process]:
    """Return the telling servers that run as children over stdio."""
    own = psutil.Process().children(recursive=True)
    return [child for child in own if {str(PROGRAM), "stdio"} <= set(command_of(child))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def beats(heard: ListenedServers) -> None:
    """Wait until the intents were read twice more, so once completely."""
    before = heard.polls
    eventually(lambda: heard.polls >= before + 2)
