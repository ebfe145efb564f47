from __future__ import annotations

from dataclasses import replace

import pytest

from shared.catalog import Encoding, Scope, ToolDefinition
from shared.index.contract import IndexVersion
from shared.index.payload import matches_nothing, scope_conditions, tool_from, tool_payload
from shared.index.points import AnyOf, Is, NoneOf
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
    assert scope_conditions(Scope()) == [Is("status", "running")]
    assert scope_conditions(Scope(groups=frozenset({"b", "a"}), servers=frozenset({"s"}), status="stopped")) == [
        Is("status", "stopped"),
        AnyOf("groups", ("a", "b")),
        AnyOf("server_id", ("s",)),
    ]


def test_the_servers_of_repeated_searches_are_sorted_once() -> None:
    scopes = [Scope(servers=frozenset({"b", "a"}), hidden=frozenset({"d", "c"})) for _ in range(2)]

    (_, any_of, none_of), (_, any_of_again, none_of_again) = map(scope_conditions, scopes)

    assert (any_of, none_of) == (AnyOf("server_id", ("a", "b")), NoneOf("server_id", ("c", "d")))
    assert isinstance(any_of, AnyOf)
    assert isinstance(any_of_again, AnyOf)
    assert any_of.values is any_of_again.values
    assert isinstance(none_of, NoneOf)
    assert isinstance(none_of_again, NoneOf)
    assert none_of.values is none_of_again.values


def test_another_model_or_dimension_is_another_collection() -> None:
    names = {IndexVersion(model, size).name for model, size in (("a/b", 384), ("a/c", 384), ("a/b", 768))}

    assert len(names) == 3
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)
