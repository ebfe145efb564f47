"""Entries and switches as other clients, generators and people write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from shared.upstream.mcp_json import Config, config_of
from shared.upstream.spellings import KEYS
from shared.upstream.target import HttpTarget, StdioTarget
from tests.support.client_homes import Write
from toolscale.app import app

URL = "https://example.org/mcp"
PROGRAM = {"command": "mail-mcp", "args": ["${NOT_SET}"]}


def config(entry: object) -> Config:
    return config_of({"s": entry}, {})


def target(entry: object) -> object:
    found = config(entry)
    assert found.problems == ()
    return found.targets["s"]


def reason(entry: object) -> str:
    (problem,) = config(entry).problems
    assert config(entry).targets == {}
    return problem.reason


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# --- switches ---

SWITCHED_OFF = (
    *({"enabled": value} for value in (False, "false", "False", 0, "0", "no", "off", " false ")),
    *({"disabled": value} for value in (True, "true", "TRUE", 1, "1", "yes", "on", "disabled")),
    *(
        {key: False}
        for key in ("enable", "isEnabled", "is_enabled", "Enabled", "isActive", "is-active", "active", "on")
    ),
    *({key: True} for key in ("disable", "skip", "isDisabled", "is_disabled", "DISABLED", "inactive", "paused", "off")),
    *({"status": value} for value in ("disabled", "off", "Inactive", "stopped")),
    *({"state": "disabled"}, {"autoStart": False}, {"startup": False}),
    *(
        {"disabled": True, "autoStart": True},
        {"enabled": False, "disabled": None},
        {"disabled": True, "enabled": False},
    ),
)


@pytest.mark.parametrize("switch", SWITCHED_OFF, ids=json.dumps)
def test_a_server_that_is_switched_off_does_not_start_and_is_counted(switch: dict[str, object]) -> None:
    found = config({**PROGRAM, **switch})

    assert (found.targets, found.named, found.problems) == ({}, frozenset(), ())
    assert found.switched_off == ("s",)


@pytest.mark.parametrize(
    "switch",
    [
        *({"enabled": True}, {"enabled": "true"}, {"enabled": 1}, {"enabled": "yes"}, {"enabled": None}),
        *({"disabled": False}, {"disabled": "false"}, {"disabled": 0}, {"disabled": "no"}, {"disabled": None}),
        *({"isActive": True}, {"status": "running"}, {"state": "enabled"}, {"enabled": True, "disabled": False}),
    ],
    ids=json.dumps,
)
def test_a_server_that_is_switched_on_starts(switch: dict[str, object]) -> None:
    assert target({"command": "mail-mcp", **switch}) == StdioTarget("mail-mcp")


def test_a_deep_value_of_a_switch_is_refused_with_its_key() -> None:
    deep: object = True
    for _ in range(5_000):
        deep = [deep]

    assert "disabled" in reason({"command": "x", "disabled": deep})


@pytest.mark.parametrize(
    "switch",
    [
        *({"enabled": "maybe"}, {"enabled": ""}, {"enabled": 2}, {"enabled": ["read"]}, {"enabled": "${ON}"}),
        *({"disabled": "never"}, {"disabled": []}, {"disabled": {"tools": ["a"]}}, {"disabled": "enabled"}),
        *({"status": "error"}, {"state": 200}, {"autoStart": "manual"}),
    ],
    ids=json.dumps,
)
def test_a_switch_in_no_known_position_is_refused_with_its_key(switch: dict[str, object]) -> None:
    assert next(iter(switch)) in reason({"command": "x", **switch})


@pytest.mark.parametrize(
    "switches",
    [
        {"enabled": True, "disabled": True},
        {"enabled": False, "disabled": False},
        {"isActive": "false", "enabled": "true"},
        {"status": "disabled", "active": 1},
        {"Disabled": "yes", "isEnabled": "yes"},
    ],
    ids=json.dumps,
)
def test_switches_that_contradict_each_other_are_refused_with_both_keys(switches: dict[str, object]) -> None:
    found = reason({"command": "x", **switches})

    assert all(key in found for key in switches)


@pytest.mark.parametrize("key", ["disbled", "enabeld", "isActve", "disabledd"])
def test_a_misspelt_switch_is_refused_by_its_key(key: str) -> None:
    assert key in reason({"command": "x", key: True})


# --- entries ---


@pytest.mark.parametrize(
    "entry",
    [
        *({"url": URL, "type": kind} for kind in ("HTTP", "Http", "streamable_http", "streamableHttp", "http-stream")),
        *({"url": URL, "type": kind} for kind in ("streamable-http", "Streamable HTTP", "remote", " http ")),
        *({key: URL} for key in KEYS["url"] if key != "sseUrl"),
        *({"url": URL, key: "http"} for key in KEYS["type"]),
        {"url": URL.replace("https", "HTTPS")},
        {"url": f" {URL}\n", "headers": None, "args": None, "env": None, "cwd": None, "type": None},
        {"url": URL, "command": "", "args": [], "env": {}, "headers": {}},
        {"url": URL, "command": None, "serverUrl": URL, "type": "http", "transport": "streamable-http"},
    ],
    ids=json.dumps,
)
def test_one_server_behind_a_url_in_every_spelling(entry: dict[str, object]) -> None:
    assert target(entry) == HttpTarget(URL)


@pytest.mark.parametrize(
    "entry",
    [
        *({"url": URL, key: kind} for key in KEYS["type"] for kind in ("sse", "SSE", "http+sse")),
        {"sseUrl": URL},
    ],
    ids=json.dumps,
)
def test_the_older_transport_in_every_spelling(entry: dict[str, object]) -> None:
    assert target(entry) == HttpTarget(URL, "sse")


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "x", "args": [8080, True, 1.5], "env": {"PORT": 8080, "DEBUG": False}},
        {"command": ["x", "8080", "true", "1.5"], "environment": {"PORT": "8080", "DEBUG": "false"}, "type": "local"},
        {"cmd": " x ", "arguments": ["8080", True, 1.5], "envs": {"PORT": 8080, "DEBUG": "false"}, "url": ""},
        {"command": "x", "args": ["8080", "true", "1.5"], "env": {"PORT": "8080", "DEBUG": False}, "type": "STDIO"},
    ],
    ids=json.dumps,
)
def test_one_program_in_every_spelling(entry: dict[str, object]) -> None:
    assert target(entry) == StdioTarget("x", ("8080", "true", "1.5"), {"PORT": "8080", "DEBUG": "false"})


@pytest.mark.parametrize("kind", ["streamable-http", "HTTP", "streamable_http"])
def test_a_variable_may_have_any_spelling_too(kind: str) -> None:
    entry = {"url": "${URL}", "transport": "${KIND}", "timeout": "${SECONDS}"}

    found = config_of({"s": entry}, {"URL": "HTTPS://example.org/mcp", "KIND": kind, "SECONDS": "90"})

    assert found.targets == {"s": HttpTarget(URL)}
    assert found.options["s"].timeout_s == 90


def test_the_page_gets_an_entry_in_one_spelling() -> None:
    found = config({"cmd": ["x", 8080], "envs": None, "url": "", "args": None, "description": "mine"})

    assert found.entries["s"] == {"command": "x", "args": ["8080"], "description": "mine"}


def test_one_word_is_a_list_of_arguments_and_a_number_is_a_value_of_a_header() -> None:
    found = config_of(
        {"a": {"command": "x", "args": "server.py"}, "b": {"url": URL, "headers": {"X-Version": 2}, "timeout": "90"}},
        {},
    )

    assert found.targets == {"a": StdioTarget("x", ("server.py",)), "b": HttpTarget(URL, headers={"X-Version": "2"})}
    assert found.options["b"].timeout_s == 90


@pytest.mark.parametrize(
    ("entry", "keys"),
    [
        ({"command": "x", "args": "-m server"}, ["args"]),
        ({"command": "x", "arguments": [None]}, ["arguments"]),
        ({"command": "x", "args": [["a"]]}, ["args"]),
        ({"command": "x", "environment": {"A": None}}, ["environment", "A"]),
        ({"command": "x", "envs": ["A=1"]}, ["envs"]),
        ({"serverUrl": "example.org/mcp"}, ["serverUrl"]),
        ({"httpUrl": URL, "http_headers": ["Authorization"]}, ["http_headers"]),
        ({"url": URL, "transportType": "websocket"}, ["transportType"]),
        ({"url": URL, "transport": {"kind": "sse"}}, ["transport"]),
        ({"url": URL, "timeout": "soon"}, ["timeout"]),
        ({"url": URL, "toolTimeout": True}, ["toolTimeout"]),
        ({"url": URL, "type": "stdio"}, ["command"]),
        ({"command": "x", "type": "http"}, ["url"]),
        ({"command": "x", "url": URL}, ["command", "url", "type"]),
        ({"url": URL, "serverUrl": f"{URL}/other"}, ["url", "serverUrl"]),
        ({"url": URL, "type": "sse", "transport": "http"}, ["type", "transport"]),
        ({"httpUrl": URL, "type": "sse"}, ["httpUrl", "type"]),
        ({"command": ["x", "a"], "args": ["b"]}, ["command", "args"]),
        ({"command": "x", "env": {"A": "1"}, "environment": {"A": "2"}}, ["env", "environment"]),
        ({"command": r"C:" + "\tools\run.exe"}, ["command"]),
        ({"command": "x", "args": ["D:\new"]}, ["args"]),
        ({"command": "x", "env": {"HOME": ".\bin"}}, ["env"]),
        ({"command": "x", "args": ["a\0b"]}, ["args"]),
        ({"command": "x", "env": {"A": "\ud83d"}}, ["env"]),
    ],
    ids=repr,
)
def test_what_is_not_clear_is_refused_with_the_keys_that_were_found(entry: object, keys: list[str]) -> None:
    found = reason(entry)

    assert all(key in found for key in keys)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*(each for spellings in KEYS.values() for each in spellings), "enabled", "Disabled", "status"])


@given(st.dictionaries(keys, json_values, max_size=6))
def test_every_entry_is_used_switched_off_or_refused_by_its_name(entry: dict[str, Any]) -> None:
    found = config(entry)

    assert len(found.targets) + len(found.switched_off) + len(found.problems) == 1
    assert all("pydantic" not in problem.reason and problem.name == "s" for problem in found.problems)


# --- imports ---

OFF_IN_A_CLIENT = {
    ".cursor/mcp.json": {"mcpServers": {"s": {**PROGRAM, "enabled": "false"}}},
    ".gemini/settings.json": {"mcpServers": {"s": {"httpUrl": URL, "isActive": 0}}},
    ".config/opencode/opencode.json": {"mcp": {"s": {"type": "local", "command": ["x"], "enabled": False}}},
    ".config/zed/settings.json": {"context_servers": {"s": {"command": "x", "Enabled": False}}},
    ".codeium/windsurf/mcp_config.json": {"mcpServers": {"s": {"serverUrl": URL, "status": "disabled"}}},
    ".lmstudio/mcp.json": {"mcpServers": {"s": {"command": "x", "disabled": "yes"}}},
}


@pytest.mark.parametrize("path", OFF_IN_A_CLIENT)
def test_an_import_leaves_out_and_counts_what_a_client_has_switched_off(home: Path, write: Write, path: str) -> None:
    write(path, json.dumps(OFF_IN_A_CLIENT[path]))

    plan = json.loads(run("import", "--apply", "--json").stdout)

    assert [entry["kind"] for entry in plan["left_out"]] == ["switched_off"]
    assert not (home / "data" / "mcp.json").exists()
    assert "switched off: 1" in run("import").output


def test_a_server_that_the_operator_switched_off_stays_off_when_an_import_replaces_it(home: Path, write: Write) -> None:
    own = {"command": "old", "isActive": False, "groups": ["office"]}
    write("data/mcp.json", json.dumps({"mcpServers": {"s": own}}))
    write(".cursor/mcp.json", json.dumps({"mcpServers": {"s": {"command": "new"}}}))

    run("import", "--apply", "--on-conflict", "replace")

    entry = json.loads((home / "data" / "mcp.json").read_text())["mcpServers"]["s"]
    assert entry == {"command": "new", "isActive": False, "groups": ["office"]}


# --- one server under two names ---

PRESENT = {
    "docs": {"serverUrl": URL, "transport": "streamable_http"},
    "files": {"cmd": "npx", "args": ["files", 8080], "env": None},
    "mail": {"url": "https://mail.example/mcp", "groups": ["office"]},
}


@pytest.mark.parametrize(
    ("arguments", "known_as"),
    [
        (["--url", URL], "docs"),
        (["--", "npx", "files", "8080"], "files"),
        (["--url", "https://mail.example/mcp", "--group", "office"], "mail"),
    ],
)
def test_a_server_is_not_added_again_under_another_name(
    home: Path, write: Write, arguments: list[str], known_as: str
) -> None:
    write("data/mcp.json", before := json.dumps({"mcpServers": PRESENT}))

    done = run("add", "again", *arguments)

    assert known_as in done.output
    assert (home / "data" / "mcp.json").read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", f"{URL}/two"],
        ["--url", URL, "--header", "Authorization=Bearer ${OTHER_ACCOUNT}"],
        ["--", "npx", "files", "8081"],
        ["--env", "ROOT=/srv", "--", "npx", "files", "8080"],
        ["--url", "https://mail.example/mcp", "--group", "sales"],
    ],
)
def test_another_server_or_one_for_other_callers_is_added(home: Path, write: Write, arguments: list[str]) -> None:
    write("data/mcp.json", json.dumps({"mcpServers": PRESENT}))

    run("add", "again", *arguments)

    assert "again" in json.loads((home / "data" / "mcp.json").read_text())["mcpServers"]


def test_an_import_names_the_server_that_two_clients_have_under_two_names(home: Path, write: Write) -> None:
    write(".cursor/mcp.json", json.dumps({"mcpServers": {"github": {"url": URL}}}))
    write(".codeium/windsurf/mcp_config.json", json.dumps({"mcpServers": {"gh": {"serverUrl": URL}}}))

    plan = json.loads(run("import", "--apply", "--json").stdout)

    assert [(each["found_as"], each["name"], each["became"]) for each in plan["servers"]] == [
        ("github", "github", "added"),
        ("gh", "github", "there_already"),
    ]
    assert list(json.loads((home / "data" / "mcp.json").read_text())["mcpServers"]) == ["github"]
