"""The options of a server: from its entry, or from the rules of the policy file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from query.policy import policy_reader
from shared.errors import ConfigInvalid
from shared.settings import load_settings
from shared.upstream.mcp_json import read_config
from shared.upstream.options import ServerOptions
from shared.upstream.server_rules import ReadOptions, options_reader

RULES = """
[[rules]]
tools = ["delete_*"]
action = "deny"

[[servers]]
servers = ["mail-eu"]
timeout = 5000

[[servers]]
servers = ["mail-*"]
labels = { team = "sales*" }
excludeTools = ["delete_*"]
includeTools = ["read_mail", "delete_mail"]
timeout = 30
stateful = true
"""


def entry_options(tmp_path: Path, **keys: object) -> ServerOptions | str:
    """Return the options of an entry with these keys, or the reason why it is refused."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"mail": {"command": "mail", **keys}}}), encoding="utf-8")
    config = read_config(path, {})
    return config.options["mail"] if config.options else config.problems[0].reason


def reader(tmp_path: Path, rules: str, servers: dict[str, Any] | None = None) -> ReadOptions:
    policy, config = tmp_path / "policy.toml", tmp_path / "mcp.json"
    policy.write_text(rules, encoding="utf-8")
    config.write_text(json.dumps({"mcpServers": servers or {}}), encoding="utf-8")
    return options_reader(load_settings(policy_file=policy, mcp_config=config), {})


@pytest.mark.parametrize(
    ("keys", "timeout_s"),
    [
        ({"timeout": 600_000}, 600),
        ({"timeout": 60}, 60),
        ({"timeout": "90000"}, 90),
        ({"tool_timeout": 45}, 45),
        ({"toolTimeout": 45}, 45),
        ({"tool_timeout_sec": 2_160}, 2_160),
        ({"timeout": 100_000_000}, 3_600),
        ({}, None),
    ],
)
def test_the_timeout_of_an_entry_is_read_in_the_unit_of_its_client(
    tmp_path: Path, keys: dict[str, object], timeout_s: float | None
) -> None:
    assert entry_options(tmp_path, **keys) == ServerOptions(timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("keys", "offered"),
    [
        ({}, {"read", "write", "write[1]"}),
        ({"includeTools": ["read"]}, {"read"}),
        ({"includeTools": []}, set[str]()),
        ({"excludeTools": ["write*"]}, {"read"}),
        ({"excludeTools": ["write[1]"]}, {"read", "write"}),
        ({"includeTools": ["*"], "excludeTools": ["read"]}, {"write", "write[1]"}),
    ],
)
def test_an_entry_offers_the_tools_that_it_includes_and_does_not_exclude(
    tmp_path: Path, keys: dict[str, object], offered: set[str]
) -> None:
    options = entry_options(tmp_path, **keys)

    assert isinstance(options, ServerOptions)
    assert {tool for tool in ("read", "write", "write[1]") if options.offers(tool)} == offered


@pytest.mark.parametrize(
    "keys",
    [
        {"includeTools": "read"},
        {"excludeTools": [7]},
        {"timeout": 0},
        {"timeout": "soon"},
        {"labels": {"stateful": "yes"}},
    ],
)
def test_an_entry_with_an_invalid_option_is_refused_by_the_name_of_the_key(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    reason = entry_options(tmp_path, **keys)

    assert isinstance(reason, str)
    assert reason.startswith(next(iter(keys)))


def test_the_label_of_an_entry_declares_its_server_stateful(tmp_path: Path) -> None:
    assert entry_options(tmp_path, labels={"stateful": "true"}) == ServerOptions(is_stateful=True)
    assert entry_options(tmp_path, labels={"stateful": "false"}) == ServerOptions()


def test_the_first_rule_whose_conditions_hold_decides_alone(tmp_path: Path) -> None:
    read = reader(tmp_path, RULES)
    of_sales = ServerOptions(("read_mail", "delete_mail"), ("delete_*",), 30, is_stateful=True)

    assert read("mail-eu", {"team": "sales"}) == ServerOptions(timeout_s=5)
    assert read("mail-us", {"team": "sales-2"}) == of_sales
    assert read("mail-us", {"team": "support"}) == read("mail-us", {}) == ServerOptions()


def test_an_entry_is_not_merged_with_the_rules(tmp_path: Path) -> None:
    read = reader(tmp_path, RULES, {"mail-eu": {"command": "mail", "excludeTools": ["send"]}})

    assert read("mail-eu", {}) == ServerOptions(exclude_tools=("send",))


def test_a_label_of_an_event_sets_no_option(tmp_path: Path) -> None:
    assert reader(tmp_path, RULES)("git", {"stateful": "true", "timeout": "1"}) == ServerOptions()


def test_both_files_are_read_again_and_an_entry_in_error_keeps_its_options(tmp_path: Path) -> None:
    read = reader(tmp_path, RULES, {"git": {"command": "git", "excludeTools": ["push"]}})
    assert read("git", {}) == ServerOptions(exclude_tools=("push",))

    (tmp_path / "mcp.json").write_text('{"mcpServers": {"git": {"command": "git", "excludeTools": "all"}}}')
    (tmp_path / "policy.toml").write_text('[[servers]]\nexcludeTools = ["*"]\n')

    assert read("git", {}) == ServerOptions(exclude_tools=("push",))
    assert read("mail-eu", {}) == ServerOptions(exclude_tools=("*",))
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert read("git", {}) == ServerOptions(exclude_tools=("*",))


def test_the_rules_of_calls_are_read_from_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(RULES, encoding="utf-8")

    assert [rule.action for rule in policy_reader(load_settings(policy_file=path))().rules] == ["deny"]


@pytest.mark.parametrize(
    "rules",
    [
        '[[server]]\nexcludeTools = ["*"]\n',
        '[[servers]]\nexcludedTools = ["*"]\n',
        "[[servers]]\nservers = []\n",
        "[[servers]]\nlabels = {}\n",
    ],
)
def test_a_policy_file_with_a_misspelt_or_an_empty_table_is_refused_by_both_sides(tmp_path: Path, rules: str) -> None:
    with pytest.raises(ConfigInvalid, match="server"):
        reader(tmp_path, rules)
    with pytest.raises(ConfigInvalid, match="server"):
        policy_reader(load_settings(policy_file=tmp_path / "policy.toml"))
