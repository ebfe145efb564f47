from __future__ import annotations

from dataclasses import replace

import pytest

from shared.catalog import Encoding, Scope, ToolDefinition
from shared.index.tools import matches_nothing, scope_filter, tool_from, tool_payload
from shared.index.versions import IndexVersion
from tests.support.fakes import make_tool


def test_a_count_that_failed_has_no_key_and_stays_absent() -> None:
    counts: dict[Encoding, int] = {"o200k_base": 0}
    tool = make_tool(tokens=counts)

    payload = tool_payload(tool)

    assert payload["token_count_o200k"] == 0
    assert not {"token_count", "token_estimate"} & payload.keys()
    assert tool_from(payload) == tool


def test_no_stored_text_holds_a_lone_surrogate_and_the_document_stays_the_same() -> None:
    wire = '{"name": "t", "description": "\ud83d kept \\\\ and \udfff"}'
    tool = replace(make_tool(), definition=ToolDefinition.from_wire(wire))

    payload = tool_payload(tool)

    assert payload["definition"].encode("utf-8")
    assert tool_from(payload).definition.as_object() == tool.definition.as_object()


@pytest.mark.parametrize(
    ("scope", "nothing"),
    [
        (Scope(), False),
        (Scope(groups=frozenset()), True),
        (Scope(servers=frozenset()), True),
        (Scope(groups=frozenset({"a"}), servers=frozenset()), True),
        (Scope(groups=frozenset({"a"})), False),
    ],
)
def test_only_an_empty_set_matches_nothing(scope: Scope, nothing: bool) -> None:
    assert matches_nothing(scope) is nothing


def test_a_scope_asks_for_its_status_and_only_for_what_it_restricts() -> None:
    assert scope_filter(Scope()) == {"must": [{"key": "status", "match": {"value": "running"}}]}
    assert scope_filter(Scope(groups=frozenset({"b", "a"}), servers=frozenset({"s"}), status="stopped")) == {
        "must": [
            {"key": "status", "match": {"value": "stopped"}},
            {"key": "groups", "match": {"any": ("a", "b")}},
            {"key": "server_id", "match": {"any": ("s",)}},
        ]
    }
    assert scope_filter(Scope(status=None)) == {}


def test_the_servers_of_repeated_searches_are_sorted_once() -> None:
    scopes = [Scope(servers=frozenset({"b", "a"}), hidden=frozenset({"d", "c"})) for _ in range(2)]

    first, again = map(scope_filter, scopes)

    for where, expected in ((first["must"][1], ("a", "b")), (first["must_not"][0], ("c", "d"))):
        assert (where["key"], where["match"]["any"]) == ("server_id", expected)
    assert first["must"][1]["match"]["any"] is again["must"][1]["match"]["any"]
    assert first["must_not"][0]["match"]["any"] is again["must_not"][0]["match"]["any"]


def test_another_model_or_dimension_is_another_collection() -> None:
    names = {IndexVersion(model, size).name for model, size in (("a/b", 384), ("a/c", 384), ("a/b", 768))}

    assert len(names) == 3
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)
