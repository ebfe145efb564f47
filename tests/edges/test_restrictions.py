# ruff: noqa: E501  # a situation is a line
"""What a person switched off somewhere in a client's files is taken over by an import, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.settings import load_settings
from tests.support.client_homes import Write
from toolscale.mcp_clients.clients import Client, Machine, client_files
from toolscale.mcp_clients.find import FoundServers, find_servers

MAIL = {"command": "mail-mcp", "args": ["--all"]}
DOCS = {"url": "https://docs.example/mcp", "type": "http"}
GOOSE = "extensions: {mail: {type: stdio, cmd: mail-mcp}}"
CURSOR, GEMINI, ZED = ".cursor/mcp.json", ".gemini/settings.json", ".config/zed/settings.json"
OPENCODE = ".config/opencode/opencode.json"
CLINE = ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


def found(home: Path) -> FoundServers:
    machine = Machine("linux", home, {})
    return find_servers(client_files(machine, home / "project", Client), machine, load_settings())


def servers(**entries: object) -> dict[str, object]:
    return {"mcpServers": {"mail": MAIL, **entries}}


def zed(**agent: object) -> dict[str, object]:
    return {"context_servers": {"mail": MAIL}, "agent": agent}


TAKEN_OVER: tuple[tuple[str, dict[str, object]], ...] = (
    ("Claude Code", {".claude.json": servers(), ".claude/settings.json": {"permissions": {"deny": ["mcp__mail__delete"]}}}),
    ("Cursor", {CURSOR: servers(), ".cursor/cli-config.json": {"permissions": {"deny": ["Mcp(mail, delete)", "Shell(rm)"]}}}),
    ("Cursor with a colon", {CURSOR: servers(), ".cursor/cli-config.json": {"permissions": {"deny": ["Mcp(mail:delete)"]}}}),
    ("Gemini", {GEMINI: {**servers(), "tools": {"exclude": ["mail__delete", "run_shell(rm)"]}}}),
    ("Gemini by its full name", {GEMINI: {**servers(), "excludeTools": ["mcp_mail_delete"]}}),
    ("Gemini by the tool", {GEMINI: {**servers(), "tools": {"exclude": ["delete"]}}}),
    ("Goose", {".config/goose/config.yaml": GOOSE, ".config/goose/permission.yaml": "user: {never_allow: [mail__delete]}"}),
    ("Zed", {ZED: zed(tool_permissions={"tools": {"mcp:mail:delete": {"default": "deny"}, "terminal": {}}})}),
    ("Zed by a rule", {ZED: zed(tool_permissions={"tools": {"mcp:mail:delete": {"always_deny": [{"pattern": "."}]}}})}),
    ("Zed by a profile", {ZED: zed(profiles={"write": {"context_servers": {"mail": {"tools": {"delete": False, "read": True}}}}})}),
    ("opencode", {OPENCODE: {"mcp": {"mail": {"type": "local", "command": ["mail-mcp"]}}, "tools": {"mail_delete": False}}}),
    ("opencode by a rule", {OPENCODE: {"mcp": {"mail": {"type": "local", "command": ["m"]}}, "permission": {"mail_delete": {"*": "deny"}}}}),
    ("a key of Cursor", {CURSOR: servers(mail={**MAIL, "disabledTools": ["delete"]})}),
    ("a key of Windsurf", {".codeium/windsurf/mcp_config.json": servers(mail={**MAIL, "disabledTools": ["delete"]})}),
    ("a key of Gemini", {GEMINI: servers(mail={**MAIL, "excludeTools": ["delete"]})}),
    ("a key of LM Studio", {".lmstudio/mcp.json": servers(mail={**MAIL, "disabled_tools": ["delete"]})}),
    ("a key of Cline", {CLINE: servers(mail={**MAIL, "disabledTools": ["delete"], "alwaysAllow": ["read"]})}),
)  # fmt: skip


@pytest.mark.parametrize("files", [files for _, files in TAKEN_OVER], ids=[name for name, _ in TAKEN_OVER])
def test_a_tool_that_is_switched_off_anywhere_is_excluded(home: Path, write: Write, files: dict[str, object]) -> None:
    for name, document in files.items():
        write(name, document if isinstance(document, str) else json.dumps(document))

    result = found(home)

    assert [(server.name, server.entry.get("excludeTools")) for server in result.servers] == [("mail", ["delete"])]
    assert result.skipped == ()


REFUSED: tuple[tuple[str, dict[str, object], str], ...] = (
    ("Cursor", {CURSOR: servers(), ".cursor/cli-config.json": {"permissions": {"deny": ["Mcp(*:delete)"]}}}, "Mcp(*"),
    ("a server of Cursor", {CURSOR: servers(), ".cursor/cli-config.json": {"permissions": {"deny": ["Mcp(mail)"]}}}, "Mcp(mail"),
    ("all of Zed", {ZED: zed(tool_permissions={"default": "deny"})}, "mcp:*"),
    ("opencode", {OPENCODE: {"mcp": {"mail": {"type": "local", "command": ["m"]}}, "permission": {"*": "deny"}}}, "*"),
    ("Claude Code", {".claude.json": servers(), ".claude/settings.json": {"permissions": {"deny": ["mcp__mail"]}}}, "mcp__mail"),
    ("Goose", {".config/goose/config.yaml": GOOSE, ".config/goose/permission.yaml": "user: {never_allow: ['mail__*']}"}, "mail__*"),
    ("an unknown key", {CURSOR: servers(mail={**MAIL, "toolBlocklist": ["delete"]})}, "toolBlocklist"),
)  # fmt: skip


@pytest.mark.parametrize(("files", "named"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_restriction_that_cannot_be_taken_over_is_refused_by_name(
    home: Path, write: Write, files: dict[str, object], named: str
) -> None:
    for name, document in files.items():
        write(name, document if isinstance(document, str) else json.dumps(document))

    result = found(home)

    assert result.servers == ()
    (skipped,) = result.skipped
    assert skipped.reason.startswith("mail: ")
    assert named in skipped.reason


PROJECT = "project/.mcp.json"
OFF: tuple[tuple[str, dict[str, object]], ...] = (
    ("settings", {PROJECT: servers(docs=DOCS), ".claude/settings.json": {"disabledMcpjsonServers": ["mail"]}}),
    ("local settings", {PROJECT: servers(docs=DOCS), "project/.claude/settings.local.json": {"disabledMcpjsonServers": ["mail"]}}),
    ("a name", {".claude.json": servers(docs=DOCS), ".claude/settings.json": {"deniedMcpServers": [{"serverName": "mail"}]}}),
    ("a command", {".claude.json": servers(docs=DOCS), ".claude/settings.json": {"deniedMcpServers": [{"serverCommand": ["mail-mcp", "--all"]}]}}),
    ("a URL", {".claude.json": servers(mail={**DOCS, "url": "https://mail.example/mcp"}, docs=DOCS), ".claude/settings.json": {"deniedMcpServers": [{"serverUrl": "https://mail.*"}]}}),
    ("Gemini", {GEMINI: servers(docs={"httpUrl": "https://docs.example/mcp"}), ".gemini/mcp-server-enablement.json": {"mail": {"enabled": False}, "docs": {"enabled": True}}}),
    ("Gemini, excluded", {GEMINI: {**servers(docs={"httpUrl": "https://docs.example/mcp"}), "mcp": {"excluded": ["mail"]}}}),
    ("Gemini, not allowed", {GEMINI: {**servers(docs={"httpUrl": "https://docs.example/mcp"}), "mcp": {"allowed": ["docs"]}}}),
)  # fmt: skip


@pytest.mark.parametrize("files", [files for _, files in OFF], ids=[name for name, _ in OFF])
def test_a_server_that_is_switched_off_in_another_file_is_left_out_and_counted(
    home: Path, write: Write, files: dict[str, object]
) -> None:
    for name, document in files.items():
        write(name, json.dumps(document))

    result = found(home)

    assert [server.name for server in result.servers] == ["docs"]
    assert [skipped.kind for skipped in result.skipped] == ["switched off"]
