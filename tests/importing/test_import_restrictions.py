"""`toolscale import` keeps what a person switched off in a client: servers, and tools of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.settings import load_settings
from tests.support.client_homes import Write
from toolscale.app import app
from toolscale.mcp_clients.clients import Client, Machine, client_files
from toolscale.mcp_clients.find import FoundServers, find_servers

MAIL = {"command": "mail-mcp"}
NO_DELETE = {**MAIL, "excludeTools": ["delete"]}


def found(home: Path) -> FoundServers:
    machine = Machine("linux", home, {})
    return find_servers(client_files(machine, home / "project", Client), machine, load_settings())


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["import", "--apply", "--json", *arguments])
    if result.exception:
        raise result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def imported(home: Path) -> dict[str, Any]:
    servers: dict[str, Any] = json.loads((home / "data" / "mcp.json").read_text())["mcpServers"]
    return servers


@pytest.mark.parametrize(
    ("keys", "restrictions"),
    [
        ({"disabledTools": ["delete"]}, {"excludeTools": ["delete"]}),
        ({"disabled_tools": ["delete"]}, {"excludeTools": ["delete"]}),
        ({"excludedTools": ["delete"], "disabledTools": ["send"]}, {"excludeTools": ["send", "delete"]}),
        ({"allowedTools": ["read"]}, {"includeTools": ["read"]}),
        ({"enabledTools": []}, {"includeTools": []}),
        ({"tools": []}, {"includeTools": []}),
        ({"tools": ["*"], "disabledTools": []}, {}),
        ({"tools": {"delete": False, "read": True}}, {"excludeTools": ["delete"]}),
        ({"tools": {"delete": {"enabled": False}, "read": {"approval_mode": "auto"}}}, {"excludeTools": ["delete"]}),
        ({"autoApprove": ["read"], "alwaysAllow": ["read"], "autoApproveTools": ["read"], "trust": True}, {}),
        ({"tool_timeout_sec": 90}, {"timeout": 90_000}),
        ({"tool_timeout": 90}, {"timeout": 90_000}),
        ({"timeout": 120_000}, {"timeout": 120_000}),
    ],
)
def test_the_restrictions_of_an_entry_are_kept_in_one_spelling(
    home: Path, write: Write, keys: dict[str, object], restrictions: dict[str, object]
) -> None:
    write(".cursor/mcp.json", {"mcpServers": {"mail": {**MAIL, **keys}}})

    assert [server.entry for server in found(home).servers] == [{**MAIL, **restrictions}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("toolFilter", "read*"),
        ("permittedTools", ["read"]),
        ("denied_tools", ["delete"]),
        ("disabledTools", "delete"),
        ("tools", "read"),
        ("tools", {"delete": {"visibility": "hidden"}}),
    ],
)
def test_an_entry_with_a_restriction_that_is_not_understood_is_refused_by_its_key(
    home: Path, write: Write, key: str, value: object
) -> None:
    write(".cursor/mcp.json", {"mcpServers": {"mail": {**MAIL, key: value}, "time": {"command": "time-mcp"}}})

    findings = found(home)

    assert [server.server_id for server in findings.servers] == ["time"]
    (skipped,) = findings.skipped
    assert skipped.reason.startswith("mail: ")
    assert (key if not isinstance(value, dict) else "visibility") in skipped.reason


def test_an_entry_that_includes_tools_by_two_keys_is_refused(home: Path, write: Write) -> None:
    write(".cursor/mcp.json", {"mcpServers": {"mail": {**MAIL, "includeTools": ["a"], "enabledTools": ["b"]}}})

    assert [skipped.reason.partition(":")[0] for skipped in found(home).skipped] == ["mail"]


@pytest.mark.parametrize(
    "off",
    [
        {"disabled": True},
        {"disabled": "true"},
        {"disabled": 1},
        {"enabled": False},
        {"enabled": "False"},
        {"isActive": False},
    ],
)
def test_a_server_that_is_switched_off_in_any_spelling_is_left_out(
    home: Path, write: Write, off: dict[str, object]
) -> None:
    write(".cursor/mcp.json", {"mcpServers": {"mail": {**MAIL, **off}}})

    assert [skipped.reason for skipped in found(home).skipped] == ["mail: it is disabled"]


@pytest.mark.parametrize(
    "settings", [".claude/settings.json", "project/.claude/settings.json", "project/.claude/settings.local.json"]
)
def test_a_tool_that_claude_code_denies_is_excluded(home: Path, write: Write, settings: str) -> None:
    write("project/.mcp.json", {"mcpServers": {"my mail": MAIL, "mail": {"command": "other"}}})
    write(settings, {"permissions": {"deny": ["Bash(rm *)", "mcp__my_mail__delete", "mcp__mail2__x"], "allow": ["*"]}})

    assert [server.entry for server in found(home).servers] == [NO_DELETE, {"command": "other"}]


@pytest.mark.parametrize("pattern", ["mcp__mail", "mcp__mail__*", "mcp__*", "mcp__m*__delete"])
def test_a_server_whose_tools_claude_code_denies_by_a_pattern_stays_there(
    home: Path, write: Write, pattern: str
) -> None:
    write(".claude.json", {"mcpServers": {"mail": MAIL}})
    write(".claude/settings.json", {"permissions": {"deny": [pattern]}})

    findings = found(home)

    assert findings.servers == ()
    assert pattern in findings.skipped[0].reason


def test_settings_of_claude_code_that_cannot_be_read_leave_its_servers_out(home: Path, write: Write) -> None:
    write(".claude.json", {"mcpServers": {"mail": MAIL}})
    write(".claude/settings.json", "{")

    assert found(home).servers == ()


def test_the_same_server_of_a_client_that_restricts_it_is_a_conflict(home: Path, write: Write) -> None:
    write(".cursor/mcp.json", {"mcpServers": {"mail": MAIL}})
    write(".codeium/windsurf/mcp_config.json", {"mcpServers": {"mail": {**MAIL, "disabledTools": ["delete"]}}})

    assert [server["became"] for server in run()["servers"]] == ["added", "kept_out"]
    assert imported(home) == {"mail": MAIL}
    assert [server["became"] for server in run("--on-conflict", "rename")["servers"]] == ["there_already", "renamed"]
    assert imported(home) == {"mail": MAIL, "mail-windsurf": NO_DELETE}


def test_a_restriction_of_the_operator_is_no_conflict_and_outlives_a_replacement(home: Path, write: Write) -> None:
    own = {**MAIL, "includeTools": ["read", "delete"], "excludeTools": ["delete"], "timeout": 5_000}
    write("data/mcp.json", {"mcpServers": {"mail": own}})
    write(".cursor/mcp.json", {"mcpServers": {"mail": MAIL}})
    assert [server["became"] for server in run()["servers"]] == ["there_already"]

    write(".cursor/mcp.json", {"mcpServers": {"mail": {"command": "new-mcp", "disabledTools": ["send"]}}})
    run("--on-conflict", "replace")

    assert imported(home) == {"mail": {**own, "command": "new-mcp", "excludeTools": ["delete", "send"]}}


def test_keys_without_an_effect_are_named_once(home: Path, write: Write) -> None:
    entry = {**MAIL, "icon": "mail.png", "alwaysAllow": ["read"], "description": "Reads mail."}
    write(".cursor/mcp.json", {"mcpServers": {"mail": entry, "news": {**entry, "command": "news"}}})

    assert run()["without_effect"] == ["alwaysAllow", "icon"]
    shown = CliRunner().invoke(app, ["import"])
    assert shown.output.count("alwaysAllow") == 1
