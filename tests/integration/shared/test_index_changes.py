"""The stored changes of definitions, in every index: they are replaced whole, and outlive tools and models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shared.catalog import DefinitionChange, Endpoint, ServerRecord
from shared.index.edge import EdgeEngine
from shared.index.tools import ToolIndex
from shared.index.versions import IndexStore, IndexVersion
from tests.support.index_engines import ENGINES, opened

ADDED = DefinitionChange(tool="log", at=30.5, after="a" * 32)
CHANGED = DefinitionChange(
    tool="log", at=20.25, before="b" * 32, after="a" * 32, parts=("description", "inputSchema.ü"), diff="-old\n+néw"
)
GONE = DefinitionChange(tool="show", at=10, before="c" * 32)


@pytest.fixture(params=ENGINES)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolIndex]:
    with opened(str(request.param), tmp_path) as index:
        yield index


def test_the_changes_of_a_server_come_back_whole_and_in_order(index: ToolIndex) -> None:
    index.put_changes("git", (ADDED, CHANGED, GONE))

    assert list(index.changes("git")) == [ADDED, CHANGED, GONE]
    assert list(index.changes("other")) == []


def test_changes_are_replaced_by_the_next_ones_and_deleted_without_any(index: ToolIndex) -> None:
    index.put_changes("git", (CHANGED, GONE))
    index.put_changes("git", (ADDED,))
    replaced = list(index.changes("git"))
    index.put_changes("git", ())
    index.put_changes("unknown", ())

    assert replaced == [ADDED]
    assert list(index.changes("git")) == []
    assert index.recent_changes(0) == {}


def test_recent_changes_are_those_after_a_time_without_their_diffs(index: ToolIndex) -> None:
    index.put_changes("git", (ADDED, CHANGED, GONE))
    index.put_changes("old", (GONE,))

    assert [index.changed_servers(time_s) for time_s in (0, 10.5, 30.4, 31)] == [{"git", "old"}] * 2 + [{"git"}, set()]
    assert _listed(index, 0) == {"git": [ADDED, CHANGED.without_diff, GONE], "old": [GONE]}
    assert _listed(index, 10) == {"git": [ADDED, CHANGED.without_diff]}
    assert _listed(index, 20.25) == {"git": [ADDED]}
    assert _listed(index, 30.4) == {"git": [ADDED]}
    assert _listed(index, 30.5) == {}


def test_readers_of_records_do_not_meet_changes(index: ToolIndex) -> None:
    index.put_server(ServerRecord(server_id="git", endpoint=Endpoint(), revision=1))
    index.put_changes("git", (CHANGED,))
    index.put_changes("without a record", (CHANGED,))

    assert [record.server_id for record in index.servers()] == ["git"]
    assert index.revisions() == {"git": 1}


def test_changes_outlive_a_change_of_the_model(tmp_path: Path) -> None:
    first, second = IndexVersion("first", 64), IndexVersion("second", 32)
    with closing(IndexStore(EdgeEngine(tmp_path))) as store:
        store.ensure_active_version(first)
        store.index(first).put_changes("git", (CHANGED,))
        store.request_version(second)
        store.activate(second)
        assert store.drop_retired(-1) == [first.name]

        assert list(store.index(second).changes("git")) == [CHANGED]


def _listed(index: ToolIndex, newer_than: float) -> dict[str, list[DefinitionChange]]:
    return {server_id: list(changes) for server_id, changes in index.recent_changes(newer_than).items()}
