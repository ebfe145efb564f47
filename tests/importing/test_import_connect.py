"""`toolscale import --apply --connect` moves the servers that it could list, and leaves the others in their clients."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.client_homes import Write
from tests.support.hostile.listed_server import ListedServer
from tests.support.hostile.scripted_http import scripted_http
from tests.support.oauth_server import protected_server
from toolscale.app import app

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/toolscale"])


@pytest.fixture
def later() -> ListedServer:
    """A server that fails at first."""
    return ListedServer(fails=True)


@pytest.fixture
def cursor(write: Write, later: ListedServer) -> Generator[Path]:
    """Yield the file of Cursor with a server that can be listed, and others that cannot."""
    with (
        scripted_http(ListedServer().respond) as good,
        scripted_http(later.respond) as failing,
        protected_server() as protected,
    ):
        servers: dict[str, Any] = {
            "good": {"url": good.url},
            "later": {"url": failing.url},
            "protected": {"url": protected.url},
            "unset": {"url": good.url, "headers": {"X-Key": "${NOT_SET_HERE}"}},
            "off": {"command": "x", "disabled": True},
        }
        yield write(".cursor/mcp.json", {"mcpServers": servers})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", "--apply", "--connect", "--yes", *arguments])


def servers_in(path: Path) -> list[str]:
    return list(json.loads(path.read_text())["mcpServers"])


def test_servers_that_cannot_be_listed_stay_in_their_client_until_they_can(
    home: Path, cursor: Path, later: ListedServer
) -> None:
    first = run()
    after_first = servers_in(cursor)
    later.fails = False
    second = run()

    assert first.exit_code == second.exit_code == 1
    assert after_first == ["toolscale", "later", "protected", "unset", "off"]
    assert servers_in(cursor) == ["toolscale", "protected", "unset", "off"]
    assert servers_in(home / "data" / "mcp.json") == ["good", "later", "protected", "unset"]


def test_the_summary_says_why_a_server_stayed_and_what_to_do(cursor: Path) -> None:
    shown = run().stderr

    reasons = {line.partition(" stays ")[0]: line for line in shown.splitlines() if " stays " in line}
    assert reasons.keys() == {"later", "protected", "unset"}
    assert "HTTP 503" in reasons["later"]
    assert "toolscale login protected" in reasons["protected"]
    assert "NOT_SET_HERE" in reasons["unset"]


def test_the_reasons_are_part_of_the_json(cursor: Path) -> None:
    result = run("--json")

    (client,) = json.loads(result.stdout)["clients"]
    assert result.exit_code == 1
    assert client["moved"] == ["good"]
    assert client["unlisted"].keys() == {"later", "protected", "unset"}


def test_a_server_that_the_operator_disabled_stays_in_its_client(write: Write) -> None:
    with scripted_http(ListedServer().respond) as good:
        cursor = write(".cursor/mcp.json", {"mcpServers": {"good": {"url": good.url}}})
        write("data/mcp.json", {"mcpServers": {"good": {"type": "http", "url": good.url, "disabled": True}}})
        result = run()

    assert result.exit_code == 1
    assert servers_in(cursor) == ["toolscale", "good"]


def test_the_exit_code_is_zero_where_every_server_moved(write: Write) -> None:
    with scripted_http(ListedServer().respond) as good:
        cursor = write(".cursor/mcp.json", {"mcpServers": {"good": {"url": good.url}, "off": {"disabled": True}}})

        assert run().exit_code == 0
    assert servers_in(cursor) == ["toolscale", "off"]
