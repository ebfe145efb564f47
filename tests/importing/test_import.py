"""`toolscale import` on the files of real clients, in a home directory of the test's own."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConfigInvalid
from shared.settings import load_settings
from shared.upstream.mcp_json import read_config
from tests.support.client_homes import FIXTURES, Write
from toolscale.app import app
from toolscale.mcp_clients.clients import Client, ClientFile, Machine, client_files
from toolscale.mcp_clients.find import FoundServers, find_servers

TIME = {"command": "uvx", "args": ["mcp-server-time"]}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["import", *arguments])
    if result.exception:
        raise result.exception
    return result


def imported(home: Path) -> dict[str, Any]:
    servers: dict[str, Any] = json.loads((home / "data" / "mcp.json").read_text())["mcpServers"]
    return servers


def found(home: Path, *named: Path, **settings: object) -> FoundServers:
    machine = Machine("linux", home, {})
    looked_at = [ClientFile(path) for path in named] or client_files(machine, home / "project", Client)
    return find_servers(looked_at, machine, load_settings(**settings))


# --- where clients keep their servers ---

PLACES = {
    "darwin": {
        Client.CLAUDE_DESKTOP: "Library/Application Support/Claude/claude_desktop_config.json",
        Client.VSCODE: "Library/Application Support/Code/User/mcp.json",
        Client.CLINE: f"Library/Application Support/{FIXTURES[Client.CLINE].path.removeprefix('.config/')}",
    },
    "win32": {
        Client.CLAUDE_DESKTOP: "AppData/Roaming/Claude/claude_desktop_config.json",
        Client.VSCODE: "AppData/Roaming/Code/User/mcp.json",
        Client.CLINE: f"AppData/Roaming/{FIXTURES[Client.CLINE].path.removeprefix('.config/')}",
        Client.ZED: "AppData/Roaming/Zed/settings.json",
        Client.GOOSE: "AppData/Roaming/Block/goose/config/config.yaml",
    },
    "linux": {},
}


@pytest.mark.parametrize("system", PLACES)
@pytest.mark.parametrize("client", Client)
def test_each_clients_own_file_is_found_and_understood_on_each_system(
    home: Path, write: Write, system: str, client: Client
) -> None:
    fixture = FIXTURES[client]
    path = write(PLACES[system].get(client, fixture.path), fixture.text)
    machine = Machine(system, home, {})

    findings = find_servers(client_files(machine, home / "project", [client]), machine, load_settings())

    assert {server.server_id: server.entry for server in findings.servers} == fixture.servers
    assert tuple(skipped.reason for skipped in findings.skipped) == fixture.skipped
    assert {server.file.path for server in findings.servers} == {path}


@pytest.mark.parametrize("client", Client)
def test_a_named_file_of_a_client_is_read_as_the_clients(home: Path, write: Write, client: Client) -> None:
    path = write(FIXTURES[client].path, FIXTURES[client].text)

    document = json.loads(run(str(path), "--json").stdout)

    assert [server["found_as"] for server in document["servers"]] == list(FIXTURES[client].servers)


@pytest.mark.parametrize("client", set(Client) - {Client.GEMINI, Client.CLINE, Client.CONTINUE})
def test_a_copy_of_a_clients_file_is_recognised_by_its_content(home: Path, write: Write, client: Client) -> None:
    fixture = FIXTURES[client]
    path = write(f"copies/copy{Path(fixture.path).suffix}", fixture.text)

    findings = found(home, path)

    assert {server.server_id: server.entry for server in findings.servers} == fixture.servers


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (".cursor/mcp.json", '{"mcpServers": "none"}', "mcpServers is not a format that Toolscale reads"),
        (".cursor/mcp.json", '{"mcpServers": [{"command": "x"}]}', "mcpServers is not a format that Toolscale reads"),
        (".codex/config.toml", "mcp_servers = 3", "mcp_servers is not a format that Toolscale reads"),
        (".codex/config.toml", "[mcp_servers", "is not a format that Toolscale reads: "),
        (".config/goose/config.yaml", "extensions: [", "is not a format that Toolscale reads: "),
        (".config/goose/config.yaml", "- a\n- b\n", "is not a format that Toolscale reads"),
        (
            ".continue/config.json",
            '{"experimental": {"modelContextProtocolServers": [{"transport": {}}]}}',
            "experimental.modelContextProtocolServers is not a format that Toolscale reads",
        ),
    ],
)
def test_a_format_that_is_not_understood_is_named_with_the_file(
    home: Path, write: Write, name: str, text: str, problem: str
) -> None:
    path = write(name, text)

    (skipped,) = found(home).skipped

    assert skipped.reason.startswith(f"{path}: {problem}")
    assert problem in run().stdout


@pytest.mark.parametrize(
    ("client", "entry", "key"),
    [
        (Client.CODEX, "[mcp_servers.odd]\nurl = 'http://h'\nhttp_headers = 3\n", "http_headers"),
        (Client.OPENCODE, '{"mcp": {"odd": {"type": "local", "command": {"a": 1}}}}', "command"),
        (Client.GOOSE, "extensions: {odd: {type: stdio, cmd: x, envs: [1]}}", "envs"),
    ],
)
def test_an_entry_of_another_shape_is_named(home: Path, write: Write, client: Client, entry: str, key: str) -> None:
    write(FIXTURES[client].path, entry)

    findings = found(home)

    assert findings.servers == ()
    (skipped,) = findings.skipped
    assert skipped.reason.startswith(f"odd: {key}: expected ")


def test_a_files_servers_of_continue_are_found_in_its_directories(home: Path, write: Write) -> None:
    write(".continue/mcpServers/one.yaml", "name: One\nmcpServers:\n  - {name: one, command: x}\n")
    write("project/.continue/mcpServers/two.json", {"mcpServers": {"two": {"command": "x"}}})

    assert {server.server_id: server.project for server in found(home).servers} == {
        "one": None,
        "two": home / "project",
    }


def test_windows_and_linux_name_the_settings_directory_in_the_environment(home: Path) -> None:
    windows = client_files(Machine("win32", home, {"APPDATA": "/roaming"}), home, [Client.CLAUDE_DESKTOP])
    linux = client_files(Machine("linux", home, {"XDG_CONFIG_HOME": "/xdg"}), home, [Client.CLAUDE_DESKTOP])

    assert [place.path for place in windows + linux] == [
        Path("/roaming/Claude/claude_desktop_config.json"),
        Path("/xdg/Claude/claude_desktop_config.json"),
    ]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        (".mcp.json", {"mcpServers": {"s": TIME}}),
        (".cursor/mcp.json", {"mcpServers": {"s": TIME}}),
        (".vscode/mcp.json", '{"servers": {"s": {"command": "uvx", "args": ["mcp-server-time"],}}, } // mine'),
        (".vscode/settings.json", {"editor.tabSize": 2, "mcp": {"servers": {"s": TIME}}}),
    ],
)
def test_a_projects_files_are_found(home: Path, write: Write, name: str, document: object) -> None:
    write(f"project/{name}", document)

    assert [(server.entry, server.project) for server in found(home).servers] == [(TIME, home / "project")]


def test_the_servers_of_every_project_of_claude_code_are_found(home: Path, write: Write) -> None:
    projects: dict[str, Any] = {
        "/projects/a": {"mcpServers": {"one": TIME}},
        "/projects/b": {"mcpServers": {"two": TIME}, "history": ["x"]},
    }
    write(".claude.json", {"numStartups": 7, "mcpServers": {"user": TIME}, "projects": projects})

    assert {server.server_id: server.project for server in found(home).servers} == {
        "user": None,
        "one": Path("/projects/a"),
        "two": Path("/projects/b"),
    }


def test_the_profiles_and_other_editions_of_vs_code_are_found(home: Path, write: Write) -> None:
    write(".config/Code/User/profiles/3f2a/mcp.json", {"servers": {"one": TIME}})
    write(".config/Code - Insiders/User/settings.json", {"mcp": {"servers": {"two": TIME}}})

    assert [server.server_id for server in found(home).servers] == ["one", "two"]


# --- entries that are imported, and entries that are not ---


@pytest.mark.parametrize(
    ("raw", "entry"),
    [
        ({"type": "stdio", "command": "x", "args": [], "env": {}, "alwaysAllow": ["y"]}, {"command": "x"}),
        ({"url": "http://h/mcp"}, {"type": "http", "url": "http://h/mcp"}),
        ({"type": "streamable-http", "serverUrl": "http://h"}, {"type": "http", "url": "http://h"}),
        ({"type": "sse", "url": "http://h", "headers": {}}, {"type": "sse", "url": "http://h"}),
        ({"url": "http://h", "headers": {"A": "b"}}, {"type": "http", "url": "http://h", "headers": {"A": "b"}}),
        ({"command": "x", "groups": ["dev"]}, {"command": "x", "groups": ["dev"]}),
        ({"command": "${userHome}/x", "args": ["${env:KEY}"]}, {"command": "HOME/x", "args": ["${env:KEY}"]}),
    ],
)  # fmt: skip
def test_a_server_is_written_in_one_form_for_every_client(
    home: Path, write: Write, raw: object, entry: dict[str, Any]
) -> None:
    path = write("some.json", {"mcpServers": {"s": raw}})

    (server,) = found(home, path).servers

    assert server.entry == json.loads(json.dumps(entry).replace("HOME", str(home)))


@pytest.mark.parametrize(
    ("entry", "cwd"),
    [
        ({"command": "./run"}, "PROJECT"),
        ({"command": "node", "args": ["../server.js"]}, "PROJECT"),
        ({"command": "python", "args": ["there.py"]}, "PROJECT"),
        ({"command": "python", "args": ["not_there.py"]}, None),
        ({"command": "x", "cwd": "sub"}, "PROJECT/sub"),
        ({"command": "x", "cwd": "${workspaceFolder}"}, "PROJECT"),
        ({"command": "/bin/x", "args": ["/etc/hosts"]}, None),
    ],
)
def test_a_command_with_relative_paths_is_started_in_its_project(
    home: Path, write: Write, entry: object, cwd: str | None
) -> None:
    write("project/there.py", "")
    write("project/.vscode/mcp.json", {"servers": {"s": entry}})

    (server,) = found(home).servers

    assert server.entry.get("cwd") == (cwd and cwd.replace("PROJECT", str(home / "project")))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "x", "disabled": True}, "it is disabled"),
        ({"command": "x", "args": ["${input:gh-token}"]}, "VS Code asks for ${input:gh-token} (Your token); add it by"),
        ({"command": "x", "args": ["${command:pick}"]}, "${command:pick} is not supported"),
        ({"command": "x", "envFile": ".env"}, "its variables are in a file"),
        ({"url": "http://h", "headersHelper": "x"}, "a program makes its headers"),
        ({"type": "ws", "url": "ws://h"}, "type: "),
        ({}, "expected a 'command' (stdio) or a 'url' (HTTP)"),
        ("text", "entry: expected an object"),
    ],
)
def test_what_cannot_be_taken_over_is_named_with_the_reason(
    home: Path, write: Write, entry: object, reason: str
) -> None:
    inputs = [{"id": "gh-token", "type": "promptString", "description": "Your token"}]
    path = write("some.json", {"inputs": inputs, "servers": {"bad": entry, "good": TIME}})

    findings = found(home, path)

    assert [server.server_id for server in findings.servers] == ["good"]
    assert [left_out.reason[: len(reason) + 5] for left_out in findings.skipped] == [f"bad: {reason}"]


def test_servers_that_were_turned_off_in_claude_code_are_left_out(home: Path, write: Write) -> None:
    project = {"mcpServers": {"one": TIME}, "disabledMcpServers": ["one"], "disabledMcpjsonServers": ["two"]}
    write(".claude.json", {"projects": {str(home / "project"): project}})
    write("project/.mcp.json", {"mcpServers": {"two": TIME, "three": TIME}})

    findings = found(home)

    assert [server.server_id for server in findings.servers] == ["three"]
    assert {skipped.reason for skipped in findings.skipped} == {
        "one: it is disabled",
        "two: it is disabled",
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "toolscale", "args": ["serve", "--stdio"]},
        {"command": "C:\\Program Files\\bin\\toolscale.exe", "args": ["serve", "--stdio"]},
        {"command": "/x/python", "args": ["-m", "toolscale", "serve", "--stdio"]},
        {"command": "uvx", "args": ["--from", "toolscale[embedded]", "toolscale", "serve", "--stdio"]},
        {"command": "docker", "args": ["run", "-i", "registry.example/toolscale:1", "serve", "--stdio"]},
        {"command": "sh", "args": ["-c", "exec toolscale serve --stdio"]},
        {"command": "python", "args": ["-m", "query", "--stdio"]},
        {"command": "npx", "args": ["mcp-remote", "http://localhost:8765/mcp"]},
        {"url": "http://127.0.0.1:8765/mcp/dev"},
        {"url": "${MCP_BASE:-http://[::1]:8765}/mcp"},
        {"url": "https://tools.example.org/mcp"},
        {"url": "https://toolscale.example.org/mcp"},
    ],
)
def test_toolscale_itself_is_never_imported(home: Path, write: Write, entry: object) -> None:
    path = write("some.json", {"mcpServers": {"innocent": entry, "toolscale": {"url": "http://127.0.0.1:9/mcp"}}})

    findings = found(home, path, public_url="https://tools.example.org/mcp")

    assert findings.servers == ()
    assert [skipped.reason for skipped in findings.skipped] == [
        "innocent: it is Toolscale itself",
        "toolscale: it is Toolscale itself",
    ]


def test_a_server_that_only_reads_a_directory_of_that_name_is_imported(home: Path, write: Write) -> None:
    entry = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ann/toolscale"]}
    path = write("some.json", {"mcpServers": {"files": entry}})

    assert [server.entry for server in found(home, path).servers] == [entry]


def test_variables_that_are_not_set_here_are_named(home: Path, write: Write) -> None:
    entry = {"url": "${BASE}/mcp", "headers": {"A": "Bearer ${env:KEY}", "B": "${OTHER:-x}"}}
    path = write("some.json", {"mcpServers": {"s": entry}})

    (server,) = found(home, path).servers

    assert server.unset == ("BASE", "KEY")
    assert "required where Toolscale runs: BASE, KEY" in run(str(path)).stdout


def test_a_broken_file_of_a_client_is_reported_and_does_not_affect_the_others(home: Path, write: Write) -> None:
    path = write(".cursor/mcp.json", "{")
    write("project/.mcp.json", {"mcpServers": {"s": TIME}})

    findings = found(home)

    assert [server.server_id for server in findings.servers] == ["s"]
    assert findings.skipped[0].reason.startswith(f"{path}: not JSON")


@pytest.mark.parametrize("document", ["{", "[]", {"editor.tabSize": 2}])
def test_a_named_file_without_servers_is_an_error(home: Path, write: Write, document: object) -> None:
    path = write("some.json", document)

    with pytest.raises(ConfigInvalid, match=r"some\.json: "):
        run(str(path))


# --- the file that is imported into ---


def test_nothing_is_written_without_apply(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"new": TIME}})
    target = write("data/mcp.json", '{"mcpServers": {"old": {"command": "x"}}}')
    before = target.read_bytes(), target.stat().st_mtime_ns

    result = run()

    assert (target.read_bytes(), target.stat().st_mtime_ns) == before
    assert [path.name for path in target.parent.iterdir()] == ["mcp.json"]
    assert '+    "new": {' in result.stdout
    assert "Nothing was written; --apply does." in result.stderr


def test_what_is_there_stays_and_a_backup_has_the_file_as_it_was(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"new": TIME}})
    text = '{"mine": 1, /* ours */ "servers": {"old": {"command": "x", "groups": ["dev"], "${A}": "b"}}}'
    target = write("data/mcp.json", text)
    target.chmod(0o640)

    result = run("--apply")

    document = json.loads(target.read_text())
    assert document == {"mine": 1, "servers": {"old": {"command": "x", "groups": ["dev"], "${A}": "b"}, "new": TIME}}
    (backup,) = target.parent.glob("mcp.json.*.bak")
    assert backup.read_text() == text
    assert {stat.S_IMODE(path.stat().st_mode) for path in (target, backup)} == {0o640}
    assert "only it still has the comments" in result.stderr


def test_a_second_import_finds_nothing_to_change_and_writes_nothing(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"s": TIME}})
    write(".cursor/mcp.json", {"mcpServers": {"s": {"command": "other", "type": "stdio"}}})
    write("data/mcp.json", {"mcpServers": {"old": {"command": "x"}}})
    run("--on-conflict", "rename", "--apply")
    before = {path: path.read_bytes() for path in (home / "data").iterdir()}

    again = run("--apply")

    assert {path: path.read_bytes() for path in (home / "data").iterdir()} == before
    assert len(before) == 2
    assert "mcp.json: nothing to change." in again.stdout


def test_only_its_owner_can_read_a_new_file_and_serve_is_named(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"new": TIME}})

    result = run("--apply")

    assert stat.S_IMODE((home / "data" / "mcp.json").stat().st_mode) == 0o600
    assert result.stderr.endswith("Serve it: toolscale serve\n")


def test_another_file_is_written_through_a_link(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"new": TIME}})
    real = write("dotfiles/servers.json", {"mcpServers": {}})
    link = home / "link.json"
    link.symlink_to(real)

    result = run("--config", str(link), "--apply")

    assert link.is_symlink()
    assert json.loads(real.read_text())["mcpServers"] == {"new": TIME}
    assert result.stderr.endswith(f"Serve it: toolscale serve --config {real}\n")


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}'])
def test_a_file_that_cannot_be_used_is_not_touched(home: Path, write: Write, text: str) -> None:
    write("project/.mcp.json", {"mcpServers": {"new": TIME}})
    target = write("data/mcp.json", text)

    with pytest.raises(ConfigInvalid):
        run("--apply")

    assert target.read_text() == text


@pytest.mark.parametrize(
    ("on_conflict", "servers"),
    [
        ("keep", {"s": {"command": "old", "groups": ["dev"]}}),
        ("replace", {"s": {**TIME, "groups": ["dev"]}}),
        ("rename", {"s": {"command": "old", "groups": ["dev"]}, "s-project": TIME}),
    ],
)
def test_a_name_that_stands_for_another_server_is_kept_replaced_or_renamed(
    home: Path, write: Write, on_conflict: str, servers: dict[str, Any]
) -> None:
    write("project/.mcp.json", {"mcpServers": {"s": TIME}})
    write("data/mcp.json", {"mcpServers": {"s": {"command": "old", "groups": ["dev"]}}})

    run("--on-conflict", on_conflict, "--apply")

    assert imported(home) == servers


def test_of_two_clients_with_another_server_of_one_name_the_first_counts(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"s": TIME}})
    write(".cursor/mcp.json", {"mcpServers": {"s": {"command": "other"}}})
    write("data/mcp.json", {"mcpServers": {"s": {"command": "old"}}})

    document = json.loads(run("--on-conflict", "replace", "--apply", "--json").stdout)

    assert imported(home) == {"s": TIME}
    assert [server["became"] for server in document["servers"]] == ["replaced", "kept_out"]
    assert document["applied"] is True
    assert Path(document["backup"]).exists()


def test_only_the_clients_that_are_named_are_looked_at(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"one": TIME}})
    write(".cursor/mcp.json", {"mcpServers": {"two": TIME}})

    run("--from", "cursor", "--apply")

    assert list(imported(home)) == ["two"]


def test_nothing_to_import_names_the_files_read(home: Path) -> None:
    result = run()

    assert result.exit_code == 0
    assert str(home / ".cursor" / "mcp.json") in result.stderr.replace("\n", "")


# --- secrets ---

SECRET = "s3cr3t-Xy7"
SECRETIVE = {
    "stdio": {
        "command": "npx",
        "args": ["--api-key", SECRET, f"--token={SECRET}", "-p", "pw1", f"postgresql://u:{SECRET}@h/db"],
        "env": {"KEY": SECRET, "SHORT": "pw1"},
    },
    "http": {
        "url": f"https://u:{SECRET}@h/{SECRET}/mcp?key={SECRET}&{SECRET}#{SECRET}",
        "headers": {"Authorization": f"Bearer {SECRET}", "X": "pw1", "Y": "Bearer ${KEY}"},
    },
}


@pytest.mark.parametrize(
    ("command", "args", "shown"),
    [
        ("npx", ["-y", "@example/server-sql3@1.2.3", SECRET], ["-y", "@example/server-sql3@1.2.3", "***"]),
        ("uvx", ["--from", "mcp2[cli]==1.0.1", "serve2me"], ["--from", "mcp2[cli]==1.0.1", "serve2me"]),
        ("uvx", ["--index", SECRET, "mcp2-server"], ["--index", "***", "mcp2-server"]),
        (
            "docker",
            ["run", "-i", "--rm", "-e", "PIN=1234", "-e", "GH_TOKEN", "ghcr.example/a/mcp4:1.2", SECRET],
            ["run", "-i", "--rm", "-e", "PIN=***", "-e", "GH_TOKEN", "ghcr.example/a/mcp4:1.2", "***"],
        ),
        ("python3.12", ["-m", "server2x", "--token", "x"], ["-m", "server2x", "--token", "***"]),
        ("node", ["build2/server7.js", SECRET], ["build2/server7.js", "***"]),
        ("/opt/my app/run-v2 --key abcd", [], []),
    ],
)
def test_programs_and_packages_are_shown_and_values_are_not(
    home: Path, write: Write, command: str, args: list[str], shown: list[str]
) -> None:
    write("project/.mcp.json", {"mcpServers": {"s": {"command": command, "args": args}}})

    (server,) = json.loads(run("--json").stdout)["servers"]

    assert server["entry"].get("args", []) == shown
    assert server["entry"]["command"] == command.replace("abcd", "***")


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--apply",), ("--apply", "--json")])
def test_no_secret_is_shown(home: Path, write: Write, arguments: tuple[str, ...]) -> None:
    write("project/.mcp.json", {"mcpServers": SECRETIVE})
    write("data/mcp.json", {"mcpServers": {"old": {**SECRETIVE["stdio"], "unknown": [SECRET]}}})

    result = run(*arguments)

    assert SECRET not in result.output
    assert "${KEY}" in result.output
    assert "Authorization" in result.output


def test_a_secret_that_changed_is_seen_to_have_changed(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"s": {**TIME, "env": {"KEY": "new-secret", "OTHER": "same-one"}}}})
    write("data/mcp.json", {"mcpServers": {"s": {**TIME, "env": {"KEY": "old-secret", "OTHER": "same-one"}}}})

    changed = [line for line in run("--on-conflict", "replace").stdout.splitlines() if line.startswith(("+ ", "- "))]

    assert changed == ['-        "KEY": "***",', '+        "KEY": "*** (changed)",']


def test_what_a_file_holds_is_shown_and_never_acted_upon(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"a\x1b[2J[red]": TIME, "b\x9b\x1b": "no object"}})

    output = run().output

    assert not [sign for sign in output if not sign.isprintable() and sign != "\n"]


def test_what_was_imported_can_be_served(home: Path, write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"time": TIME, **SECRETIVE}})

    run("--apply")

    config = read_config(home / "data" / "mcp.json", {"KEY": "k"})
    assert config.problems == ()
    assert set(config.targets) == {"time", "stdio", "http"}
