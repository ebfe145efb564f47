"""The token metrics equal a recount by brute force, and stay sane while tools and records are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from query.answers.answer import FindResponse
from query.answers.budget import ResponsePolicy, counting
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import (
    EVERYTHING_EVERY_S,
    OVERLAP_EVERY_S,
    OVERLAP_US,
    UNCOUNTED_SHOWN,
    Baseline,
    Ledger,
    TokenMetrics,
    token_metrics,
)
from query.search.request import FindRequest
from shared.catalog import Encoding, IndexedTool, Scope, ServerRecord, Status
from tests.support.fakes import FakeEmbedder, FakeIndex, embedded, make_tool
from tests.support.filled import record_of

ENCODING: Encoding = "cl100k_base"
MOST = 50  # the largest limit
UNBOUNDED = ResponsePolicy(
    max_tokens=MOST * 10**7
)  # so that every answer is of definitions, which the baseline is made of
counting(ENCODING)  # loaded before the first example is timed
STATUSES: tuple[Status, ...] = ("running", "stopped", "quarantined")
group_sets = st.frozensets(st.sampled_from(["dev", "ops", "office"]))
counts = st.one_of(st.none(), st.integers(0, 10**6))
scopes = st.builds(
    Scope,
    groups=st.none() | group_sets,
    servers=st.none() | st.frozensets(st.sampled_from(["server0", "server1", "server2", "server9"])),
)


@dataclass(frozen=True)
class World:
    """One server's state: what a reconcile makes true of its tools and of its record."""

    status: Status
    groups: frozenset[str]
    counts: Sequence[int | None]

    def tools(self, server_id: str) -> list[IndexedTool]:
        return [
            make_tool(
                server_id,
                f"tool{i}",
                tokens={} if count is None else {ENCODING: count},
                model_tokens={} if count is None else {ENCODING: count // 3},
                groups=self.groups,
                status=self.status,
            )
            for i, count in enumerate(self.counts)
        ]

    def record(self, server_id: str, revision: int) -> ServerRecord:
        names = tuple(f"tool{i}" for i, count in enumerate(self.counts) if count is None)
        tools, told = self.tools(server_id), {"groups": self.groups, "status": self.status}
        return record_of(server_id, tools, uncounted={ENCODING: names}, revision=revision, **told)


worlds = st.builds(World, st.sampled_from(STATUSES), group_sets, st.lists(counts, max_size=8))


def write_tools(index: FakeIndex, server_id: str, world: World) -> None:
    index.delete(server_id, index.tool_states(server_id))
    index.upsert([embedded(tool, seed=i) for i, tool in enumerate(world.tools(server_id))])


def find(index: FakeIndex, ledger: Ledger, scope: Scope, limit: int, **narrowing: Any) -> FindResponse:
    asked = {"tool_description": "anything", "limit": limit, "detail": "full"}
    request = FindRequest.model_validate(asked | narrowing)
    catalogue = Catalogue(index, FakeEmbedder(), ledger, ENCODING, -1, response_policy=UNBOUNDED)
    return find_tool(request, scope, catalogue)[0]


def visible(index: FakeIndex, scope: Scope) -> list[IndexedTool]:
    return list(index.tools(scope, limit=1_000).tools)


def check_always(answer: FindResponse) -> None:
    """Hold what must be true of every answer, whatever is being written meanwhile."""
    metrics = answer.token_metrics
    assert min(metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved) >= 0
    assert metrics.tokens_saved == metrics.baseline_tokens - metrics.returned_tokens
    assert 0 <= metrics.savings_percentage <= 100
    assert metrics.returned_tokens == sum(tool.token_count or 0 for tool in answer.tools)
    uncounted = {tool.name for tool in answer.tools if tool.token_count is None}
    assert len(metrics.uncounted) <= min(metrics.uncounted_total, UNCOUNTED_SHOWN)
    assert uncounted <= set(metrics.uncounted) or len(metrics.uncounted) == UNCOUNTED_SHOWN


def check_exactly(answer: FindResponse, tools: Sequence[IndexedTool]) -> None:
    """Hold the metrics to a recount over the tools themselves."""
    metrics = answer.token_metrics
    assert metrics.baseline_tokens == sum(tool.token_counts.get(ENCODING, 0) for tool in tools)
    model_tokens = sum(tool.model_counts.get(ENCODING, 0) for tool in tools)
    assert metrics.net_tokens_saved == model_tokens - metrics.answer_tokens
    uncounted = {tool.qualified_name for tool in tools if ENCODING not in tool.token_counts}
    assert metrics.uncounted_total == len(uncounted)
    assert set(metrics.uncounted) <= uncounted
    if len(answer.tools) == len(tools):
        assert (metrics.tokens_saved, metrics.savings_percentage) == (0, 0)


def check_ledger(ledger: Ledger, index: FakeIndex, scope: Scope) -> None:
    """Hold the ledger's baseline to the exact sum over the tools, which defines it."""
    baseline, exact = ledger.baseline(scope, ENCODING), index.token_sum(scope, ENCODING)
    assert (baseline.tokens, baseline.uncounted_total) == (exact.tokens, exact.uncounted)


@given(st.lists(worlds, max_size=6), scopes, st.integers(1, MOST))
def test_the_metrics_equal_a_recount_by_brute_force(catalog: list[World], scope: Scope, limit: int) -> None:
    index = FakeIndex()
    for i, world in enumerate(catalog):
        write_tools(index, f"server{i}", world)
        index.put_server(world.record(f"server{i}", revision=i + 1))
    ledger = Ledger(index)

    answer = find(index, ledger, scope, limit)

    check_always(answer)
    check_exactly(answer, visible(index, scope))
    check_ledger(ledger, index, scope)


names = st.lists(st.sampled_from(["server0", "server1", "server1:tool0", "tool1", "dev", "ops"]), max_size=3)
narrowings = st.fixed_dictionaries(
    {},
    optional={
        "servers": names,
        "groups": names,
        "exclude": names,
        "read_only": st.booleans(),
    },
)


running = st.builds(World, st.just(STATUSES[0]), group_sets, st.lists(st.integers(1, 10**6), min_size=1, max_size=8))


@given(st.lists(running, min_size=1, max_size=6), st.just(Scope()) | scopes, narrowings, st.integers(1, MOST))
def test_the_baseline_is_the_same_however_a_request_narrows_the_search(
    catalog: list[World], scope: Scope, narrowing: dict[str, Any], limit: int
) -> None:
    index = FakeIndex()
    for i, world in enumerate(catalog):
        write_tools(index, f"server{i}", world)
        index.put_server(world.record(f"server{i}", revision=i + 1))
    ledger = Ledger(index)

    answer = find(index, ledger, scope, limit, **narrowing)

    check_always(answer)
    metrics, of_all = answer.token_metrics, visible(index, scope)
    assert metrics.baseline_tokens == sum(tool.token_counts.get(ENCODING, 0) for tool in of_all)
    model_tokens = sum(tool.model_counts.get(ENCODING, 0) for tool in of_all)
    assert metrics.net_tokens_saved == model_tokens - metrics.answer_tokens
    while answer.next_cursor:
        answer = find(index, ledger, scope, limit, cursor=answer.next_cursor, **narrowing)
        assert answer.token_metrics.baseline_tokens == metrics.baseline_tokens


@given(scopes, st.integers(1, MOST))
def test_without_servers_everything_is_zero(scope: Scope, limit: int) -> None:
    index = FakeIndex()

    metrics = find(index, Ledger(index), scope, limit).token_metrics

    assert metrics.net_tokens_saved == -metrics.answer_tokens < 0
    assert metrics.model_dump(exclude={"answer_tokens", "net_tokens_saved"}) == {
        "baseline_tokens": 0,
        "returned_tokens": 0,
        "tokens_saved": 0,
        "savings_percentage": 0,
    }


@dataclass
class Reconcile:
    """One reconciliation in parts: a revision first, then the tools, then the record, each at its own time."""

    server_id: str
    world: World
    revision: int


@dataclass
class Site:
    """An index, a ledger with a clock that the test turns, and the reconciles that are under way in it."""

    index: FakeIndex = field(default_factory=FakeIndex)
    now_s: float = 1_000.0
    revision: int = 0
    longest_write_s: float = 0.0
    running: dict[str, Reconcile] = field(default_factory=dict[str, Reconcile])

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.index, clock_s=lambda: self.now_s)

    def start(self, server_id: str, world: World) -> None:
        """Begin a reconcile; a server has at most one at a time, as its lease makes sure."""
        if server_id not in self.running:
            self.revision = max(self.revision + 1, int(self.now_s * 1e6))
            self.running[server_id] = Reconcile(server_id, world, self.revision)

    def write_tools(self, server_id: str) -> None:
        if server_id in self.running:
            write_tools(self.index, server_id, self.running[server_id].world)

    def finish(self, server_id: str) -> None:
        if server_id in self.running:
            done = self.running.pop(server_id)
            write_tools(self.index, server_id, done.world)
            self.index.put_server(done.world.record(server_id, done.revision))
            self.longest_write_s = max(self.longest_write_s, self.now_s - done.revision / 1e6)


