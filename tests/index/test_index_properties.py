"""For any fleet and any scope, sums, gaps and hits are those of counting one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.catalog import (
    ENCODINGS,
    Annotation,
    Encoding,
    IndexedTool,
    Scope,
    ScopeRule,
    Status,
    TokenSum,
    effective,
)
from shared.index.tools import ToolIndex
from tests.support.fakes import DIMENSION, asking, closest, embedded, make_tool
from tests.support.indexes import open_edge
from tests.support.profiles import examples

SERVERS, GROUPS = ("a", "b", "c"), ("x", "y", "z")
STATUSES: tuple[Status, ...] = ("running", "stopped", "quarantined")
MORE_THAN_ANY_FLEET = 100

# running tools and wide scopes more often than not, or most scopes would be empty
statuses = st.sampled_from(("running", "running", *STATUSES))
groups = st.frozensets(st.sampled_from(GROUPS))
counts = st.dictionaries(st.sampled_from(ENCODINGS), st.integers(0, 9))
tools = st.builds(
    make_tool,
    server_id=st.sampled_from(SERVERS),
    name=st.sampled_from([*(f"t{i}" for i in range(12)), "a:t2"]),
    tokens=counts,
    groups=groups,
    status=statuses,
    read_only=st.booleans(),
)
fleets = st.lists(tools, min_size=5, max_size=30, unique_by=lambda tool: tool.qualified_name)
HINTS: tuple[Annotation, ...] = ("read_only", "not_read_only", "destructive", "open_world", "closed_world")
rules = st.builds(
    ScopeRule,
    is_denial=st.booleans(),
    servers=st.none() | st.frozensets(st.sampled_from([*SERVERS, "unknown"]), min_size=1),
    names=st.none() | st.frozensets(st.sampled_from(["t1", "t2", "t3", "a:t2"]), min_size=1),
    annotations=st.none() | st.frozensets(st.sampled_from(HINTS), min_size=1, max_size=2),
)
scopes = st.builds(
    Scope,
    groups=st.none() | st.frozensets(st.sampled_from([*GROUPS, "unknown"])),
    servers=st.none() | st.frozensets(st.sampled_from([*SERVERS, "unknown"])),
    status=statuses,
    read_only=st.booleans(),
    exclude=st.frozensets(st.sampled_from(["t1", "a:t2", "b:t3", "unknown"])),
    rules=st.lists(rules, max_size=4).map(tuple),
)


# with a limit of one value per facet the index sums tool by tool
FACET_LIMITS = {"tool by tool": 1, "by facet": 4_096}


@pytest.fixture(scope="module", params=FACET_LIMITS)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolIndex]:
    facet_limit = FACET_LIMITS[request.param]
    with closing(open_edge(tmp_path_factory.mktemp("index"), "tools", DIMENSION, facet_limit)) as index:
        yield index


@settings(max_examples=examples(60))
@example(fleet=[], scope=Scope(), encoding="cl100k_base")
@given(fleet=fleets, scope=scopes, encoding=st.sampled_from(ENCODINGS))
def test_answers_equal_a_recount(index: ToolIndex, fleet: list[IndexedTool], scope: Scope, encoding: Encoding) -> None:
    _replace_all(index, fleet)
    within = [tool for tool in fleet if _is_within(scope, tool)]
    counted = [tool.token_counts[encoding] for tool in within if encoding in tool.token_counts]
    uncounted = {tool.qualified_name for tool in within if encoding not in tool.token_counts}

    summed = index.token_sum(scope, encoding)
    found = closest(index, asking(), scope, MORE_THAN_ANY_FLEET)
    page = index.tools(scope, limit=MORE_THAN_ANY_FLEET)
    read = list(index.counts(scope, encoding))

    assert summed == TokenSum(sum(counted), len(counted), len(uncounted))
    assert sorted((row.server_id, row.tool_name, row.tokens or 0) for row in read) == sorted(
        (tool.server_id, tool.definition.name, tool.token_counts.get(encoding, 0)) for tool in within
    )
    assert set(index.distinct_names()) == {tool.definition.name for tool in fleet}
    assert set(index.uncounted(scope, encoding, MORE_THAN_ANY_FLEET)) == uncounted
    assert sorted(tool.qualified_name for tool in found) == sorted(tool.qualified_name for tool in within)
    assert {tool.qualified_name: tool for tool in page.tools} == {tool.qualified_name: tool for tool in within}


def _replace_all(index: ToolIndex, fleet: list[IndexedTool]) -> None:
    for server_id in SERVERS:
        index.delete(server_id, index.tool_states(server_id))
    index.upsert([embedded(tool, seed) for seed, tool in enumerate(fleet)])


def _is_within(scope: Scope, tool: IndexedTool) -> bool:
    if tool.status != scope.status:
        return False
    if scope.groups is not None and not any(group in scope.groups for group in tool.groups):
        return False
    if scope.read_only and not tool.definition.read_only:
        return False
    if tool.definition.name in scope.exclude or tool.qualified_name in scope.exclude:
        return False
    if scope.servers is not None and tool.server_id not in scope.servers:
        return False
    return _is_permitted(scope.rules, tool)


def _is_permitted(rules: Sequence[ScopeRule], tool: IndexedTool) -> bool:
    held = {"read_only", "not_destructive"} if tool.definition.read_only else {"not_read_only", "destructive"}
    deciding = [
        rule.is_denial
        for rule in rules
        if (rule.servers is None or tool.server_id in rule.servers)
        and (rule.names is None or tool.definition.name in rule.names)
        and (rule.annotations is None or rule.annotations & (held | {"not_idempotent", "open_world"}))
    ]
    return not deciding or not deciding[0]


@given(st.lists(rules, max_size=5), tools)
def test_rules_that_decide_nothing_can_be_left_out(many: list[ScopeRule], tool: IndexedTool) -> None:
    is_permitted = _is_permitted(many, tool)

    assert _is_permitted(effective(many), tool) == is_permitted
    assert _is_permitted(Scope(rules=tuple(many)).rules_of(tool.server_id), tool) == is_permitted
