from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigInvalid
from shared.upstream.mcp_json import Config, read_config
from shared.upstream.target import HttpTarget, StdioTarget


def read(tmp_path: Path, document: dict[str, Any] | str, **environ: str) -> Config:
    path = tmp_path / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return read_config(path, environ)


def test_claude_and_cursor_servers_are_read(tmp_path: Path) -> None:
    config = read(
        tmp_path, {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "1"}}}}
    )

    assert config.targets == {"time": StdioTarget("uvx", ("mcp-server-time",), {"A": "1"}, None)}
    assert [event.data.transport for event in config.events()] == ["stdio"]
    assert config.problems == ()


def test_vs_code_servers_with_comments_and_trailing_commas_are_read(tmp_path: Path) -> None:
    config = read(tmp_path, '{ // mine\n "servers": {"docs": {"type": "http", "url": "https://example.org/mcp",}}, }')

    target = config.targets["docs"]
    assert isinstance(target, HttpTarget)
    assert (target.url, target.transport) == ("https://example.org/mcp", "streamable-http")


@pytest.mark.parametrize(
    ("kind", "transport"), [("sse", "sse"), ("http", "streamable-http"), ("streamable-http", "streamable-http")]
)
def test_the_type_decides_the_transport(tmp_path: Path, kind: str, transport: str) -> None:
    config = read(tmp_path, {"mcpServers": {"s": {"type": kind, "url": "http://127.0.0.1:1/x"}}})

    assert config.announcements[0].transport == transport


def test_variables_are_replaced_from_the_environment(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "X": "${env:TOKEN}", "Y": "${NOT_SET:-fallback}"}
    config = read(tmp_path, {"mcpServers": {"s": {"url": "http://h/mcp", "headers": headers}}}, TOKEN="t0p")

    target = config.targets["s"]
    assert isinstance(target, HttpTarget)
    assert dict(target.headers) == {"Authorization": "Bearer t0p", "X": "t0p", "Y": "fallback"}


def test_no_secret_of_the_file_reaches_an_event(tmp_path: Path) -> None:
    entry = {"url": "https://user:${TOKEN}@example.org/mcp?key=${TOKEN}", "headers": {"Authorization": "${TOKEN}"}}
    config = read(tmp_path, {"mcpServers": {"s": entry}}, TOKEN="t0p-s3cret")

    assert config.announcements[0].url == "https://example.org/mcp"
    assert "t0p-s3cret" not in config.events()[0].model_dump_json()
    assert "t0p-s3cret" not in repr(config.targets)


def test_a_variable_in_a_urls_path_is_dialled_and_not_shown(tmp_path: Path) -> None:
    entry = {"url": "https://example.org:8443/${KEY}/mcp"}
    config = read(tmp_path, {"mcpServers": {"s": entry}}, KEY="t0p-s3cret")

    target = config.targets["s"]
    assert isinstance(target, HttpTarget)
    assert target.url == "https://example.org:8443/t0p-s3cret/mcp"
    assert config.announcements[0].url == "https://example.org:8443"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"command": "x", "args": ["${NOT_SET}"]}, "bad: the environment variable NOT_SET is not set"),
        ({"url": "http://h", "headers": {"a": "${input:key}"}}, "bad: ${input:key} is not supported"),
        ({}, "bad: expected a 'command' (stdio) or a 'url' (HTTP)"),
        ({"url": "ftp://h"}, "bad: url: expected a URL that begins with http:// or https://"),
        ({"command": "x", "args": "not a list"}, "bad: args: expected a list"),
        ({"command": "x", "args": [{"a": "b"}]}, "bad: args.0: expected a string"),
        ({"command": "x", "env": ["A"]}, "bad: env: expected an object"),
        ({"command": ""}, "bad: expected a 'command' (stdio) or a 'url' (HTTP)"),
        ({"type": "ws", "url": "http://h"}, "bad: type: expected 'stdio', 'http' or 'sse'"),
        ("not an object", "bad: entry: expected an object"),
        ({"comand": "x"}, "bad: there is no key 'comand'; did you mean 'command'?"),
        ({"Command": "x"}, "bad: there is no key 'Command'; did you mean 'command'?"),
        ({"command": "x", "arg": ["y"]}, "bad: there is no key 'arg'; did you mean 'args'?"),
        ({"url": "http://h", "header": {}}, "bad: there is no key 'header'; did you mean 'headers'?"),
    ],
)
def test_one_bad_entry_is_named_and_does_not_cost_the_others(tmp_path: Path, entry: object, problem: str) -> None:
    config = read(tmp_path, {"mcpServers": {"bad": entry, "good": {"command": "x"}}})

    assert list(config.targets) == ["good"]
    assert str(config.problems[0]).startswith(problem)
    assert config.named == {"good", "bad"}


