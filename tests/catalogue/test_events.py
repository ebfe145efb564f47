from __future__ import annotations

import json
from typing import Any

import pytest

from shared.errors import EventInvalid
from shared.events import ServerChanged, ServerDown, ServerUp, parse_event


def document(kind: str = "up", **data: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "1",
        "source": "test",
        "type": f"dev.toolscale.server.{kind}",
        "data": {"server_id": "s", **data},
    }


def test_a_server_up_event_says_where_the_server_listens_and_who_may_see_it() -> None:
    event = parse_event(document(url="http://127.0.0.1:1/mcp", groups=["dev"], credential_ref="github"))

    assert isinstance(event, ServerUp)
    assert event.data.endpoint.url == "http://127.0.0.1:1/mcp"
    assert event.data.endpoint.credential_ref == "github"
    assert event.data.groups == {"dev"}


@pytest.mark.parametrize(("kind", "expected"), [("down", ServerDown), ("changed", ServerChanged)])
def test_down_and_changed_name_the_server_alone(kind: str, expected: type) -> None:
    assert isinstance(parse_event(json.dumps(document(kind))), expected)


def test_an_event_reads_the_same_after_a_round_trip_as_json() -> None:
    event = parse_event(document(url="https://example.org/mcp", labels={"team": "a"}))

    assert parse_event(event.model_dump_json()) == event


def test_extension_attributes_are_accepted() -> None:
    assert parse_event({**document("down"), "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({**document("down"), "specversion": "0.3"}, "specversion"),
        ({**document("down"), "id": ""}, "id"),
        ({**document("down"), "type": "com.example.other"}, "event"),
        ({**document("down"), "time": "yesterday"}, "time"),
        ({key: value for key, value in document("down").items() if key != "id"}, "id"),
        ({key: value for key, value in document("down").items() if key != "data"}, "data"),
        (document("down", server_id=""), "data.server_id"),
        (document("down", server_id="a:b"), "data.server_id"),
        (document("down", server_id="x" * 201), "data.server_id"),
        (document("down", extra=1), "data.extra"),
        (document(url="ftp://host/x"), "data.url"),
        (document(url="https://user:secret@host/x"), "data.url"),
        (document(transport="stdio", url="http://127.0.0.1:1"), "data"),
        (document(), "data"),
        (document(transport="stdio", command="rm"), "data.command"),
        (document(url="http://h", credential_ref="../../etc/passwd"), "data.credential_ref"),
        (document(url="http://h", groups=["no spaces"]), "data.groups.0"),
        (document(url="http://h", groups=[f"g{number}" for number in range(65)]), "data.groups"),
        (document(url="http://h", labels={f"l{number}": "" for number in range(65)}), "data.labels"),
        ({**document("down"), "extension": "x" * 65_536}, "event"),
        ({**document("down"), "extension": {1, 2}}, "event"),
        (document("down", **{"\ud800": 1}), "data"),
        ({**document("down"), "type": "\ud800"}, "event"),
        ({**document("down"), "type": "x" * 60_000}, "event"),
    ],
)
def test_a_refused_event_names_the_field(broken: dict[str, Any], field: str) -> None:
    with pytest.raises(EventInvalid) as refused:
        parse_event(broken)

    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")
    assert len(str(refused.value).encode()) < 1000


@pytest.mark.parametrize("garbage", ["", "{", "[]", "null", '"up"', b"\xff\xfe", "{}" * 2, "[" * 60_000, " " * 65_537])
def test_what_is_not_a_json_object_is_refused(garbage: str | bytes) -> None:
    with pytest.raises(EventInvalid):
        parse_event(garbage)


def test_as_many_groups_and_labels_as_allowed_are_accepted() -> None:
    event = parse_event(
        document(
            url="http://h",
            groups=[f"g{number}" for number in range(64)],
            labels={f"l{number}": "x" * 200 for number in range(64)},
        )
    )

    assert isinstance(event, ServerUp)
    assert (len(event.data.groups), len(event.data.labels)) == (64, 64)
