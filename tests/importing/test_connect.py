"""`toolscale connect` on the files of real clients, in a home directory of the test's own."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConfigInvalid
from shared.settings import load_settings
from tests.support.client_homes import FIXTURES, Write
from toolscale.app import app
from toolscale.mcp_clients.clients import CLIENTS, Client, Machine, client_files, file_to_connect
from toolscale.mcp_clients.editing import edited, parsed, syntax_of
from toolscale.mcp_clients.find import find_servers

# Continue's servers are in its config.yaml, and Toolscale gets a file of its own.
OWN_FILE = {Client.CONTINUE: ".continue/mcpServers/toolscale.json"}


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/toolscale"])


def run(*arguments: str, answer: str = "") -> Result:
    result = CliRunner().invoke(app, ["connect", *arguments], input=answer)
    if isinstance(result.exception, ConfigInvalid):
        raise result.exception
    return result


def read(path: Path) -> Any:
    return parsed(path, path.read_text(encoding="utf-8"))


def own_file(home: Path, client: Client) -> Path:
    return home / OWN_FILE.get(client, FIXTURES[client].path)


COMMAND = "/opt/bin/toolscale"
ARGS = ["serve", "--stdio", "--data-dir"]


@pytest.mark.parametrize("client", Client)
def test_a_client_is_connected_once_and_disconnected_with_the_rest_unchanged(
    home: Path, write: Write, client: Client
) -> None:
    write(FIXTURES[client].path, FIXTURES[client].text)
    path = own_file(home, client)
    before = path.read_bytes() if path.exists() else b'{\n  "mcpServers": {}\n}\n'
    document: Any = read(path) if path.exists() else {"mcpServers": {}}

    assert run(client, "--yes").exit_code == 0
    connected = path.read_bytes()
    again = run(client, "--yes")
    after = read(path)
    servers = after[CLIENTS[client].key]
    run(client, "--remove", "--yes")

    assert again.stdout == f"{path}: nothing to change.\n"
    assert connected != before
    assert COMMAND in str(servers.pop("toolscale"))
    assert after == document
    assert path.read_bytes() == before


@pytest.mark.parametrize("client", Client)
def test_import_recognises_the_entry_that_connect_wrote(home: Path, client: Client) -> None:
    run(client, "--yes")
    machine = Machine("linux", home, {})

    findings = find_servers(client_files(machine, home / "project", [client]), machine, load_settings())

    assert [skipped.reason for skipped in findings.skipped] == ["toolscale: it is Toolscale itself"]


@pytest.mark.parametrize("client", set(Client) - {Client.CLAUDE_DESKTOP})
def test_a_url_takes_the_place_of_the_command(home: Path, client: Client) -> None:
    run(client, "--yes")

    run(client, "--url", "http://127.0.0.1:8765", "--yes")

    entry = read(own_file(home, client))[CLIENTS[client].key]["toolscale"]
    assert "http://127.0.0.1:8765/mcp" in entry.values()
    assert COMMAND not in str(entry)


def test_a_host_with_the_name_of_the_path_gets_the_path_too(home: Path) -> None:
    run("cursor", "--url", "https://mcp.example.com", "--yes")

    assert "https://mcp.example.com/mcp" in str(read(own_file(home, Client.CURSOR)))


def test_a_client_without_urls_is_named(home: Path) -> None:
    with pytest.raises(ConfigInvalid, match="Claude Desktop starts its servers itself; leave --url out"):
        run("claude-desktop", "--url", "http://127.0.0.1:8765/mcp")


def test_the_command_has_absolute_paths_and_the_given_file(home: Path) -> None:
    run("cursor", "--yes", "--config", "servers.json", "--data-dir", "data")

    entry = read(home / ".cursor" / "mcp.json")["mcpServers"]["toolscale"]
    assert entry == {
        "command": COMMAND,
        "args": [
            *("serve", "--stdio", "--config", str(home / "project" / "servers.json")),
            *("--data-dir", str(home / "project" / "data")),
        ],
    }


def test_nothing_is_written_without_a_yes(home: Path, write: Write) -> None:
    path = write(".cursor/mcp.json", '{"mcpServers": {}}')

    no = run("cursor", answer="n\n")
    silent = run("cursor")

    assert path.read_text() == '{"mcpServers": {}}'
    assert list(path.parent.iterdir()) == [path]
    assert (no.exit_code, silent.exit_code) == (0, 1)
    assert '+    "toolscale": {' in no.stdout


def test_a_yes_writes_with_a_backup_and_the_mode_of_the_file(home: Path, write: Write) -> None:
    text = '{"mcpServers": {"s": {"command": "x"}}}'
    path = write(".cursor/mcp.json", text)
    path.chmod(0o640)

    result = run("cursor", answer="y\n")

    (backup,) = path.parent.glob("mcp.json.*.bak")
    assert backup.read_text() == text
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, backup)} == {0o640}
    assert f"Backup: {backup}" in result.stderr
    assert list(read(path)["mcpServers"]) == ["toolscale", "s"]


def test_a_new_file_is_only_the_owners(home: Path) -> None:
    run("codex", "--yes")

    path = home / ".codex" / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == (
        f'[mcp_servers.toolscale]\ncommand = "{COMMAND}"\n'
        f'args = ["serve", "--stdio", "--data-dir", "{home / "data"}"]\n'
    )


def test_a_link_stays_a_link(home: Path, write: Write) -> None:
    real = write("dotfiles/mcp.json", "{}")
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(real)

    run("cursor", "--yes")

    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert "toolscale" in read(real)["mcpServers"]


def test_the_first_edition_of_vs_code_that_is_there_is_connected(home: Path) -> None:
    (home / ".config" / "VSCodium" / "User").mkdir(parents=True)

    assert file_to_connect(Client.VSCODE, Machine("linux", home, {})) == home / ".config/VSCodium/User/mcp.json"


def test_what_a_user_added_to_the_entry_stays(home: Path) -> None:
    run("cursor", "--yes")
    path = home / ".cursor" / "mcp.json"
    document = read(path)
    document["mcpServers"]["toolscale"]["env"] = {"TOOLSCALE_LOG_LEVEL": "DEBUG"}
    path.write_text(json.dumps(document))

    assert "nothing to change" in run("cursor", "--yes").stdout


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (Client.CURSOR, "{"),
        (Client.CURSOR, "[]"),
        (Client.CURSOR, '{"mcpServers": []}'),
        (Client.CODEX, "[mcp_servers"),
        (Client.CODEX, "mcp_servers = { a = { command = 'x' } }\n"),
        (Client.GOOSE, "extensions: [1]\n"),
        (Client.GOOSE, "extensions: {a: {type: builtin}}\n"),
    ],
)
def test_a_file_that_cannot_be_edited_is_left_as_it_is(home: Path, write: Write, client: Client, text: str) -> None:
    path = write(FIXTURES[client].path, text)

    with pytest.raises(ConfigInvalid, match=path.name):
        run(client, "--yes")

    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_no_secret_of_another_server_is_shown(home: Path, write: Write) -> None:
    write(
        ".cursor/mcp.json",
        '{"token": "s3cr3t-Top9", "mcpServers": {"a": {"command": "x", "env": {"KEY": "s3cr3t-Xy7"}}}}',
    )

    result = run("cursor", "--yes", "--json")

    assert "s3cr3t" not in result.output
    assert json.loads(result.stdout)["written"] is True


def test_removing_what_is_not_there_changes_nothing(home: Path, write: Write) -> None:
    path = write(".cursor/mcp.json", "{}")

    assert run("cursor", "--remove", "--yes").stdout == f"{path}: nothing to change.\n"


# --- with an import ---


def import_servers(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["import", "--connect", *arguments])
    if isinstance(result.exception, ConfigInvalid):
        raise result.exception
    return result


def test_an_import_without_apply_shows_the_changes_of_clients_and_writes_nothing(home: Path, write: Write) -> None:
    path = write(".cursor/mcp.json", '{"mcpServers": {"s": {"command": "x", "env": {"KEY": "s3cr3t-Xy7"}}}}')

    result = import_servers()
    document = json.loads(import_servers("--json").stdout)

    assert '+    "toolscale": {' in result.stdout
    assert '-    "s": {' in result.stdout
    assert "s3cr3t" not in result.output
    assert "Nothing was written; --apply does." in result.stderr
    assert list(path.parent.iterdir()) == [path]
    assert not (home / "data" / "mcp.json").exists()
    assert document["clients"] == [
        {
            "client": "cursor",
            "path": str(path),
            "written": False,
            "backup": None,
            "moved": ["s"],
            "returned": [],
        }
    ]


def test_only_servers_that_toolscale_has_now_leave_a_client(home: Path, write: Write) -> None:
    write("data/mcp.json", '{"mcpServers": {"taken": {"command": "other"}, "same": {"command": "y"}}}')
    entries = '"taken": {"command": "x"}, "same": {"command": "y"}, "off": {"command": "z", "disabled": true}'
    write(".cursor/mcp.json", f'{{"mcpServers": {{{entries}}}}}')
    write(".config/Code/User/settings.json", '{"mcp": {"servers": {"elsewhere": {"command": "v"}}}}')
    write("project/.mcp.json", '{"mcpServers": {"of-project": {"command": "w"}}}')

    cursor, vscode = json.loads(import_servers("--json").stdout)["clients"]

    assert cursor["moved"] == ["same"]
    assert (vscode["path"], vscode["moved"]) == (str(home / ".config/Code/User/mcp.json"), [])


def test_moved_servers_return_and_others_do_not(home: Path, write: Write) -> None:
    path = write(".cursor/mcp.json", '{"mcpServers": {"moved": {"command": "x"}, "deleted": {"command": "y"}}}')
    run("cursor", "--yes")
    document = read(path)
    path.write_text(json.dumps({"mcpServers": {"toolscale": document["mcpServers"]["toolscale"]}}))
    write("data/mcp.json", '{"mcpServers": {"moved-cursor": {"command": "x"}}}')

    result = json.loads(run("cursor", "--remove", "--yes", "--json").stdout)

    assert read(path) == {"mcpServers": {"moved": {"command": "x"}}}
    assert result["returned"] == ["moved"]


@pytest.mark.parametrize("client", [Client.CURSOR, Client.CODEX, Client.GOOSE], ids=["JSON", "TOML", "YAML"])
def test_moved_servers_return_in_their_order(home: Path, write: Write, client: Client) -> None:
    key, path = CLIENTS[client].key, home / FIXTURES[client].path
    entries = {name: {"command": name} for name in ("north", "east", "south", "west", "centre")}
    text = syntax_of(path).rendered(key, entries)
    write(FIXTURES[client].path, text)
    write("data/mcp.json", json.dumps({"mcpServers": entries}))
    run(client, "--yes")
    path.write_text(edited(path, path.read_text(), key, {}, list(entries)))

    result = json.loads(run(client, "--remove", "--yes", "--json").stdout)

    assert list(read(path)[key].items()) == list(entries.items())
    assert result["returned"] == list(entries)


def test_a_client_whose_file_cannot_be_edited_is_named_and_the_others_are_shown(home: Path, write: Write) -> None:
    write(".config/goose/config.yaml", "extensions: {s: {type: stdio, cmd: x}}\n")
    write(".cursor/mcp.json", '{"mcpServers": {"t": {"command": "y"}}}')

    result = import_servers()

    assert "Goose is not connected: " in result.stderr
    assert '-    "t": {' in result.stdout
