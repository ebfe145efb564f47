from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConfigInvalid, ServerUnknown
from toolscale.app import app


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TOOLSCALE_MCP_CONFIG", "")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def servers(path: Path) -> Any:
    return json.loads(path.read_text())["mcpServers"]


def test_a_command_and_a_url_are_added_as_a_client_writes_them(tmp_path: Path) -> None:
    run("add", "time", "--env", "TZ=UTC", "--", "uvx", "mcp-server-time", "--local-timezone", "UTC")
    run("add", "docs", "--url", "https://docs.example/mcp", "--header", "Authorization=Bearer ${DOCS_TOKEN}")
    run("add", "mail", "--url", "https://mail.example/mcp", "--group", "office", "--group", "mail")

    assert servers(tmp_path / "mcp.json") == {
        "time": {"command": "uvx", "args": ["mcp-server-time", "--local-timezone", "UTC"], "env": {"TZ": "UTC"}},
        "docs": {
            "type": "http",
            "url": "https://docs.example/mcp",
            "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
        },
        "mail": {"type": "http", "url": "https://mail.example/mcp", "groups": ["mail", "office"]},
    }


def test_an_addition_keeps_the_rest_of_the_file_and_a_backup(tmp_path: Path) -> None:
    config = tmp_path / "other.json"
    before = '{"inputs": [], "servers": {"a": {"url": "https://a.example"}} // mine\n}'
    config.write_text(before)

    added = run("add", "b", "--url", "https://b.example", "--config", str(config))

    document = json.loads(config.read_text())
    (backup,) = tmp_path.glob("other.json.*.bak")
    assert document["inputs"] == []
    assert document["servers"].keys() == {"a", "b"}
    assert backup.read_text() == before
    assert f"b: added ({config})" in added.stdout
    assert f"Backup: {backup}; only it still has the comments" in added.stderr


def test_a_second_addition_changes_nothing_and_another_server_of_the_name_is_an_error(tmp_path: Path) -> None:
    run("add", "docs", "--url", "https://docs.example/mcp")

    again = json.loads(run("add", "docs", "--url", "https://docs.example/mcp", "--json").stdout)
    with pytest.raises(ConfigInvalid, match=r"docs: .* has another server of this name; `toolscale remove`"):
        run("add", "docs", "--url", "https://other.example/mcp")

    assert (again["result"], again["backup"]) == ("there_already", None)
    assert list(tmp_path.glob("*.bak")) == []
    assert servers(tmp_path / "mcp.json")["docs"]["url"] == "https://docs.example/mcp"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x"], "expected either a command after `--`, or --url"),
        (["x", "--url", "https://x.example", "--", "uvx"], "expected either a command"),
        (["x", "--url", "https://x.example", "--env", "A=1"], "--env belongs to a command"),
        (["x", "--header", "A=1", "--", "uvx"], "--header to --url"),
        (["x", "--url", "ftp://x.example"], "x: "),
        (["x", "--", "toolscale", "serve", "--stdio"], "x: it is Toolscale itself"),
    ],
)
def test_an_unusable_server_is_not_added(tmp_path: Path, arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigInvalid, match=reason):
        run("add", *arguments)

    assert not (tmp_path / "mcp.json").exists()


def test_a_variable_that_is_not_set_here_is_named_on_stderr() -> None:
    added = run("add", "docs", "--url", "https://docs.example/mcp", "--header", "X=${TOOLSCALE_TEST_UNSET}")

    assert "Required where Toolscale runs: TOOLSCALE_TEST_UNSET" in added.stderr


def test_a_server_is_removed_by_its_name_or_its_id_and_a_misspelt_name_is_corrected(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"my docs": {"url": "https://docs.example"}, "time": {"command": "uvx"}}}')

    removed = json.loads(run("remove", "my-docs", "--json").stdout)
    with pytest.raises(ServerUnknown, match="did you mean time"):
        run("remove", "tine")

    assert (removed["server_id"], removed["result"]) == ("my-docs", "removed")
    assert Path(removed["backup"]).is_file()
    assert servers(config).keys() == {"time"}
