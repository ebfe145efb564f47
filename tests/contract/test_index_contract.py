"""One suite for every index: what the fake promises, the real ones keep, and the other way round."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.catalog import (
    ENCODINGS,
    FORMS,
    EmbeddedTool,
    Encoding,
    Endpoint,
    IndexedTool,
    RejectedTool,
    Scope,
    Selection,
    ServerRecord,
    TokenSum,
    ToolDefinition,
    ToolName,
    ToolVectors,
    point_id,
)
from shared.index.tools import DIGESTS_A_REQUEST, ToolIndex, ToolState
from shared.toolset import Toolset
from tests.support.fakes import asking, closest, embedded, make_tool, state_of
from tests.support.index_engines import ENGINES, QDRANT_URL, opened

pytestmark = pytest.mark.process

EVERYTHING = Scope()
RUNNING, STOPPED = Scope(), Scope(status="stopped")


@pytest.fixture(params=ENGINES)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolIndex]:
    with opened(str(request.param), tmp_path) as index:
        yield index


def test_the_suite_runs_against_a_qdrant_server_too() -> None:
    if not (QDRANT_URL or os.environ.get("GITHUB_ACTIONS")):
        pytest.skip("QDRANT_URL is not set: the index is not tested against a Qdrant server")
    assert "server" in ENGINES, "the CI of the repository has a Qdrant server"


def _write(index: ToolIndex, tools: Sequence[IndexedTool]) -> None:
    index.upsert([embedded(tool, seed) for seed, tool in enumerate(tools)])


def _everything(index: ToolIndex, scope: Scope = EVERYTHING) -> list[IndexedTool]:
    return list(index.tools(scope, limit=10_000).tools)


def _names(tools: Sequence[IndexedTool]) -> list[str]:
    return sorted(tool.qualified_name for tool in tools)


def test_a_written_tool_comes_back_whole(index: ToolIndex) -> None:
    counts: dict[Encoding, int] = {"cl100k_base": 0, "heuristic": 7}
    tool = make_tool("git", "log", "Show the log ☃", tokens=counts, groups=("dev", "ops"))

    _write(index, [tool])

    assert _everything(index) == [tool]
    assert closest(index, asking(), EVERYTHING, 5) == [tool]


def test_index_versions_are_equal_if_the_states_of_their_tools_are_equal(index: ToolIndex) -> None:
    tools = [make_tool("git", "log", groups=("dev",)), make_tool("git", "diff", status="stopped"), make_tool("s", "t")]
    _write(index, tools)

    assert index.tool_states("git") == {
        "log": ToolState(tools[0].digest, "running", frozenset({"dev"}), tools[0].token_counts, tools[0].model_counts),
        "diff": ToolState(tools[1].digest, "stopped", frozenset(), tools[1].token_counts, tools[1].model_counts),
    }
    assert index.tool_states("nobody") == {}


def test_the_date_of_a_change_comes_back_and_goes_with_the_next_write(index: ToolIndex) -> None:
    tool = make_tool("git", "log")
    dated = replace(tool, changed_since="2026-11-23")

    _write(index, [dated])
    found, state = _everything(index), index.tool_states("git")["log"]
    _write(index, [tool])

    assert found == [dated]
    assert state.changed_since == "2026-11-23"
    assert _everything(index) == [tool]
    assert index.tool_states("git")["log"].changed_since is None


def test_owners_are_all_servers_with_tools_whatever_their_status(index: ToolIndex) -> None:
    _write(index, [make_tool("git", "log"), make_tool("git", "diff"), make_tool("gone", "t", status="stopped")])

    assert index.servers_with_tools() == {"git", "gone"}


def test_writing_a_tool_again_replaces_it_whole(index: ToolIndex) -> None:
    _write(index, [make_tool(description="old", tokens=10, groups=("a",))])
    new = make_tool(description="new", tokens={"cl100k_base": 20})

    _write(index, [new])
    _write(index, [new])

    assert _everything(index) == [new]
    assert index.token_sum(EVERYTHING, "o200k_base") == TokenSum(tokens=0, counted=0, uncounted=1)


def test_a_tool_that_was_read_before_a_write_is_read_again_after_it(index: ToolIndex) -> None:
    tool, point = make_tool("git", "log", "Show the log"), point_id("git", "log")
    changed = make_tool("git", "log", "Show the log of a branch")
    stopped = replace(changed, status="stopped", groups=frozenset({"dev"}))
    _write(index, [tool])

    found = [index.get([point])]
    _write(index, [changed])
    found.append(index.get([point]))
    index.set_status_and_groups("git", status="stopped", groups=frozenset({"dev"}))
    found.append(index.get([point]))
    index.clear_digests([changed.digest])
    found.append(index.get([point]))
    index.delete("git", ["log"])

    cleared = replace(stopped, digest="")
    assert found == [{point: tool}, {point: changed}, {point: stopped}, {point: cleared}]
    assert index.get([point]) == {}


def test_tools_of_the_same_name_on_two_servers_are_two_tools(index: ToolIndex) -> None:
    _write(index, [make_tool("a", "search"), make_tool("b", "search")])

    index.delete("a", ["search"])

    assert _names(_everything(index)) == ["b:search"]


def test_deleting_what_is_not_there_is_no_error(index: ToolIndex) -> None:
    _write(index, [make_tool("a", "kept")])

    index.delete("a", ["missing"])
    index.delete("nobody", ["kept"])
    index.delete("a", [])
    index.upsert([])

    assert _names(_everything(index)) == ["a:kept"]


def test_states_cover_all_of_a_servers_tools_whatever_their_status(index: ToolIndex) -> None:
    tools = [make_tool("a", f"t{i}", status="stopped" if i % 2 else "running") for i in range(1_100)]
    _write(index, [*tools, make_tool("b", "other")])

    states = index.tool_states("a")

    expected = {tool.definition.name: state_of(tool) for tool in tools}
    assert states == expected


def test_what_was_made_of_a_definition_is_found_by_its_digest_on_whichever_server(index: ToolIndex) -> None:
    counts: dict[Encoding, int] = {"cl100k_base": 0, "heuristic": 7}
    replicas = [replace(make_tool(f"s{i}", "log", "Show it", tokens=counts), digest="1" * 32) for i in range(300)]
    stopped = replace(make_tool("gone", "t", tokens={}, status="stopped"), digest="2" * 32)
    written = [*(embedded(tool, 1) for tool in replicas), embedded(stopped, 2)]
    index.upsert([replace(replica, vectors=written[0].vectors) for replica in written[:300]] + written[300:])

    prepared = index.features_by_digest({"1" * 32, "2" * 32, "3" * 32})

    assert {digest: found.token_counts for digest, found in prepared.items()} == {
        "1" * 32: {"cl100k_base": 0},  # the estimate is of one server's tool
        "2" * 32: {},
    }
    assert prepared["1" * 32].wire == written[0].tool.definition.wire
    _assert_same_vectors(prepared["1" * 32].vectors, written[0].vectors)
    _assert_same_vectors(prepared["2" * 32].vectors, written[300].vectors)
    assert index.features_by_digest([]) == {}


def test_each_form_of_a_tool_has_its_own_sum(index: ToolIndex) -> None:
    index.upsert([embedded(make_tool("s", name, tokens=10, model_tokens=7), 1) for name in ("a", "b")])

    wire, model = (index.token_sum(Scope(), "cl100k_base", form) for form in FORMS)

    assert (wire.tokens, model.tokens) == (20, 14)
    assert [tool.model_counts["o200k_base"] for tool in index.tools(Scope(), limit=9).tools] == [7, 7]


def test_more_digests_are_read_than_fit_into_one_request(index: ToolIndex) -> None:
    tools = [make_tool("s", f"t{i}") for i in range(2 * DIGESTS_A_REQUEST + 1)]
    _write(index, tools)

    assert index.features_by_digest([tool.digest for tool in tools]).keys() == {tool.digest for tool in tools}


def test_what_is_written_as_it_was_found_is_found_again_to_the_last_bit(index: ToolIndex) -> None:
    tool = make_tool("first", "log", "Show the log")
    _write(index, [tool])
    found = index.features_by_digest([tool.digest])[tool.digest]
    index.upsert([EmbeddedTool(replace(tool, server_id="second"), found.vectors)])
    index.delete("first", ["log"])

    again = index.features_by_digest([tool.digest])[tool.digest]

    assert again.vectors.name.tobytes() == found.vectors.name.tobytes()
    assert again.vectors.text.tobytes() == found.vectors.text.tobytes()
    assert again.vectors.terms == found.vectors.terms


def _assert_same_vectors(found: ToolVectors, written: ToolVectors) -> None:
    # vectors are stored as float16, with a relative error of at most 2**-11
    np.testing.assert_allclose(found.name, written.name, rtol=2**-11, atol=1e-7)
    np.testing.assert_allclose(found.text, written.text, rtol=2**-11, atol=1e-7)
    assert found.terms.indices == written.terms.indices
    np.testing.assert_allclose(found.terms.values, written.terms.values, rtol=1e-6)


def test_assigning_status_and_groups_changes_nothing_else_and_nobody_else(index: ToolIndex) -> None:
    tools = [make_tool("a", f"t{i}", tokens=i, groups=("old",)) for i in range(5)]
    other = make_tool("b", "t", groups=("old",))
    _write(index, [*tools, other])

    index.set_status_and_groups("a", status="stopped", groups=frozenset({"new", "newer"}))
    index.set_status_and_groups("unknown", status="stopped", groups=frozenset())

    expected = [replace(tool, status="stopped", groups=frozenset({"new", "newer"})) for tool in tools]
    assert sorted(_everything(index, STOPPED), key=lambda tool: tool.definition.name) == expected
    assert _everything(index, RUNNING) == [other]
    assert closest(index, asking(2), STOPPED, 1) == [expected[2]]


def test_a_cleared_digest_changes_nothing_else_and_no_tool_with_another_digest(index: ToolIndex) -> None:
    tools = [make_tool("a", f"t{i}", tokens=i, groups=("x",)) for i in range(1_100)]
    replica = replace(make_tool("b", "t", tokens=7, status="stopped"), digest=tools[0].digest)
    other = make_tool("b", "other")
    _write(index, [*tools, replica, other])

    index.clear_digests([])
    index.clear_digests({tool.digest for tool in tools} | {"unknown"})

    cleared = [replace(tool, digest="") for tool in (*tools, replica)]
    found = [*_everything(index, RUNNING), *_everything(index, STOPPED)]
    assert {tool.qualified_name: tool for tool in found} == {tool.qualified_name: tool for tool in (*cleared, other)}
    assert index.features_by_digest({tools[0].digest}) == {}
    assert closest(index, asking(2), Scope(servers=frozenset({"a"})), 1) == [cleared[2]]


def test_groups_can_be_taken_away(index: ToolIndex) -> None:
    _write(index, [make_tool("a", groups=("x",))])

    index.set_status_and_groups("a", status="running", groups=frozenset())

    assert [tool.groups for tool in _everything(index)] == [frozenset()]
    assert _everything(index, Scope(groups=frozenset({"x"}))) == []


def test_a_scope_admits_any_of_its_groups_and_only_its_servers_and_status(index: ToolIndex) -> None:
    dev, ops = make_tool("dev", groups=("dev", "all")), make_tool("ops", groups=("ops",))
    _write(index, [dev, ops, make_tool("off", groups=("dev",), status="stopped"), make_tool("none")])

    admitted = {
        ("dev:t",): Scope(groups=frozenset({"dev", "unknown"})),
        ("dev:t", "ops:t"): Scope(groups=frozenset({"all", "ops"})),
        ("ops:t",): Scope(groups=frozenset({"dev", "ops"}), servers=frozenset({"ops", "none"})),
        ("off:t",): STOPPED,
        ("dev:t", "none:t", "ops:t"): RUNNING,
    }

    for names, scope in admitted.items():
        assert tuple(_names(_everything(index, scope))) == names
        assert tuple(_names(closest(index, asking(), scope, 9))) == names
        assert index.token_sum(scope, "cl100k_base") == TokenSum(10 * len(names), len(names), 0)


@pytest.mark.parametrize(
    "scope",
    [Scope(groups=frozenset()), Scope(servers=frozenset()), Scope(groups=frozenset({"\ud800"}), status="running")],
)
def test_a_scope_that_nothing_matches_is_empty_for_every_question(index: ToolIndex, scope: Scope) -> None:
    _write(index, [make_tool("a", tokens={}), make_tool("b", groups=("g",))])

    assert closest(index, asking(), scope, 5) == []
    assert index.token_sum(scope, "cl100k_base") == TokenSum(0, 0, 0)
    assert index.uncounted(scope, "cl100k_base", 5) == []
    assert list(index.tools(scope, limit=5).tools) == []
    assert index.tools(scope, limit=5).next_after is None


def test_sums_are_exact_in_every_encoding(index: ToolIndex) -> None:
    counts = [int(count) for count in np.random.default_rng(7).integers(1, 400, 600)]
    tools = [make_tool(f"s{i % 7}", f"t{i}", tokens={"cl100k_base": n}) for i, n in enumerate(counts)]
    _write(index, tools)

    of_one = Scope(servers=frozenset({"s3"}))

    assert index.token_sum(EVERYTHING, "cl100k_base") == TokenSum(sum(counts), 600, 0)
    assert index.token_sum(of_one, "cl100k_base") == TokenSum(sum(counts[3::7]), len(counts[3::7]), 0)
    for encoding in ENCODINGS[1:]:
        assert index.token_sum(EVERYTHING, encoding) == TokenSum(0, 0, 600)


def test_uncounted_tools_are_named_and_never_counted_as_zero(index: ToolIndex) -> None:
    _write(index, [make_tool("a", "zero", tokens=0), make_tool("a", "x", tokens={}), make_tool("b", "y", tokens={})])

    assert index.token_sum(EVERYTHING, "cl100k_base") == TokenSum(tokens=0, counted=1, uncounted=2)
    assert sorted(index.uncounted(EVERYTHING, "cl100k_base", 9)) == ["a:x", "b:y"]
    assert index.uncounted(Scope(servers=frozenset({"b"})), "cl100k_base", 9) == ["b:y"]
    assert len(index.uncounted(EVERYTHING, "cl100k_base", 1)) == 1


def test_pages_miss_and_repeat_nothing_while_others_write(index: ToolIndex) -> None:
    stable = [make_tool("stable", f"t{i}") for i in range(100)]
    _write(index, stable)

    seen: list[IndexedTool] = []
    after: str | None = None
    for i in range(100):
        page = index.tools(EVERYTHING, limit=7, after=after)
        seen.extend(page.tools)
        after = page.next_after
        if after is None:
            break
        index.upsert([embedded(make_tool("passing", f"p{i}"))])
        index.delete("passing", [f"p{i - 1}"])

    assert after is None
    assert _names([tool for tool in seen if tool.server_id == "stable"]) == _names(stable)


def test_a_server_record_comes_back_whole_and_is_replaced_by_the_next(index: ToolIndex) -> None:
    record = ServerRecord(
        server_id="git",
        endpoint=Endpoint(url="http://127.0.0.1:1/mcp", credential_ref="git"),
        groups=frozenset({"dev", "ops"}),
        labels={"team": "a"},
        tokens={"cl100k_base": 12},
        uncounted={"heuristic": ("x", "y")},
        rejected=(RejectedTool(name="bad \ud800", reason="no schema"),),
        revision=1,
        last_listed_at=1.5,
        last_error="broken \udfff",
    )

    index.put_server(record)
    assert index.server("git") == record
    assert index.server("unknown") is None

    index.put_server(record.model_copy(update={"revision": 2, "status": "stopped"}))
    assert [(server.revision, server.status) for server in index.servers()] == [(2, "stopped")]


def test_only_records_above_a_revision_are_listed(index: ToolIndex) -> None:
    for revision in range(1, 6):
        index.put_server(ServerRecord(server_id=f"s{revision}", endpoint=Endpoint(), revision=revision))

    assert {record.server_id for record in index.servers()} == {"s1", "s2", "s3", "s4", "s5"}
    assert {record.server_id for record in index.servers(newer_than=3)} == {"s4", "s5"}
    assert index.revisions(newer_than=3) == {"s4": 4, "s5": 5}
    assert index.servers(newer_than=5) == []


def test_text_that_is_not_unicode_can_be_stored(index: ToolIndex) -> None:
    wire = '{"name": "t", "description": "lone \ud800 and \\\\\udfff, escaped \\ud83d\\ude00, NUL \\u0000"}'
    tool = replace(make_tool(), definition=ToolDefinition.from_wire(wire))

    _write(index, [tool])

    (stored,) = _everything(index)
    assert stored.definition.as_object() == tool.definition.as_object()
    assert stored.definition.description == tool.definition.description


def test_two_writers_and_two_readers_disturb_nobody(index: ToolIndex) -> None:
    done = threading.Event()

    def write(server_id: str) -> None:
        for i in range(60):
            index.upsert([embedded(make_tool(server_id, f"t{i}", tokens=1), i)])
            index.put_server(ServerRecord(server_id=server_id, endpoint=Endpoint(), revision=i + 1))
        index.delete(server_id, [f"t{i}" for i in range(10)])

    def read() -> int:
        rounds = 0
        while not done.is_set():
            assert len(closest(index, asking(rounds), EVERYTHING, 5)) <= 5
            summed = index.token_sum(EVERYTHING, "cl100k_base")
            assert summed.tokens == summed.counted
            rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        writers = [pool.submit(write, server_id) for server_id in ("a", "b")]
        try:
            for writer in writers:
                writer.result(timeout=60)
        finally:
            done.set()
        assert all(reader.result(timeout=60) > 0 for reader in readers)

    assert index.token_sum(EVERYTHING, "cl100k_base") == TokenSum(100, 100, 0)
    assert {record.revision for record in index.servers()} == {60}


def test_a_selection_leaves_its_tools_and_its_servers_and_nothing_that_is_only_named_alike(index: ToolIndex) -> None:
    tools = [make_tool("git", "log"), make_tool("git", "diff"), make_tool("time", "now"), make_tool("evil", "git:log")]
    _write(index, tools)
    scope = Scope(within=Selection(servers=frozenset({"time"}), tools=frozenset({"git:log", "gone:tool"})))

    assert _names(_everything(index, scope)) == ["git:log", "time:now"]
    assert _names(closest(index, asking(), scope, 10)) == ["git:log", "time:now"]
    assert index.token_sum(scope, "cl100k_base") == TokenSum(20, 2, 0)
    assert _names(index.find_by_name("git:log", scope, 10)) == ["git:log"]
    assert _everything(index, replace(scope, servers=frozenset({"git"}))) == [tools[0]]


def test_an_empty_selection_leaves_nothing(index: ToolIndex) -> None:
    _write(index, [make_tool("git", "log")])

    assert _everything(index, Scope(within=Selection())) == []


def _replicas(tool: IndexedTool, servers: int) -> list[IndexedTool]:
    return [replace(tool, server_id=f"{tool.server_id}{number}") for number in range(servers)]


def _name_of(tool: IndexedTool) -> ToolName:
    return ToolName(tool.server_id, tool.definition.name, tool.digest)


def test_tool_names_are_those_of_all_servers_in_the_scope(index: ToolIndex) -> None:
    log = make_tool("git", "log", groups=("dev",))
    tools = [*_replicas(log, 3), make_tool("hg", "log"), make_tool("git0", "diff"), make_tool("git1", "logs")]
    _write(index, [*tools, make_tool("old", "log", status="stopped")])

    assert set(index.tool_names({"log"}, EVERYTHING, 9)) == {_name_of(tool) for tool in tools[:4]}
    assert set(index.tool_names({"log", "diff", "gone"}, Scope(groups=frozenset({"dev"})), 9)) == {
        _name_of(tool) for tool in tools[:3]
    }
    assert set(index.tool_names({"log", "diff"}, Scope(servers=frozenset({"git0"})), 9)) == {
        _name_of(tools[0]),
        _name_of(tools[4]),
    }


def test_tool_names_are_compared_without_the_server(index: ToolIndex) -> None:
    tools = [make_tool("a", "read"), make_tool("c", "a:read")]
    _write(index, tools)

    assert index.tool_names({"a:read"}, EVERYTHING, 9) == [_name_of(tools[1])]
    assert index.tool_names({"rea", "\ud800"}, EVERYTHING, 9) == []


def test_tool_names_are_limited_after_the_comparison(index: ToolIndex) -> None:
    _write(
        index, [make_tool("c", "a:read"), *(make_tool(f"a{i}", "read") for i in range(1_100)), make_tool("a", "read")]
    )

    assert len(set(index.tool_names({"read"}, EVERYTHING, 2_000))) == 1_101
    assert len(index.tool_names({"read"}, EVERYTHING, 1_050)) == 1_050
    assert len(index.tool_names({"a:read"}, EVERYTHING, 1)) == 1
    assert index.tool_names({"read"}, EVERYTHING, 0) == index.tool_names(set(), EVERYTHING, 9) == []
    assert index.tool_names({"read"}, Scope(servers=frozenset()), 9) == []


def test_a_cleared_digest_is_empty_on_all_replicas(index: ToolIndex) -> None:
    log, diff = make_tool("git", "log", tokens=30), make_tool("git", "diff", tokens=7)
    _write(index, [*_replicas(log, 3), *_replicas(diff, 3)])

    index.clear_digests({log.digest})

    assert {tool.digest for tool in index.tool_names({"log"}, EVERYTHING, 9)} == {""}


def _assert_scope_has(index: ToolIndex, scope: Scope, names: Sequence[str]) -> None:
    """Check every read that takes a scope; each tool costs 10 tokens, in one encoding."""
    tools = _everything(index, scope)
    (candidates,) = index.search([asking(0, "log diff")], scope, 50)
    assert _names(tools) == _names(closest(index, asking(), scope, 50)) == sorted(names)
    assert len(candidates.terms) == len(candidates.text) == len(names)
    assert index.token_sum(scope, "cl100k_base") == TokenSum(10 * len(names), len(names), 0)
    assert sorted(index.uncounted(scope, "o200k_base", 50)) == sorted(names)
    by_name = index.tool_names({"log", "diff"}, scope, 50)
    assert sorted(f"{tool.server_id}:{tool.name}" for tool in by_name) == sorted(names)
    found = [tool for name in ("log", "diff") for tool in index.find_by_name(name, scope, 50)]
    assert _names(found) == sorted(names)


def test_hidden_servers_are_in_no_result(index: ToolIndex) -> None:
    counts: dict[Encoding, int] = {"cl100k_base": 10}
    _write(index, [make_tool(f"git{i}", name, tokens=counts) for i in range(4) for name in ("log", "diff")])
    copies = frozenset({"git1", "git3", "unknown", *(f"web{i}" for i in range(1_100))})

    _assert_scope_has(index, Scope(hidden=copies), ["git0:diff", "git0:log", "git2:diff", "git2:log"])
    _assert_scope_has(
        index, Scope(hidden=copies, exclude=frozenset({"git2:log"})), ["git0:diff", "git0:log", "git2:diff"]
    )
    _assert_scope_has(index, Scope(hidden=copies, servers=frozenset({"git2", "git3"})), ["git2:diff", "git2:log"])
    _assert_scope_has(
        index,
        Scope(hidden=copies, within=Selection(servers=frozenset({"git1"}), tools=frozenset({"git2:log", "git3:log"}))),
        ["git2:log"],
    )
    _assert_scope_has(index, Scope(hidden=copies | {"git0", "git2"}), [])


def test_seen_definitions_are_in_no_result(index: ToolIndex) -> None:
    counts: dict[Encoding, int] = {"cl100k_base": 10}
    log, diff = make_tool("git", "log", tokens=counts), make_tool("git", "diff", tokens=counts)
    _write(index, [*_replicas(log, 3), *_replicas(diff, 3)])
    seen = frozenset({log.digest, "f" * 32})

    _assert_scope_has(index, Scope(seen=seen), ["git0:diff", "git1:diff", "git2:diff"])
    _assert_scope_has(index, Scope(seen=seen, hidden=frozenset({"git0"})), ["git1:diff", "git2:diff"])
    _assert_scope_has(index, Scope(seen=seen, servers=frozenset({"git1"})), ["git1:diff"])
    _assert_scope_has(index, Scope(seen=seen | {diff.digest}), [])


def test_a_cleared_digest_is_not_among_the_seen(index: ToolIndex) -> None:
    counts: dict[Encoding, int] = {"cl100k_base": 10}
    log = make_tool("git", "log", tokens=counts)
    _write(index, _replicas(log, 2))

    index.clear_digests({log.digest})

    _assert_scope_has(index, Scope(seen=frozenset({log.digest})), ["git0:log", "git1:log"])


def test_toolsets_are_kept_replaced_and_removed_by_their_names(index: ToolIndex) -> None:
    first, second = Toolset(name="dev", tools=("git", "time:now ☃"), budget_tokens=500), Toolset(name="a", tools=())
    index.put_toolset(first)
    index.put_toolset(second)
    index.put_toolset(first)

    assert index.toolset("dev") == first
    assert index.toolsets() == [second, first]
    index.delete_toolset("dev")
    index.delete_toolset("dev")
    assert index.toolset("dev") is None
    assert index.toolsets() == [second]