server_ids = st.sampled_from(["server0", "server1", "server2"])
steps = st.one_of(
    st.tuples(st.just("start"), server_ids, worlds),
    st.tuples(st.just("write_tools"), server_ids),
    st.tuples(st.just("finish"), server_ids),
    st.tuples(st.just("pass"), st.sampled_from([0.001, 0.5, 1.0, 30.0, 90.0])),
    st.tuples(st.just("ask"), scopes, st.integers(1, MOST)),
)


def take(site: Site, step: tuple[object, ...]) -> None:
    match step:
        case ("start", str(server_id), World() as world):
            site.start(server_id, world)
        case ("write_tools", str(server_id)):
            site.write_tools(server_id)
        case ("finish", str(server_id)):
            site.finish(server_id)
        case ("pass", float(seconds)):
            site.now_s += seconds
        case ("ask", Scope() as scope, int(limit)):
            check_always(find(site.index, site.ledger, scope, limit))
        case _:
            raise AssertionError(step)


@given(st.lists(steps, max_size=30), scopes, st.sampled_from([OVERLAP_EVERY_S, EVERYTHING_EVERY_S]))
def test_the_metrics_hold_while_writes_are_in_flight_and_are_exact_once_they_pause(
    taken: list[tuple[object, ...]], scope: Scope, pause_s: float
) -> None:
    site = Site()
    for step in taken:
        take(site, step)

    # the last to start is the first to be done: each of the others becomes visible behind a higher revision
    for server_id in reversed(list(site.running)):
        site.finish(server_id)
        check_always(find(site.index, site.ledger, scope, MOST))
    # the overlap finds records that were written in time, reading everything finds the others
    site.now_s += pause_s if site.longest_write_s < OVERLAP_US / 1e6 - OVERLAP_EVERY_S else EVERYTHING_EVERY_S

    for asked in (scope, Scope()):
        answer = find(site.index, site.ledger, asked, MOST)
        check_always(answer)
        check_exactly(answer, visible(site.index, asked))
        check_ledger(site.ledger, site.index, asked)


