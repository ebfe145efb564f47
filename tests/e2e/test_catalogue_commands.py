"""`toolscale find`, `ls` and `show` on a real catalogue, through `serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from shared.errors import ServiceRejected, ServiceUnreachable
from shared.service.token_file import new_token
from tests.e2e.test_serve import serving
from tests.support.hostile.processes import good_stdio
from tests.support.http_callers import entry, token_file
from tests.support.ports import free_port
from tests.support.processes import Running
from tests.support.waiting import eventually
from toolscale.app import app

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path: Path) -> Path:
    target = good_stdio()
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"good": {"command": target.command, "args": list(target.args)}}}))
    return path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception:
        raise result.exception
    return result


def answer(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def wait_until_listed(running: Running) -> None:
    """Wait until the only server is listed; the log is a moment ahead of that."""
    eventually(lambda: [server["state"] for server in answer("ls")] == ["listed"], what=running.output())


@pytest.fixture(autouse=True)
def _settings(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(config.parent))
    monkeypatch.setenv("TOOLSCALE_PORT", str(free_port()))  # a port without a service
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN", "TOOLSCALE_URL"):
        monkeypatch.setenv(name, "")


def test_the_catalogue_answers_the_same_at_its_url_and_by_its_data_directory(config: Path) -> None:
    with serving(config) as (running, url):
        wait_until_listed(running)
        by_directory, by_url = _everything(), _everything("--url", url)
        rebound = httpx2.get(url.replace("/mcp", "/api/servers"), headers={"Host": "evil.example"}, trust_env=False)

    assert by_directory == by_url
    assert rebound.status_code == 421
    assert [(server["server_id"], server["tools"], server["share"]) for server in by_url["ls"]] == [("good", 250, 1.0)]
    assert by_url["find"]["tools"][0]["name"].startswith("good:")
    assert len(by_url["show"]["tools"]) == 250
    assert by_url["show"]["tokens"] == sum(tool["tokens"] for tool in by_url["show"]["tools"])


def _everything(*where: str) -> dict[str, Any]:
    found = answer("find", "the", "first", "tool", "--limit", "2", *where)
    assert found.pop("nextCursor")  # random, and a part of the answer's tokens
    for name in ("answer_tokens", "net_tokens_saved"):
        del found["token_metrics"][name]
    return {"find": found, "ls": answer("ls", *where), "show": answer("show", "good", *where)}


def test_failing_servers_of_a_service_are_listed_within_the_callers_scope(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = good_stdio()
    good = {"command": target.command, "args": list(target.args), "groups": ["dev"]}
    broken = {"command": "no-such-program", "env": {"KEY": "s3cr3t-Xy7-long"}, "groups": ["ops"]}
    config.write_text(json.dumps({"mcpServers": {"good": good, "broken": broken, "odd": {"command": 3}}}))
    tokens = {name: new_token() for name in ("root", "dev", "ops")}
    entries = {"root": entry(tokens["root"]), **{name: entry(tokens[name], [name]) for name in ("dev", "ops")}}
    monkeypatch.setenv("TOOLSCALE_TOKENS_FILE", str(token_file(config.with_name("tokens.toml"), **entries)))
    with serving(config, TOOLSCALE_QUARANTINE_AFTER="1000") as (running, url):
        running.wait_for('"event": "server_indexed"')
        running.wait_for('"event": "server_listing_failed"')

        def states(name: str, *options: str) -> dict[str, str]:
            return {
                row["server_id"]: row["state"] for row in answer("ls", "--url", url, "--token", tokens[name], *options)
            }

        # the log is a moment ahead of the state
        eventually(lambda: states("root") == {"good": "listed", "broken": "failing", "odd": "left out"})
        assert states("root", "--failing") == {"broken": "failing"}
        assert states("dev") == {"good": "listed"}
        assert states("ops") == states("ops", "--failing") == {"broken": "failing"}
        shown = run("ls", "--url", url, "--token", tokens["ops"], "--failing").stdout
        with pytest.raises(ServiceRejected, match="answered 401"):
            run("ls", "--url", url)

    assert "broken: cannot be started: there is no program 'no-such-program'" in shown
    assert "s3cr3t" not in shown


@pytest.mark.slow
def test_for_people_there_are_tables_and_a_name_that_is_misspelt_names_the_near_ones(config: Path) -> None:
    with serving(config) as (running, url):
        wait_until_listed(running)

        found, shown = run("find", "the first tool", "--url", url), run("show", "good", "--url", url)
        with pytest.raises(ServiceRejected, match="did you mean good"):
            run("show", "goood", "--url", url)

    assert "good:tool_0" in found.stdout
    assert "% saved (cl100k_base, wire form)" in found.stdout
    assert "250 tools, " in shown.stdout
    assert "\x1b" not in found.stdout + shown.stdout


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(ServiceUnreachable, match=r"http://127\.0\.0\.1:1/mcp does not answer"):
        run("find", "anything", "--url", "http://127.0.0.1:1")


@pytest.mark.slow
def test_a_service_that_needs_a_token_accepts_one_and_reports_a_missing_one(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token()
    monkeypatch.setenv("TOOLSCALE_TOKENS_FILE", str(token_file(config.with_name("tokens.toml"), ann=entry(token))))
    with serving(config) as (_, url):
        with pytest.raises(ServiceRejected, match=r"answered 401: .*--token"):
            run("find", "anything", "--url", url)
        with pytest.raises(ServiceRejected, match="answered 401"):
            run("find", "anything", "--url", url, "--token", new_token())
        known = run("find", "anything", "--url", url, "--token", token, "--json")

    assert "token_metrics" in json.loads(known.stdout)
