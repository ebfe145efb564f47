"""For any definitions: changes stay within their bounds, equal definitions have none, and kinds are symmetric."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.catalog import DefinitionChange, ToolDefinition
from shared.catalog.drift import MAX_CHANGES, MAX_CHANGES_BYTES, bounded
from shared.index.records import changes_from, changes_payload
from tests.property.test_changed_definitions import reordered, texts, tools
from tests.support.builders import definition, write_path
from tests.support.profiles import examples
from tests.unit.workers.test_changes import offer
from workers.indexing.drift import changed_parts

digests = st.none() | st.sampled_from(("a" * 32, "b" * 32))
changes = st.lists(
    st.builds(
        DefinitionChange,
        tool=st.text(max_size=20).map(lambda text: text * 50),
        at=st.integers(0, 5).map(float),
        before=digests,
        after=digests,
        parts=st.lists(st.text(max_size=80), max_size=13).map(tuple),
        diff=st.text(max_size=60).map(lambda text: text * 200),
    ),
    max_size=20,
).map(lambda few: few * 8)


@settings(max_examples=examples(100))
@given(changes)
def test_the_stored_changes_stay_within_their_bounds_and_drop_cosmetic_and_old_ones_first(
    found: list[DefinitionChange],
) -> None:
    kept = bounded(found)

    assert len(kept) <= MAX_CHANGES
    assert [change.at for change in kept] == sorted((change.at for change in kept), reverse=True)
    payload = changes_payload("s", kept) if kept else {"changes": "", "diffs": ""}
    assert len(payload["changes"]) + len(payload["diffs"]) <= MAX_CHANGES_BYTES
    ranks = sorted((change.rank for change in found), reverse=True)
    assert sorted((change.rank for change in kept), reverse=True) == ranks[: len(kept)]
    if kept:
        assert changes_from(payload) == kept


@settings(max_examples=examples(100))
@given(one=tools, other=tools, data=st.data())
def test_the_changed_parts_are_symmetric_and_ignore_the_order_of_keys(
    one: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    assert changed_parts(one, reordered(one, data)) == ()
    assert changed_parts(one, reordered(other, data)) == changed_parts(other, one)
    assert bool(changed_parts(one, other)) == (json_of(one) != json_of(other))


def recorded(*listings: dict[str, Any]) -> list[DefinitionChange]:
    """Return the changes of a server that lists each of these tools in turn, the oldest first."""
    with tempfile.TemporaryDirectory() as directory:
        path = write_path(Path(directory))
        with closing(path.deps.intents):
            offer(path, definition("other"))
            for tool in listings:
                offer(path, definition("other"), ToolDefinition.from_wire(json.dumps(tool)))
            return list(reversed(path.index.changes("s")))


@settings(max_examples=examples(40), deadline=None)
@given(one=tools, other=tools, title=texts, data=st.data())
def test_equal_definitions_are_no_change_and_a_change_back_is_of_the_same_kind(
    one: dict[str, Any], other: dict[str, Any], title: str, data: st.DataObject
) -> None:
    first, *others = recorded(one, reordered(one, data), other, one, {**one, "title": title})

    assert first.kind == "added"
    retitled = others
    if json_of(one) != json_of(other):
        to_other, back, *retitled = others
        assert (to_other.kind, to_other.parts) == (back.kind, back.parts)
        assert (to_other.before, to_other.after) == (back.after, back.before) == (first.after, back.before)
    assert [change.kind for change in retitled] == (["cosmetic"] if one.get("title") != title else [])


def json_of(tool: dict[str, Any]) -> str:
    return json.dumps(tool, sort_keys=True)