# --- the metrics of an answer ---


def test_saved_is_the_baseline_without_what_is_returned_and_its_percentage_has_two_decimals() -> None:
    metrics = token_metrics(Baseline(tokens=300, tools=3), [make_tool(tokens=100)], "cl100k_base")

    assert (metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved) == (300, 100, 200)
    assert metrics.savings_percentage == 66.67


def test_more_returned_than_the_baseline_knows_yet_claims_no_savings() -> None:
    metrics = token_metrics(Baseline(tokens=50, tools=1), [make_tool(tokens=80)], "cl100k_base")

    assert (metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved) == (80, 80, 0)


def test_a_returned_tool_without_a_count_is_listed_before_its_server_s_record_names_it() -> None:
    metrics = token_metrics(Baseline(tokens=0, tools=0), [make_tool("s", "odd", tokens={})], "cl100k_base")

    assert (metrics.uncounted, metrics.uncounted_total) == (["s:odd"], 1)


def test_many_tools_without_a_count_are_named_in_part_and_counted_in_full() -> None:
    names = tuple(f"s:t{i}" for i in range(UNCOUNTED_SHOWN))
    returned = [make_tool("s", "in_answer", tokens={})]

    metrics = token_metrics(Baseline(tokens=0, tools=500, uncounted=names, uncounted_total=500), returned, "heuristic")

    assert metrics.uncounted == ["s:in_answer", *names[:-1]]
    assert metrics.uncounted_total == 500


VALID = token_metrics(Baseline(tokens=400, tools=4, model_tokens=300), [make_tool(tokens=100)], "cl100k_base")


@pytest.mark.parametrize(
    "wrong",
    [
        {"baseline_tokens": -5, "savings_percentage": 400},
        {"baseline_tokens": 99, "tokens_saved": -1},
        {"returned_tokens": -1, "tokens_saved": 401},
        {"tokens_saved": 301},
        {"savings_percentage": 100.01},
        {"savings_percentage": -0.01},
        {"answer_tokens": -1},
        {"uncounted_total": -1},
    ],
)
def test_metrics_that_cannot_be_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="|".join(wrong)):
        TokenMetrics.model_validate({**VALID.model_dump(), **wrong})


def test_the_net_is_of_the_model_form_less_the_answer_and_may_be_negative() -> None:
    assert TokenMetrics.model_validate(VALID.model_dump()) == VALID
    assert [VALID.with_answer_tokens(tokens).net_tokens_saved for tokens in (0, 120, 301)] == [300, 180, -1]
    assert VALID.with_answer_tokens(120).with_answer_tokens(301) == VALID.with_answer_tokens(301)


@given(*[st.integers(0, 1_000)] * 4)
def test_offered_tools_are_in_no_part_of_the_baseline(tokens: int, model: int, offered: int, of_model: int) -> None:
    left = Baseline(tokens, 9, model_tokens=model).without(Baseline(offered, 2, model_tokens=of_model))

    assert (left.tokens, left.model_tokens, left.tools) == (max(0, tokens - offered), max(0, model - of_model), 7)
