"""`toolscale import --apply --connect` as a person starts it: clients lose their servers and start Toolscale."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from tests.e2e.test_serve import ask
from tests.support.hostile.processes import good_stdio, scripted_stdio
from tests.support.warm import run

pytestmark = pytest.mark.process

UNSET = ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_MCP_CONFIG", "XDG_CONFIG_HOME", "CODEX_HOME")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home directory of a user of two clients, with a server each, and one that cannot run."""
    good, one = good_stdio(), scripted_stdio("good")
    cursor = tmp_path / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    entries = {
        "good": {"command": good.command, "args": list(good.args)},
        "broken": {"command": "no-such-program"},
        "off": {"command": "x", "disabled": True},
    }
    cursor.write_text(json.dumps({"mcpServers": entries}, indent=2))
    codex = tmp_path / ".codex" / "config.toml"
    codex.parent.mkdir()
    entry = f"command = {json.dumps(one.command)}\nargs = {json.dumps(one.args)}\n"
    codex.write_text(f'model = "x"  # mine\n\n[mcp_servers.one]\n{entry}')
    return tmp_path


def toolscale(home: Path, *arguments: str, ends_with: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **dict.fromkeys(UNSET, ""), "HOME": str(home)}
    environment["TOOLSCALE_DATA_DIR"] = str(home / "data")
    done = run([sys.executable, "-m", "toolscale", *arguments], env=environment, cwd=home)
    assert done.returncode == ends_with, done.stderr
    return done


def figures(line: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)]


@pytest.mark.cold
def test_the_servers_of_two_clients_move_to_toolscale_and_return(home: Path) -> None:
    cursor, codex = home / ".cursor" / "mcp.json", home / ".codex" / "config.toml"
    before: dict[str, Any] = json.loads(cursor.read_text())

    done = toolscale(home, "import", "--apply", "--connect", "--yes", ends_with=1)

    counted: dict[str, Any] = json.loads(toolscale(home, "costs", "--json", "--partial-ok").stdout)
    costs = {server["server_id"]: server for server in counted["servers"]}
    own = counted["toolscale"]["tokens"]["generic"]
    table = {line.split("  ")[0].strip(): figures(line) for line in done.stdout.splitlines()[-3:]}
    assert table["Cursor"] == [costs["good"]["tools"], costs["good"]["tokens"]["generic"], own]
    assert table["Codex"] == [costs["one"]["tools"], costs["one"]["tokens"]["generic"], own]
    assert table["all servers"] == [counted["total"]["tools"], counted["total"]["tokens"]["generic"], own]
    assert "broken stays in Cursor" in done.stderr
    assert "Cursor keeps off." in done.stderr
    assert json.loads((home / "data" / "mcp.json").read_text())["mcpServers"].keys() == {"good", "broken", "one"}

    servers = json.loads(cursor.read_text())["mcpServers"]
    assert list(servers) == ["toolscale", "broken", "off"]
    assert tomllib.loads(codex.read_text())["mcp_servers"].keys() == {"toolscale"}
    assert codex.read_text().startswith('model = "x"  # mine\n')

    entry = servers["toolscale"]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment["TOOLSCALE_NO_MATCH_THRESHOLD"] = "-1"  # the tools have meaningless texts
    found = ask(StdioServerParameters(command=entry["command"], args=entry["args"], env=environment))
    assert found["tools"][0]["name"].partition(":")[0] in ("good", "one")

    again = toolscale(home, "import", "--apply", "--connect", "--yes", ends_with=1)
    assert "nothing to change" in again.stdout
    assert "all servers" in again.stdout
    for client in ("cursor", "codex"):
        toolscale(home, "connect", client, "--remove", "--yes")
    assert json.loads(cursor.read_text()) == before
    assert tomllib.loads(codex.read_text())["mcp_servers"].keys() == {"one"}
