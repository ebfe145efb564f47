"""`toolscale import`, then `toolscale serve`: the servers of a client, found through Toolscale."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.test_serve import ask
from tests.support.hostile.processes import good_stdio
from tests.support.processes import Composition
from tests.support.warm import run

pytestmark = pytest.mark.process


def test_the_servers_of_a_client_are_imported_and_served(tmp_path: Path) -> None:
    target = good_stdio()
    client = tmp_path / ".config" / "Claude" / "claude_desktop_config.json"
    client.parent.mkdir(parents=True)
    client.write_text(json.dumps({"mcpServers": {"good": {"command": target.command, "args": list(target.args)}}}))
    environment = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": "",
        "REDIS_URL": "",
        "QDRANT_URL": "",
        "TOOLSCALE_MCP_CONFIG": "",
    }
    composition = Composition("", tmp_path, environment)

    done = run(
        [sys.executable, "-m", "toolscale", "import", "--apply"],
        env=composition.environment,
        cwd=tmp_path,
    )
    with composition.run("serve", "-m", "toolscale", "serve", "--port", "0") as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url
        answer = ask(url.group())

    assert done.returncode == 0, done.stderr
    assert "good: added (Claude Desktop" in done.stdout
    assert answer["tools"][0]["name"].startswith("good:")
