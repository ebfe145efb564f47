"""Searching, for every index: the same lists, scores and filters from each engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.catalog import Candidates, IndexedTool, QueryVectors, Scope, TokenSum, point_id
from shared.index.tools import ToolIndex
from shared.text.bm25 import query_terms
from tests.support.fakes import FakeIndex, asking, closest, embedded, make_tool, unit_vector
from tests.support.index_engines import ENGINES, opened

pytestmark = pytest.mark.process

EVERYTHING = Scope()


@pytest.fixture(params=ENGINES)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolIndex]:
    with opened(str(request.param), tmp_path) as index:
        yield index


def _write(index: ToolIndex, tools: Sequence[IndexedTool]) -> None:
    index.upsert([embedded(tool, seed) for seed, tool in enumerate(tools)])


def _everything(index: ToolIndex, scope: Scope = EVERYTHING) -> list[IndexedTool]:
    return list(index.tools(scope, limit=10_000).tools)


def _names(tools: Sequence[IndexedTool]) -> list[str]:
    return sorted(tool.qualified_name for tool in tools)


def test_candidates_are_ordered_by_their_cosine_similarity(index: ToolIndex) -> None:
    _write(index, [make_tool("a", f"t{i}") for i in range(50)])
    query = asking(1000)

    (found,) = index.search([query], EVERYTHING, 10)

    cosines = sorted((float(unit_vector(seed) @ unit_vector(1000)) for seed in range(50)), reverse=True)
    # vectors are stored as float16, with a relative error of at most 2**-11
    np.testing.assert_allclose(list(found.name.values()), cosines[:10], atol=2**-11)
    np.testing.assert_allclose(list(found.text.values()), cosines[:10], atol=2**-11)
    assert closest(index, query, EVERYTHING, 0) == []


def test_a_scope_of_one_percent_still_fills_the_limit(index: ToolIndex) -> None:
    common = [make_tool("common", f"t{i}") for i in range(792)]
    rare = [make_tool("rare", f"t{i}", groups=("g",)) for i in range(8)]
    _write(index, [*common, *rare])

    for scope in (Scope(servers=frozenset({"rare"})), Scope(groups=frozenset({"g"}))):
        assert _names(closest(index, asking(), scope, 8)) == _names(rare)


def test_every_engine_scores_as_the_fake_does(index: ToolIndex) -> None:
    words = ["read", "write", "file", "folder", "issue", "branch", "mail", "time", "zone", "query"]
    draw = np.random.default_rng(3)
    tools = [make_tool(f"s{i % 5}", f"t{i}", " ".join(draw.choice(words, 6))) for i in range(80)]
    fake = FakeIndex()
    _write(index, tools)
    _write(fake, tools)
    queries = [asking(7, "read the file of a folder"), asking(8, "time zones"), asking(9, "nothing known")]

    for ours, expected in zip(index.search(queries, EVERYTHING, 20), fake.search(queries, EVERYTHING, 20), strict=True):
        assert list(ours.name) == list(expected.name)
        assert list(ours.text) == list(expected.text)
        # equal scores may come in any order, and be cut off anywhere
        np.testing.assert_allclose(list(ours.terms.values()), list(expected.terms.values()), rtol=1e-5)


def test_a_query_without_known_terms_or_without_a_vector_leaves_those_lists_empty(index: ToolIndex) -> None:
    _write(index, [make_tool("files", "read_file", "Read a file")])

    by_vector, by_terms, by_nothing = index.search(
        [asking(0), QueryVectors(None, query_terms("reading files")), QueryVectors(None, query_terms("of the"))],
        EVERYTHING,
        5,
    )

    assert (len(by_vector.name), len(by_vector.text), len(by_vector.terms)) == (1, 1, 0)
    assert (len(by_terms.name), len(by_terms.text), len(by_terms.terms)) == (0, 0, 1)
    assert by_nothing == Candidates(5, {}, {}, {})


def test_terms_are_scored_within_the_scope_as_well(index: ToolIndex) -> None:
    _write(index, [make_tool("a", "read", read_only=True), make_tool("b", "read"), make_tool("c", "read")])
    scope = Scope(servers=frozenset({"a", "b"}), exclude=frozenset({"b:read"}))

    (found,) = index.search([asking(0, "read")], scope, 5)

    assert list(found.terms) == [point_id("a", "read")]
    assert _names(_everything(index, Scope(read_only=True))) == ["a:read"]
    assert _names(_everything(index, Scope(exclude=frozenset({"read"})))) == []
    assert index.token_sum(scope, "cl100k_base") == TokenSum(10, 1, 0)


def test_tools_are_found_by_their_very_name_within_the_scope(index: ToolIndex) -> None:
    _write(index, [make_tool("a", "read"), make_tool("b", "read"), make_tool("b", "reader"), make_tool("c", "a:read")])

    assert _names(index.find_by_name("read", EVERYTHING, 9)) == ["a:read", "b:read"]
    assert _names(index.find_by_name("a:read", EVERYTHING, 9)) == ["a:read", "c:a:read"]
    assert _names(index.find_by_name("read", Scope(servers=frozenset({"b"})), 9)) == ["b:read"]
    assert len(index.find_by_name("read", EVERYTHING, 1)) == 1
    assert index.find_by_name("re", EVERYTHING, 9) == index.find_by_name("\ud800", EVERYTHING, 9) == []


def test_only_what_is_still_there_is_fetched(index: ToolIndex) -> None:
    tool = make_tool("a", "read")
    _write(index, [tool])
    here, gone = point_id("a", "read"), point_id("a", "gone")

    assert index.get([here, gone]) == {here: tool}
    assert index.get([]) == {}


def test_candidates_are_the_points_of_the_present_tools_however_often_tools_come_and_go(index: ToolIndex) -> None:
    for round_ in range(3):
        tools = [make_tool(f"s{i % 3}", f"t{i}") for i in range(round_, round_ + 9)]
        _write(index, tools)

        (found,) = index.search([asking(round_, "t3")], EVERYTHING, 100)

        assert found.points == {point_id(tool.server_id, tool.definition.name) for tool in _everything(index)}
        index.delete(f"s{round_}", index.tool_states(f"s{round_}"))


def test_each_search_finds_the_tools_that_run_at_that_moment(index: ToolIndex) -> None:
    tools = [make_tool(server_id, name, "a file") for server_id in "ab" for name in ("read", "write")]
    _write(index, tools)
    of_a, of_b = ({point_id(server_id, name) for name in ("read", "write")} for server_id in "ab")

    def found() -> tuple[set[str], float]:
        (found,) = index.search([asking(0, "read")], EVERYTHING, 9)
        return set(found.points), found.terms[point_id("b", "read")]

    everywhere = found()
    assert everywhere[0] == of_a | of_b

    index.set_status_and_groups("a", status="stopped", groups=frozenset())
    only_b = found()
    index.delete("b", ["write"])
    without_write = found()
    index.set_status_and_groups("a", status="running", groups=frozenset())
    index.upsert([embedded(tools[-1], 3)])

    assert (only_b[0], without_write[0]) == (of_b, {point_id("b", "read")})
    assert without_write[1] < only_b[1]  # the word is in every tool that runs
    assert found() == everywhere


def test_copies_do_not_change_the_statistics_of_the_words(index: ToolIndex) -> None:
    tools = [make_tool("a", name, f"{name} a file") for name in ("read", "write", "move", "copy")]
    _write(index, tools)
    query = asking(0, "read a file")
    (alone,) = index.search([query], EVERYTHING, 10)
    copies = frozenset(f"a{i}" for i in range(9))

    _write(index, [replace(tool, server_id=server_id) for server_id in sorted(copies) for tool in tools])

    (beside,) = index.search([query], Scope(hidden=copies), 10, Scope(hidden=copies))
    (of_servers,) = index.search([query], Scope(hidden=copies), 10, Scope(servers=frozenset({"a"})))
    (counted,) = index.search([query], Scope(hidden=copies), 10, EVERYTHING)
    assert beside.terms == pytest.approx(alone.terms, abs=1e-5)
    assert beside.terms.keys() == alone.terms.keys()
    assert beside.name == pytest.approx(alone.name, abs=1e-5)
    assert beside.text == pytest.approx(alone.text, abs=1e-5)
    assert of_servers.terms == pytest.approx(beside.terms, abs=1e-5)
    assert counted.terms != pytest.approx(alone.terms, abs=1e-5)


def test_statistics_without_a_condition_count_all_tools(index: ToolIndex) -> None:
    _write(index, [make_tool("a", name, f"{name} a file") for name in ("read", "write", "move", "copy")])
    query, all_tools = asking(0, "read a file"), Scope(status=None)
    (running,) = index.search([query], EVERYTHING, 10)
    (counted,) = index.search([query], EVERYTHING, 10, all_tools)

    _write(index, [make_tool("b", f"read_{number}", "read", status="stopped") for number in range(9)])

    (beside,) = index.search([query], EVERYTHING, 10)
    (with_stopped,) = index.search([query], EVERYTHING, 10, all_tools)
    assert counted.terms == pytest.approx(running.terms, abs=1e-5)
    assert beside.terms == pytest.approx(running.terms, abs=1e-5)
    assert with_stopped.terms != pytest.approx(running.terms, abs=1e-5)
    assert with_stopped.terms.keys() == running.terms.keys()
    assert len(_everything(index, all_tools)) == 13
