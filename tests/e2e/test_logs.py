"""`toolscale logs` of real servers: a stdio server that fails, one that runs, and one behind a URL."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ServiceRejected
from tests.e2e.test_serve import serving
from tests.support.brisk import TIMES
from tests.support.hostile.processes import good_stdio
from toolscale.app import app

pytestmark = pytest.mark.process

SECRET = "s3cr3t-key-of-test"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = good_stdio()
    script = "echo first >&2; echo no login with $KEY >&2; exit 3"
    servers = {
        "noisy": {"command": "sh", "args": ["-c", script], "env": {"KEY": SECRET}},
        "good": {"command": target.command, "args": list(target.args)},
        "far": {"url": "http://127.0.0.1:1/mcp"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_MCP_CONFIG", "TOOLSCALE_URL", "TOOLSCALE_TOKEN"):
        monkeypatch.setenv(name, "")
    return path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception:
        raise result.exception
    return result


def test_the_lines_and_the_failure_of_a_server_are_shown(config: Path) -> None:
    run("costs", "--config", str(config), "--json", "--partial-ok")
    assert not (config.parent / "logs").exists()

    # no server is retried while the logs are read
    with serving(config, constants={f"{TIMES}.REDELIVER_AFTER_S": 600.0}) as (running, _):
        running.wait_for('"event": "server_indexed"')
        running.wait_for('"event": "server_listing_failed"', times=2)
        shown = run("logs", "noisy")
        document = json.loads(run("logs", "noisy", "--lines", "2", "--json").stdout)
        good, far = run("logs", "good"), run("logs", "far")
        with pytest.raises(ServiceRejected, match="did you mean noisy"):
            run("logs", "nosy")

    started, *lines, ended, failure = shown.stdout.splitlines()[:4] + shown.stdout.splitlines()[-1:]
    assert started.startswith("--- started at ")
    assert lines == ["first", "no login with ***"]
    assert ended.startswith("--- ended with exit code 3 at ")
    assert failure.startswith("failing (")
    assert "no login with ***" in failure
    assert SECRET not in shown.output + json.dumps(document)
    assert document["lines"][0] == "no login with ***"
    assert (len(document["lines"]), document["failures"] >= 1) == (2, True)
    assert stat.S_IMODE((config.parent / "logs" / "noisy.log").stat().st_mode) == 0o600
    assert (good.stdout, good.stderr) == ("", "good wrote nothing to stderr.\n")
    assert "far is reached by a URL" in far.stderr
    assert "no connection" in far.stdout
