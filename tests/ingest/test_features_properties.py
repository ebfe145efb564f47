"""For any fleet in any order, what is reused is what counting and embedding afresh would give."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.catalog import FORMS, EmbeddedTool, Listing
from tests.support.builders import definition, up, write_path
from tests.support.profiles import examples
from workers.ingest import reconcile

# few names and texts, so that servers share some definitions and differ in others
definitions = st.builds(
    definition,
    st.sampled_from(["read_file", "read-file", "search", "x"]),
    st.sampled_from(["", "does something", "does something else"]),
)
listings = st.builds(
    Listing,
    declared_name=st.sampled_from(["", "files", "files two"]),
    protocol_version=st.just("2026-07-28"),
    tools=st.lists(definitions, max_size=4, unique_by=lambda tool: tool.name).map(tuple),
)
looks = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), listings), min_size=1, max_size=8)


@settings(max_examples=examples(80))
@given(looks=looks)
def test_reuse_gives_the_points_that_a_fresh_start_gives(looks: list[tuple[str, Listing]]) -> None:
    latest = dict(looks)

    together = _points(looks)
    alone = [point for look in latest.items() for point in _points([look]).values()]

    assert _comparable(list(together.values())) == _comparable(alone)


@settings(max_examples=examples(80))
@given(looks=looks)
def test_a_definition_that_is_in_the_index_is_neither_counted_nor_embedded_again(
    looks: list[tuple[str, Listing]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, indexed = write_path(Path(directory)), set[str]()
        for server_id, listed in looks:
            counted, embedded = len(path.counted.texts), len(path.embedder.embedded_texts)

            path.world.servers[server_id] = listed
            path.deps.intents.record(up(server_id), due_in_s=60)
            reconcile(server_id, path.deps)

            before, indexed = indexed, {point.tool.digest for point in path.index.points().values()}
            new = len(indexed - before)
            assert len(path.counted.texts) - counted == new * len(FORMS)
            assert bool(new) <= len(path.embedder.embedded_texts) - embedded <= 2 * new
        path.deps.intents.close()


def _points(looks: list[tuple[str, Listing]]) -> dict[str, EmbeddedTool]:
    with tempfile.TemporaryDirectory() as directory:
        path = write_path(Path(directory))
        for server_id, listed in looks:
            path.world.servers[server_id] = listed
            path.deps.intents.record(up(server_id), due_in_s=60)
            reconcile(server_id, path.deps)
        path.deps.intents.close()
    return path.index.points()


def _comparable(points: list[EmbeddedTool]) -> dict[str, tuple[object, ...]]:
    return {
        point.tool.qualified_name: (
            replace(point.tool, changed_since=None),  # a fresh start has no changes
            point.vectors.name.tobytes(),
            point.vectors.text.tobytes(),
            point.vectors.terms,
        )
        for point in points
    }