def test_keys_of_clients_are_ignored(tmp_path: Path) -> None:
    entry = {"command": "x", "timeout": 60, "autoApprove": ["a"], "disabledTools": [], "description": "", "name": "n"}
    config = read(tmp_path, {"mcpServers": {"s": entry}})

    assert (list(config.targets), config.problems) == (["s"], ())


@pytest.mark.parametrize("key", ["type", "transport"])
def test_an_entry_has_its_transport_under_either_key(tmp_path: Path, key: str) -> None:
    config = read(tmp_path, {"mcpServers": {"s": {"url": "https://example.org/sse", key: "sse"}}})

    assert config.announcements[0].transport == "sse"


@pytest.mark.parametrize("key", ["disabledTools", "tools", "allowed_tools", "toolFilter"])
def test_a_key_of_a_client_that_may_restrict_tools_is_refused_by_its_name(tmp_path: Path, key: str) -> None:
    config = read(tmp_path, {"mcpServers": {"s": {"command": "x", key: ["read"]}}})

    assert str(config.problems[0]).startswith(f"s: {key} ")


@pytest.mark.parametrize("off", [{"disabled": True}, {"disabled": "true"}, {"enabled": False}, {"isActive": "false"}])
def test_disabled_servers_are_left_out(tmp_path: Path, off: dict[str, object]) -> None:
    config = read(tmp_path, {"mcpServers": {"s": {"command": "x", "args": ["${NOT_SET}"], **off}}})

    assert (config.announcements, config.named, config.problems) == ((), frozenset(), ())


def test_groups_of_ours_reach_the_event(tmp_path: Path) -> None:
    config = read(tmp_path, {"mcpServers": {"s": {"command": "x", "groups": ["dev"]}}})

    assert config.events()[0].data.groups == {"dev"}


def test_a_name_that_cannot_be_an_id_is_made_one_and_a_clash_is_named(tmp_path: Path) -> None:
    config = read(tmp_path, {"mcpServers": {"My Server": {"command": "x"}, "My:Server": {"command": "y"}}})

    assert list(config.targets) == ["My-Server"]
    (problem,) = config.problems
    assert problem.name == "My:Server"
    assert "'My Server'" in problem.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON: line 1, column 2: unexpected end of input"),
        ('{"mcpServers":\n {"s": }}', 'not JSON: line 2, column 8: unexpected "}"'),
        ('{"mcp_servers": {}}', r"expected an object 'mcpServers' .* in place of 'mcp_servers'"),
        ("[]", "expected an object"),
        ("{}", "expected an object"),
        ('{"mcpServers": 1}', "expected an"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid, match=reason):
        read(tmp_path, text)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="No such file"):
        read_config(tmp_path / "mcp.json", {})


def test_an_entry_with_an_unknown_policy_for_changed_definitions_is_a_problem(tmp_path: Path) -> None:
    entry = {"url": "http://127.0.0.1:1/x", "labels": {"definition_changes": "aprove"}}

    (problem,) = read(tmp_path, {"mcpServers": {"s": entry}}).problems

    assert "expected open, notify, approve" in problem.reason


def nested(depth: int) -> str:
    return '{"mcpServers": ' + '{"a": ' * depth + "1" + "}" * (depth + 1)


def test_a_file_that_is_nested_too_deeply_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(nested(6_000), encoding="utf-8")

    with pytest.raises(ConfigInvalid, match="nested too deeply"):
        read_config(path, {})


def test_an_entry_that_is_nested_too_deeply_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(nested(900), encoding="utf-8")

    assert [problem.reason for problem in read_config(path, {}).problems] == ["nested too deeply"]
