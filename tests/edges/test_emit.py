"""An event that a person gives on the command line is answered there: recorded, or an error and no dead letter."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from query.caller import ANYONE
from query.catalogue import Catalogue
from query.records import Ledger
from query.servers import servers
from shared.catalog import Status
from shared.errors import ServerUnknown
from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.builders import down, up
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.filled import record_of
from tests.support.running_api import commands_served
from toolscale.app import app
from workers.indexing.records import stopped_record, unlisted_record

runner = CliRunner()
URL = "http://127.0.0.1:1/mcp"


@pytest.fixture(autouse=True)
def _service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Serve the stores in the data directory, which are complete."""
    with commands_served(tmp_path, monkeypatch, is_complete=True):
        yield


def letters() -> list[Any]:
    found: list[Any] = json.loads(runner.invoke(app, ["dead-letters", "--json"]).stdout)
    return found


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["up", "x"], "--url"),
        (["up", "x", "--url", "ftp://x"], "--url"),
        (["up", "x", "--url", "http://user:word@x/mcp"], "--url"),
        (["up", "x", "--url", URL, "--transport", "stdio"], "--transport"),
        (["up", "x", "--url", URL, "--group", "two words"], "--group"),
        (["up", "x", "--url", URL, "--credential-ref", "a/b"], "--credential-ref"),
        (["up", "x", "--url", URL, "--label", "definition_changes=maybe"], "--label"),
        (["up", "two words", "--url", URL], "toolscale"),
        (["down", "nope"], "toolscale ls"),
        (["changed", "nope"], "toolscale ls"),
        (["down", ""], "toolscale"),
        (["down", "a" * 201], "toolscale ls"),
    ],
)
def test_a_refused_command_names_its_cure_and_leaves_no_dead_letter(arguments: list[str], cure: str) -> None:
    result = runner.invoke(app, ["emit", *arguments])

    assert result.exit_code
    assert cure in result.stderr
    assert letters() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(st.sampled_from(["up", "down", "changed"]), st.text(min_size=1, max_size=8).filter(lambda text: text[0] != "-"))
def test_no_name_on_the_command_line_becomes_a_dead_letter(kind: str, name: str) -> None:
    runner.invoke(app, ["emit", kind, name])

    assert letters() == []


def test_a_command_cannot_take_the_place_of_an_owner() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "toolscale/mcp.json", "type": "dev.toolscale.server.up"}
    document = event | {"data": {"server_id": "x", "url": URL}}

    refused = runner.invoke(app, ["emit", "event", "-"], input=json.dumps(document))

    assert "reserved" in str(refused.exception)


def test_a_wrong_event_of_a_producer_is_still_a_dead_letter() -> None:
    runner.invoke(app, ["emit", "event", "-"], input='{"id": 1}')

    assert len(letters()) == 1


def test_remove_knows_a_server_of_an_event_and_names_what_stops_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    runner.invoke(app, ["emit", "up", "files", "--url", URL])
    running = runner.invoke(app, ["remove", "files"])
    runner.invoke(app, ["emit", "down", "files"])

    stopped = runner.invoke(app, ["remove", "files", "--json"])
    unknown = runner.invoke(app, ["remove", "fils"])

    assert "emit down" in str(running.exception)
    assert json.loads(stopped.stdout) == {"server_id": "files", "result": "stopped"}
    assert isinstance(unknown.exception, ServerUnknown)


@pytest.mark.parametrize(
    ("days", "status", "is_shown"),
    [
        (1, "stopped", True),
        (6.9, "stopped", True),
        (7.1, "stopped", False),
        (100, "stopped", False),
        (100, "running", True),
        (100, "quarantined", True),
    ],
)
def test_a_stopped_server_leaves_the_list_after_a_week(days: float, status: Status, is_shown: bool) -> None:
    at_s = time.time() - days * 86_400
    record = record_of("s", status=status, stopped_at=at_s if status == "stopped" else None, last_listed_at=at_s)
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("s"), due_in_s=0)
        if status == "stopped":
            intents.record(down("s"), due_in_s=0)
        intents.commit("s", 9)
        index = FakeIndex()
        index.put_server(record)
        catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), intents=intents)

        shown = servers(ANYONE, ANYONE.scope, catalogue)["servers"]

    assert [row["server_id"] for row in shown] == (["s"] if is_shown else [])


def test_a_stop_has_its_time_and_a_return_forgets_it() -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("s"), due_in_s=0)
        intent = intents.record(down("s"), due_in_s=0).intent
        before = unlisted_record(intent, 1)

        stopped = stopped_record(before, intent, 2)
        again = stopped_record(stopped, intent, 3)

    assert time.time() - 60 < (stopped.stopped_at or 0) == again.stopped_at
    assert unlisted_record(intent, 4).stopped_at is None
