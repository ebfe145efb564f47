"""`toolscale add`, `describe`, `call`, `status` and `remove` with real servers, served and without a service."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.errors import ToolNotFound
from tests.e2e.test_catalogue_commands import run
from tests.e2e.test_serve import serving
from tests.support.hostile.processes import callable_stdio, good_stdio
from tests.support.processes import Composition
from tests.support.redis_server import free_port
from tests.support.waiting import eventually
from toolscale.app import app


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TOOLSCALE_PORT", str(free_port()))  # a port without a service
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN", "TOOLSCALE_MCP_CONFIG"):
        monkeypatch.setenv(name, "")


def states() -> dict[str, str]:
    return {server["server_id"]: server["state"] for server in json.loads(run("ls", "--json").stdout)}


def add(name: str, target: Any) -> None:
    run("add", name, "--", target.command, *target.args)


def test_a_server_is_added_described_called_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add("able", callable_stdio())
    with serving(tmp_path / "mcp.json") as (running, url):
        monkeypatch.setenv("TOOLSCALE_PORT", url.split(":")[-1].removesuffix("/mcp"))
        add("good", good_stdio())
        eventually(lambda: states() == {"able": "listed", "good": "listed"}, 60, what=running.output())

        described = run("describe", "good:tool_007").stdout
        called = run("call", "able:echo", "words=007").stdout
        refused = CliRunner().invoke(app, ["call", "able:refuses"])
        status = json.loads(run("status", "--json").stdout)
        with pytest.raises(ToolNotFound, match="is no tool that you may use"):
            run("call", "able:ehco")
        run("remove", "able")
        eventually(lambda: states() == {"able": "stopped", "good": "listed"}, 60, what=running.output())
    without_service = run("describe", "tool_007").stdout

    assert described == without_service
    assert "good:tool_007: " in described
    assert "Looks up record 7." in described
    assert [line.split()[:2] for line in described.splitlines()[-1:]] == [["record_id", "string"]]
    assert called.startswith("007 from ")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", "no such record\n")
    assert (status["servers"], status["states"]) == (2, {"listed": 2})


@pytest.mark.slow
def test_a_tool_is_called_without_a_service_and_its_server_ends_after_the_call(tmp_path: Path) -> None:
    add("able", callable_stdio())
    with serving(tmp_path / "mcp.json") as (running, _):
        running.wait_for('"event": "server_indexed"')

    document = json.loads(run("call", "able:rich", "--json").stdout)
    pid = int(run("call", "able:echo", "words=a b").stdout.removeprefix("a b from "))

    assert document["structuredContent"] == {"answer": 42}
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow
def test_a_watched_list_is_shown_again_until_an_interrupt(tmp_path: Path) -> None:
    composition = Composition("", tmp_path, {"REDIS_URL": "", "QDRANT_URL": ""})
    with composition.run("ls", "-m", "toolscale", "ls", "--watch") as running:
        running.wait_for("No server was announced yet.", times=2)
        running.process.send_signal(signal.SIGINT)
        eventually(lambda: running.process.poll() is not None)

    assert running.process.returncode == 130
