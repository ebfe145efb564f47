"""Waiting for reconciliations: each result is returned, and a useless wait ends."""

from __future__ import annotations

import io
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from shared.intents.intent import SUSPECTED_AFTER, Intent
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from tests.support.builders import RETRY_POLICY, changed, down, up, up_stdio
from tests.support.running_api import running_api
from toolscale.app import app
from toolscale.client.wait import Read, ReconcileResult, wait_for

NEVER = threading.Event()


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RETRY_POLICY)) as store:
        yield store


def asked(intents: Intents, *servers: str) -> list[Intent]:
    return [intents.record(up(server), due_in_s=0).intent for server in servers]


def results(intents: Intents, asked: list[Intent], patience_s: float = 0.3) -> dict[str, tuple[str, str | None]]:
    return {
        each.emitted.server_id: (each.result, each.error)
        for each in wait_for(intents.existing, asked, patience_s, NEVER)
    }


def park(intents: Intents, *servers: str) -> None:
    """Let the reconciliations of these servers kill their workers until they are parked."""
    asked(intents, *servers)
    for server in servers:
        for _ in range(SUSPECTED_AFTER):
            intents.begin(server)
        intents.park(server, 1, f"{server}: kills its workers")


def test_the_result_of_each_reconciliation_is_returned(intents: Intents) -> None:
    events = asked(intents, "good", "bad", "gone", "hopeless")
    events += [intents.record(down("gone"), due_in_s=0).intent]
    for server in ("good", "bad", "gone", "hopeless"):
        intents.begin(server)
    intents.commit("good", 1)
    intents.commit("gone", 2)
    intents.fail("bad", 1, "bad: no answer within 30 s")
    intents.stop_retrying("hopeless", 1, "hopeless: 401")

    assert results(intents, events) == {
        "good": ("listed", None),
        "bad": ("failed", "bad: no answer within 30 s"),
        "gone": ("stopped", None),
        "hopeless": ("failed", "hopeless: 401"),
    }


def test_the_failure_of_an_earlier_reconciliation_is_not_the_requested_result(intents: Intents) -> None:
    asked(intents, "s")
    intents.begin("s")
    event = intents.record(changed("s"), due_in_s=0).intent
    intents.fail("s", 1, "s: no answer")

    (before,) = results(intents, [event]).values()
    intents.begin("s")
    intents.commit("s", 2)

    assert before[0] == "waiting"
    assert results(intents, [event]) == {"s": ("listed", None)}


def test_after_an_earlier_failure_the_requested_reconciliation_is_awaited_while_it_runs(
    intents: Intents,
) -> None:
    asked(intents, "s")
    intents.begin("s")
    event = intents.record(changed("s"), due_in_s=0).intent
    intents.fail("s", 1, "s: no answer")
    intents.begin("s")

    (during,) = results(intents, [event]).values()
    intents.fail("s", 2, "s: 401")

    assert during[0] == "waiting"
    assert results(intents, [event]) == {"s": ("failed", "s: 401")}


def test_a_reconciliation_of_a_parked_server_is_awaited_while_it_runs(intents: Intents) -> None:
    park(intents, "mended", "broken")
    events = [intents.record(changed(each), due_in_s=0).intent for each in ("mended", "broken")]
    for event in events:
        intents.begin(event.server_id)

    during = results(intents, events)
    intents.commit("mended", 2)
    intents.fail("broken", 2, "broken: 401")

    assert {result for result, _ in during.values()} == {"waiting"}
    assert results(intents, events) == {"mended": ("listed", None), "broken": ("failed", "broken: 401")}


def test_a_parked_server_without_a_reconciliation_for_the_event_has_failed(intents: Intents) -> None:
    park(intents, "s")

    assert results(intents, asked(intents, "s"), 3_600) == {"s": ("failed", "s: kills its workers")}


def test_a_running_retry_of_a_parked_server_is_awaited(intents: Intents) -> None:
    park(intents, "s")
    (event,) = asked(intents, "s")
    intents.record(changed("s"), due_in_s=0)
    intents.begin("s")

    assert results(intents, [event])["s"][0] == "waiting"


def test_a_server_that_is_parked_during_the_wait_has_failed(intents: Intents) -> None:
    asked(intents, "s")
    for _ in range(SUSPECTED_AFTER):
        intents.begin("s")
    event = intents.record(changed("s"), due_in_s=0).intent
    intents.park("s", 1, "s: kills its workers")

    assert results(intents, [event], 3_600) == {"s": ("failed", "s: kills its workers")}


def test_without_a_worker_the_result_is_waiting_with_advice(intents: Intents) -> None:
    (end,) = wait_for(intents.existing, asked(intents, "s"), 0.05, NEVER)

    assert not end.is_good
    assert (
        end.sentence
        == "s: not reconciled: no reconciliation ended within 0 s; is a worker, or `toolscale serve`, running?"
    )


def test_waiting_ends_when_it_is_stopped(intents: Intents) -> None:
    stopped = threading.Event()
    stopped.set()

    assert [each.result for each in wait_for(intents.existing, asked(intents, "s"), 3_600, stopped)] == ["waiting"]


def test_a_sentence_names_the_server_once(intents: Intents) -> None:
    (of,) = asked(intents, "git")

    assert ReconcileResult(emitted=of, result="failed", error="git: 401").sentence == "git: failed: 401"
    assert ReconcileResult(emitted=of, result="listed").sentence == "git: listed"


def test_the_wait_is_longer_while_a_stdio_server_is_being_installed(intents: Intents) -> None:
    event = intents.record(up_stdio("s"), due_in_s=0).intent
    intents.begin("s")

    waited = wait_for(intents.existing, [event], 0.05, NEVER, install_s=3_600)
    threading.Timer(0.5, intents.commit, ("s", 1)).start()

    assert [end.result for end in waited] == ["listed"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_wait_shows_the_ended_of_all_servers_in_a_terminal_only(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both_end(_: Read, emitted: Sequence[Intent], *__: object, **___: object) -> Iterator[ReconcileResult]:
        yield from (ReconcileResult(emitted=server, result="listed") for server in emitted)

    written = io.StringIO()
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "")
    monkeypatch.setattr("toolscale.client.wait.wait_for", both_end)
    monkeypatch.setattr("toolscale.app._configure_logging", lambda: None)
    monkeypatch.setattr("toolscale.commands.events.err", Console(file=written, force_terminal=is_terminal, width=80))
    with running_api(tmp_path) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        for server in ("one", "two"):
            CliRunner().invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])

        result = CliRunner().invoke(app, ["resync", "--wait"])

    assert result.stdout == "one: listed\ntwo: listed\n"
    assert ("2/2 servers" in Text.from_ansi(written.getvalue()).plain) is is_terminal
    assert bool(written.getvalue()) is is_terminal
