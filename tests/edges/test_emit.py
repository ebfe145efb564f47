"""An event that a person gives on the command line is answered there: recorded, or an error and no dead letter."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.running_api import running_api
from toolscale.app import app

runner = CliRunner()
URL = "http://127.0.0.1:1/mcp"


@pytest.fixture(autouse=True)
def _service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Serve the stores in the data directory, which are complete."""
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("toolscale.app._configure_logging", lambda: None)
    with closing(open_intents(load_settings())) as intents:
        intents.mark_complete()
    with running_api(tmp_path) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        yield


def letters() -> list[Any]:
    return json.loads(runner.invoke(app, ["dead-letters", "--json"]).stdout)


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
