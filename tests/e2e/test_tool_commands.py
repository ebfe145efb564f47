"""`toolscale add`, `describe`, `call` and `remove` with real servers."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.errors import ServiceRejected, ToolNotFound
from tests.e2e.test_catalogue_commands import run
from tests.e2e.test_serve import serving
from tests.support.hostile.processes import callable_stdio, good_stdio
from tests.support.policies import rule
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.running_api import running_api
from tests.support.waiting import eventually
from tests.support.warm import start
from toolscale.app import app

pytestmark = pytest.mark.process

# The blank is printed separately: an answer before it is echoed before it too.
PROMPT_END = "[y/N]: "


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TOOLSCALE_PORT", str(free_port()))  # a port without a service
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN", "TOOLSCALE_URL", "TOOLSCALE_MCP_CONFIG"):
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
        eventually(lambda: states() == {"able": "listed", "good": "listed"}, what=running.output())

        described = run("describe", "good:tool_007").stdout
        called = run("call", "able:echo", "words=007").stdout
        refused = CliRunner().invoke(app, ["call", "able:refuses"])
        listed = run("ls").stdout
        with pytest.raises(ToolNotFound, match="There is no tool"):
            run("call", "able:ehco")
        run("remove", "able")
        eventually(lambda: states() == {"able": "stopped", "good": "listed"}, what=running.output())

    assert "good:tool_007: " in described
    assert "Looks up record 7." in described
    assert [line.split()[:2] for line in described.splitlines()[-1:]] == [["record_id", "string"]]
    assert called.startswith("007 from ")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", "no such record\n")
    assert "\n2 servers: 2 listed" in listed


def test_a_call_that_the_policy_asks_about_is_confirmed_in_a_terminal_or_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(rule("ask", tools=["echo"]))
    monkeypatch.setenv("TOOLSCALE_POLICY_FILE", str(rules))
    add("able", callable_stdio())
    with serving(tmp_path / "mcp.json") as (running, url):
        running.wait_for('"event": "server_indexed"')
        with pytest.raises(ServiceRejected, match="confirm it with --yes: Call the tool echo of the server able"):
            run("call", "able:echo", "words=one")
        confirmed = run("call", "able:echo", "words=two", "--yes").stdout
        declined = in_terminal("\n", "call", "able:echo", "words=three", "--url", url)
        accepted = in_terminal("y\n", "call", "able:echo", "words=four", "--url", url)
        received = running.output().count('"outcome": "ok"')

    assert confirmed.startswith("two from ")
    assert declined[0] == 1
    assert '{"words": "three"} [y/N]:' in declined[1]
    assert declined[1].strip().endswith("able: the user did not confirm the call of echo, so it was not sent")
    assert accepted[0] == 0
    assert "\nfour from " in accepted[1]
    assert received == 2


def in_terminal(typed: str, *arguments: str) -> tuple[int, str]:
    """Run a command in a terminal, answer its question, and return its exit code and the content of the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    command = [sys.executable, "-m", "toolscale", *arguments]
    process = start(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = ""
    with suppress(OSError):  # Linux ends a terminal so
        while part := os.read(ours, 65_536).decode():
            is_asked = PROMPT_END in shown
            shown += part
            if not is_asked and PROMPT_END in shown:
                os.write(ours, typed.encode())
    os.close(ours)
    return process.wait(60), shown.replace("\r\n", "\n")


@pytest.mark.slow
def test_a_watched_list_is_shown_again_until_an_interrupt(tmp_path: Path) -> None:
    with running_api(tmp_path) as url:
        composition = Composition("", tmp_path, {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_URL": url})
        with composition.run("ls", "-m", "toolscale", "ls", "--watch") as running:
            running.wait_for("No server was announced yet.", times=2)
            running.process.send_signal(signal.SIGINT)
            eventually(lambda: running.process.poll() is not None)

    assert running.process.returncode == 130
