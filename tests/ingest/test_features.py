"""What replicas share: definitions that one of them has counted and embedded cost the others nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from shared.catalog import FORMS, Encoding, ToolDefinition, digest
from shared.errors import IndexUnavailable, ModelUnavailable
from shared.text.tokens import Counter, estimate, model_text
from tests.support.builders import WritePath, definition, down, listing, up, write_path
from tests.support.fakes import WithoutModel, embedded, make_tool
from tests.support.waiting import eventually
from workers.dependencies import Dependencies
from workers.indexing.features import FeatureDependencies, compute_features
from workers.ingest import reconcile

TOOLS = (definition("read_file"), definition("write_file"))


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def bring_up(path: WritePath, server_id: str, *tools: ToolDefinition, declared_name: str = "scripted") -> None:
    path.world.servers[server_id] = listing(*tools, declared_name=declared_name)
    path.deps.intents.record(up(server_id), due_in_s=60)
    reconcile(server_id, path.deps)


def feature_dependencies(deps: Dependencies) -> FeatureDependencies:
    return FeatureDependencies(deps.index, deps.embedder, deps.counters, deps.computing, deps.feature_locks)


def by_digest(*tools: ToolDefinition) -> dict[str, ToolDefinition]:
    return {digest(tool, "scripted"): tool for tool in tools}


def test_a_replica_is_neither_counted_nor_embedded(path: WritePath) -> None:
    bring_up(path, "first", *TOOLS)
    counted, embedded_texts = list(path.counted.texts), list(path.embedder.embedded_texts)

    bring_up(path, "second", *TOOLS)

    assert path.tool_names("second") == {"read_file", "write_file"}
    assert path.counted.texts == counted
    assert path.embedder.embedded_texts == embedded_texts


def test_the_tools_of_a_server_that_is_down_spare_a_replica_the_work_as_well(path: WritePath) -> None:
    bring_up(path, "first", *TOOLS)
    path.deps.intents.record(down("first"), due_in_s=60)
    reconcile("first", path.deps)
    embedded_texts = len(path.embedder.embedded_texts)

    bring_up(path, "second", *TOOLS)

    assert len(path.embedder.embedded_texts) == embedded_texts


def test_a_replica_with_its_keys_in_another_order_keeps_its_text_and_has_its_own_counts(path: WritePath) -> None:
    wires = ['{"name":"read","description":"x","inputSchema":{"b":1,"a":2}}']
    wires.append('{"inputSchema":{"a":2,"b":1},"description":"x","name":"read"}')
    for server_id, wire in zip(("first", "second"), wires, strict=True):
        bring_up(path, server_id, ToolDefinition.from_wire(wire))

    first, second = (path.index.points()[f"{server_id}:read"].tool for server_id in ("first", "second"))
    assert (first.digest, first.definition.wire, second.definition.wire) == (second.digest, *wires)
    for tool in (first, second):
        assert tool.token_counts["cl100k_base"] == estimate(tool.definition.wire)
        assert tool.model_counts["cl100k_base"] == estimate(model_text(tool.definition))
    assert path.embedder.embedded_texts == ["scripted: read", "read: x"]


def test_what_was_made_by_another_recipe_is_made_again(path: WritePath) -> None:
    older = replace(make_tool("first", "a"), definition=definition("a"), digest="of an older recipe")
    path.index.upsert([embedded(older)])

    bring_up(path, "second", definition("a"))

    assert path.embedder.embedded_texts == ["scripted: a", "a: does something"]


def test_a_text_that_two_tools_share_is_embedded_once(path: WritePath) -> None:
    bring_up(path, "s", definition("read_file", "the same"), definition("read-file", "the same"))

    assert sorted(path.embedder.embedded_texts) == ["read file: the same", "scripted: read file"]


def test_a_count_that_failed_is_not_inherited_but_taken_again(tmp_path: Path) -> None:
    path = write_path(tmp_path, failing=frozenset({"cl100k_base"}))
    bring_up(path, "first", *TOOLS)
    mended: dict[Encoding, Counter] = {**path.deps.counters, "cl100k_base": estimate}
    path = replace(path, deps=replace(path.deps, counters=mended))
    embedded_texts = len(path.embedder.embedded_texts)

    bring_up(path, "second", *TOOLS)

    counts = {name: point.tool.token_counts for name, point in path.index.points().items()}
    assert "cl100k_base" not in counts["first:read_file"]
    assert counts["second:read_file"]["cl100k_base"] == estimate(TOOLS[0].wire)
    assert len(path.embedder.embedded_texts) == embedded_texts


def test_replicas_reconciled_at_once_wait_for_the_one_that_embeds(path: WritePath) -> None:
    embedding, may_end = threading.Event(), threading.Event()

    def slow_count(text: str) -> int:
        embedding.set()
        assert may_end.wait(60)
        return path.counted(text)

    slow = replace(path, deps=replace(path.deps, counters={**path.deps.counters, "cl100k_base": slow_count}))

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(bring_up, slow, "first", *TOOLS)
        assert embedding.wait(60)
        others = [pool.submit(bring_up, path, f"other_{i}", *TOOLS) for i in range(6)]
        bring_up(path, "different", definition("something_else"))  # which nobody has to wait for
        assert not any(each.done() for each in others)
        may_end.set()
        for each in (first, *others):
            each.result(timeout=60)

    assert len(path.embedder.embedded_texts) == 6
    assert len(path.counted.texts) == 3 * len(FORMS)


def test_counting_and_embedding_waits_for_its_turn_and_copying_does_not(path: WritePath) -> None:
    inside: list[str] = []

    class Gate:
        def __enter__(self) -> None:
            inside.append("in")

        def __exit__(self, *_: object) -> None:
            inside.append("out")

    def count(text: str) -> int:
        inside.append("count")
        return path.counted(text)

    counters: dict[Encoding, Counter] = {"cl100k_base": count}
    gated = replace(
        path, deps=replace(path.deps, computing=cast("AbstractContextManager[object]", Gate()), counters=counters)
    )

    bring_up(gated, "first", *TOOLS)
    bring_up(gated, "second", *TOOLS)

    assert inside == ["in", *["count"] * len(TOOLS) * len(FORMS), "out"]


def test_when_the_one_that_embeds_fails_another_does_it(path: WritePath) -> None:
    failing = replace(path, deps=replace(path.deps, embedder=WithoutModel()))
    with pytest.raises(ModelUnavailable):
        bring_up(failing, "first", *TOOLS)

    bring_up(path, "second", *TOOLS)

    assert path.tool_names("second") == {"read_file", "write_file"}


def test_a_run_writes_its_own_features_before_it_waits(path: WritePath) -> None:
    mine, theirs = by_digest(TOOLS[0]), by_digest(TOOLS[1])
    written, deps = list[str](), feature_dependencies(path.deps)

    def write_all() -> None:
        for features in compute_features(mine | theirs, "scripted", deps):
            written.extend(features)

    with ThreadPoolExecutor(1) as pool:
        with deps.locks.held(deps.embedder.model, theirs):
            look = pool.submit(write_all)
            eventually(lambda: written == list(mine), what="its own part")
            with deps.locks.held(deps.embedder.model, mine) as free:
                assert free == mine.keys()
        look.result(timeout=60)

    assert written == [*mine, *theirs]


def test_a_write_that_fails_frees_its_digests_at_once(path: WritePath, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object) -> None:
        raise IndexUnavailable("killed here")

    wanted = by_digest(*TOOLS)
    monkeypatch.setattr(path.index, "upsert", failing)

    with pytest.raises(IndexUnavailable) as kept:  # with its traceback, which holds the frames
        bring_up(path, "s", *TOOLS)

    with path.deps.feature_locks.held(path.deps.embedder.model, wanted) as free:
        assert free == wanted.keys()
    assert kept.value.__traceback__
