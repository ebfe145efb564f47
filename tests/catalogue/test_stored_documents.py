"""Documents that a newer release stored: its fields are ignored, and what cannot be read is left out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from shared.catalog import Endpoint, RejectedTool, ServerRecord
from shared.events import ServerAnnouncement
from shared.index.points import Point
from shared.index.records import server_from, server_payload, toolset_from, toolset_payload
from shared.intents.intent import Intent, readable_intent
from shared.toolset import Toolset
from shared.upstream.followed_config import FileFollowedConfig, FollowedConfig
from shared.upstream.mcp_json import EntryProblem
from tests.support.fakes import DIMENSION
from tests.support.indexes import open_edge

RECORD = ServerRecord(
    server_id="files",
    endpoint=Endpoint(url="http://files.example/mcp"),
    rejected=(RejectedTool(name="bad", reason="no schema"),),
    revision=3,
)
TOOLSET = Toolset(name="mail", tools=("files:read",))
ANNOUNCEMENT = ServerAnnouncement(server_id="files", url="http://files.example/mcp")
INTENT = Intent(server_id="files", status="running", announcement=ANNOUNCEMENT, source="test", desired=1)


def newer(document: Any) -> Any:
    """Return the document with an unknown field in every object with other fields."""
    match document:
        case {} if document:
            known = cast("dict[str, Any]", document)
            return {key: newer(value) for key, value in known.items()} | {"addedLater": {"x": 1}}
        case [*_]:
            return [newer(part) for part in cast("list[Any]", document)]
        case _:
            return document


def of_record(change: Callable[[Any], Any]) -> object:
    payload = server_payload(RECORD)
    return server_from({**payload, "record": json.dumps(change(json.loads(payload["record"])))})


def of_toolset(change: Callable[[Any], Any]) -> object:
    payload = toolset_payload(TOOLSET)
    return toolset_from({**payload, "toolset": json.dumps(change(json.loads(payload["toolset"])))})


def of_intent(change: Callable[[Any], Any]) -> object:
    return readable_intent("files", json.dumps(change(json.loads(INTENT.model_dump_json()))))


DOCUMENTS = {of_record: RECORD, of_toolset: TOOLSET, of_intent: INTENT}


@pytest.mark.parametrize(("read", "written"), DOCUMENTS.items())
def test_a_document_has_a_version_and_the_release_before_had_none(
    read: Callable[[Callable[[Any], Any]], object], written: object
) -> None:
    versions: list[object] = []

    def without_version(document: Any) -> Any:
        versions.append(document.pop("version"))
        return document

    assert read(without_version) == written
    assert versions == [1]


@pytest.mark.parametrize("read", DOCUMENTS)
def test_a_document_of_an_incompatible_version_is_logged_and_left_out(
    read: Callable[[Callable[[Any], Any]], object],
) -> None:
    with capture_logs() as lines:
        assert read(lambda document: document | {"version": 2}) is None

    assert "version" in lines[0]["reason"]


@pytest.mark.parametrize(("read", "written"), DOCUMENTS.items())
def test_fields_of_a_newer_release_are_ignored(read: Callable[[Callable[[Any], Any]], object], written: object) -> None:
    assert read(newer) == written


@pytest.mark.parametrize("read", DOCUMENTS)
def test_a_document_that_cannot_be_read_is_logged_and_left_out(
    read: Callable[[Callable[[Any], Any]], object],
) -> None:
    with capture_logs() as lines:
        assert read(lambda _: {"another": "document"}) is None

    assert [line["event"] for line in lines] in (["record_unreadable"], ["intent_unreadable"])


def test_the_followed_config_of_a_newer_release_is_read(tmp_path: Path) -> None:
    store = FileFollowedConfig(tmp_path / "followed.json")
    state = FollowedConfig(path="mcp.json", servers=1, left_out=(EntryProblem(name="a", reason="no command"),))
    store.put(state)
    path = tmp_path / "followed.json"
    path.write_text(json.dumps(newer(json.loads(path.read_text()))))

    assert store.get() == state


def test_an_index_with_an_unreadable_record_answers_with_the_others(tmp_path: Path) -> None:
    unreadable = Point(str(uuid.uuid4()), {"server_id": "x", "revision": 9, "record": "{}"})
    with closing(open_edge(tmp_path, "tools", DIMENSION)) as index:
        index.put_server(RECORD)
        index._servers.upsert([unreadable])  # pyright: ignore[reportPrivateUsage]

        assert index.servers() == [RECORD]


def test_changes_of_definitions_that_an_earlier_release_stored_are_no_records(tmp_path: Path) -> None:
    stored = {"server_id": "old", "changed_at": 1_780_000_000, "changes": '{"changes": []}', "diffs": "[]"}
    with closing(open_edge(tmp_path, "tools", DIMENSION)) as index:
        index.put_server(RECORD)
        index._servers.upsert([Point(str(uuid.uuid4()), stored)])  # pyright: ignore[reportPrivateUsage]

        assert index.servers() == [RECORD]
        assert index.revisions() == {RECORD.server_id: RECORD.revision}
