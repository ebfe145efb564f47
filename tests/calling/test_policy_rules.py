"""The rules of a policy file: which one decides, and which files are invalid."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from query.caller import Caller
from query.policy import Action, Policy, policy_reader, read_policy
from shared.catalog import Annotation, ToolDefinition, annotations_of
from shared.errors import ConfigInvalid
from shared.settings import load_settings
from tests.support.policies import rule

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
ANN, BOB, ALL = Caller("ann", frozenset({"mail"})), Caller("bob", frozenset({"web"})), Caller("root")


def definition(name: str = "send", **hints: Any) -> ToolDefinition:
    return ToolDefinition.from_wire(json.dumps({"name": name, "inputSchema": {}, "annotations": hints}))


def action(rules: str, caller: Caller = ANN, server: str = "mail", tool: ToolDefinition | None = None) -> Action:
    return policy(rules).of(caller).action(server, tool or definition())


def policy(rules: str) -> Policy:
    return Policy.model_validate(tomllib.loads(rules))


@pytest.mark.parametrize(
    ("conditions", "denied"),
    [
        ({"callers": ["ann"]}, {"ann"}),
        ({"callers": ["a*", "root"]}, {"ann", "root"}),
        ({"groups": ["mail"]}, {"ann"}),
        ({"groups": ["mail", "web"]}, {"ann", "bob"}),
        # of callers that see everything, and of no others
        ({"groups": ["*"]}, {"root"}),
        ({"callers": ["ann"], "groups": ["web"]}, set[str]()),
        ({"callers": ["ANN"]}, set[str]()),
    ],
)
def test_a_rule_is_for_the_callers_and_groups_that_it_names(conditions: dict[str, list[str]], denied: set[str]) -> None:
    assert {caller.name for caller in (ANN, BOB, ALL) if action(rule("deny", **conditions), caller) == "deny"} == denied


def test_a_group_named_like_the_sign_for_everything_is_no_group_of_callers_that_see_everything() -> None:
    starred = Caller("eve", frozenset({"*", "web"}))

    assert action(rule("allow", groups=["*"]) + rule("deny"), starred) == "deny"
    assert action(rule("allow", groups=["web"]) + rule("deny"), starred) == "allow"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"servers": ["m*"]}, "deny"),
        ({"servers": ["M*"]}, "allow"),
        ({"tools": ["s?nd", "x"]}, "deny"),
        # patterns are of the whole name
        ({"tools": ["sen"]}, "allow"),
        ({"tools": ["mail:send"]}, "allow"),
        ({"servers": ["mail"], "tools": ["drop"]}, "allow"),
    ],
)
def test_servers_and_tools_are_patterns_of_the_whole_name(conditions: dict[str, list[str]], expected: str) -> None:
    assert action(rule("deny", **conditions)) == expected


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, {"not_read_only", "destructive", "not_idempotent", "open_world"}),
        ({"readOnlyHint": True}, {"read_only", "not_destructive", "not_idempotent", "open_world"}),
        ({"readOnlyHint": "true"}, {"not_read_only", "destructive", "not_idempotent", "open_world"}),
        ({"destructiveHint": False}, {"not_read_only", "not_destructive", "not_idempotent", "open_world"}),
        ({"destructiveHint": 0}, {"not_read_only", "destructive", "not_idempotent", "open_world"}),
        (
            {"readOnlyHint": True, "destructiveHint": True},
            {"read_only", "destructive", "not_idempotent", "open_world"},
        ),
        (
            {"idempotentHint": True, "openWorldHint": False},
            {"not_read_only", "destructive", "idempotent", "closed_world"},
        ),
    ],
)
def test_absent_and_invalid_hints_have_the_defaults_of_the_specification(
    hints: dict[str, Any], expected: set[Annotation]
) -> None:
    assert annotations_of(definition(**hints)) == expected


def test_annotations_that_are_no_object_count_as_absent() -> None:
    tool = ToolDefinition.from_wire('{"name": "send", "annotations": "none"}')

    assert annotations_of(tool) == annotations_of(definition())


@given(st.dictionaries(st.sampled_from(HINTS), st.none() | st.booleans() | st.integers() | st.text()))
def test_each_hint_or_its_opposite_holds(hints: dict[str, Any]) -> None:
    pairs = [
        ("read_only", "not_read_only"), ("destructive", "not_destructive"), ("idempotent", "not_idempotent"),
        ("open_world", "closed_world"),
    ]  # fmt: skip
    held = annotations_of(definition(**hints))

    assert all(len(held & set(pair)) == 1 for pair in pairs)
    assert len(held) == len(pairs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[[rules]]\n", "rules.0.action: missing"),
        (b'[[rules]]\naction = "forbid"\n', "rules.0.action: expected 'allow', 'ask' or 'deny'"),
        (b'[[rule]]\naction = "deny"\n', "rule: unknown; check its spelling"),
        (b'[[rules]]\ncaller = ["ann"]\naction = "deny"\n', "rules.0.caller: unknown; check its spelling"),
        (b'[[rules]]\ncallers = []\naction = "deny"\n', "rules.0.callers: expected 1 or more elements"),
        (b'[[rules]]\ncallers = "ann"\naction = "deny"\n', "rules.0.callers: expected a list"),
        (b'[[rules]]\nannotations = ["readOnlyHint"]\naction = "deny"\n', "rules.0.annotations.0: expected"),
        (b"[[rules\n", "expected TOML in UTF-8"),
        (b"\xff", "expected TOML in UTF-8"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(content)

    with pytest.raises(ConfigInvalid) as refused:
        read_policy(path)

    assert str(refused.value).startswith(f"{path}: {reason}")


def test_the_file_is_read_again_and_its_last_good_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(rule(), encoding="utf-8")
    read = policy_reader(load_settings(policy_file=path))

    def now() -> Action:
        return read().of(ANN).action("mail", definition())

    assert now() == "deny"
    path.write_text("[[rules", encoding="utf-8")
    with structlog.testing.capture_logs() as lines:
        assert now() == "deny"
    path.unlink()
    assert now() == "deny"
    path.write_text(rule("ask"), encoding="utf-8")
    assert now() == "ask"
    assert [line["event"] for line in lines] == ["access_file_not_read"]


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        policy_reader(load_settings(policy_file=tmp_path / "none.toml"))


def test_callers_that_the_policy_does_not_distinguish_have_equal_rules() -> None:
    rules = policy(rule(callers=["a*"]) + rule("ask"))

    assert rules.of(ANN) == rules.of(Caller("amy"))
    assert hash(rules.of(ANN)) == hash(rules.of(Caller("amy")))
    assert rules.of(ANN) != rules.of(BOB)
