"""A script reaches what `call_tool` reaches, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client

from query.answers.pages import shown_texts
from query.caller import Caller
from query.mcp import service_of
from query.tools.call_tool import CALL_TOOL
from shared.catalog import DEFAULT_ENCODING
from shared.text.tokens import counter
from tests.scripts.site import GROUPS, TOOLS, Site, facts, in_turn, running_site, texts, value
from tests.support.policies import always, policy, rule
from tests.support.profiles import examples

pytestmark = pytest.mark.process

NAMES = [tool.definition.name for tool in TOOLS["files"]]
Calls = list[tuple[str, dict[str, Any]]]

_names = st.one_of(
    st.builds("{}:{}".format, st.sampled_from([*TOOLS, "no"]), st.sampled_from([*NAMES, "such"])),
    st.sampled_from([*NAMES, "call_tool", "run_script", "files:say\x00", "files.say", "files:files:say", ""]),
)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("aé\n'\"\\{}日", max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=2),
    max_leaves=4,
)
# `read` names its argument: with another one, the check before the first call ends the script
_path: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional={"path": st.text("ab", max_size=3)})
_free: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text("xyz", min_size=1, max_size=3), _values, max_size=2)
_callers = st.sampled_from([None, frozenset({"dev"}), frozenset({"office"}), frozenset({"other"})]).map(
    lambda groups: Caller("ann", groups)
)
_rules = st.lists(
    st.tuples(
        st.sampled_from(["deny", "ask", "allow"]),
        st.fixed_dictionaries(
            {},
            optional={
                "servers": st.lists(st.sampled_from([*GROUPS, "*"]), min_size=1, max_size=1),
                "tools": st.lists(st.sampled_from([*NAMES, "s*"]), min_size=1, max_size=1),
                "annotations": st.lists(st.sampled_from(["read_only", "not_read_only"]), min_size=1, max_size=1),
            },
        ),
    ),
    max_size=2,
)


@st.composite
def _calls(draw: st.DrawFn) -> Calls:
    names = draw(st.lists(_names, max_size=5))
    return [(name, draw(_path if name.endswith("read") else _free)) for name in names]


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with running_site() as site:
        yield site


def _received(site: Site) -> list[tuple[tuple[str, str], object]]:
    received = list(zip(site.servers.received, site.servers.arguments, strict=True))
    site.servers.received.clear()
    site.servers.arguments.clear()
    return received


async def _one_by_one(site: Site, calls: Calls) -> tuple[list[Any], list[str], bool]:
    """Return what a script would get of each call, up to the first that asks the user, and the texts of all results."""
    results, shown = list[Any](), list[str]()
    async with Client(service_of(site.catalogue, site.upstreams, always(site.caller))) as client:
        for tool, arguments in calls:
            answer = await client.call_tool(CALL_TOOL.name, {"tool_name": tool, "parameters": arguments})
            own = shown_texts(answer.content) or [json.dumps(answer.structured_content, separators=(",", ":"))]
            shown += own
            text = "\n".join(own)
            if "need the user's confirmation" in text:
                return results, shown, True
            if answer.is_error:
                results.append(f"error: {text}")
            elif answer.structured_content is not None:
                results.append(answer.structured_content)
            else:
                results.append(json.loads(text) if tool.endswith("list") else text)
    return results, shown, False


@settings(max_examples=examples(20))
@example(calls=[("files:say", {}), ("files:fail", {}), ("time:list", {})], caller=Caller("ann"), rules=[])
@example(calls=[("time:say", {}), ("files:say", {})], caller=Caller("ann", frozenset({"office"})), rules=[])
@example(calls=[("say", {})], caller=Caller("ann"), rules=[("ask", {})])
@given(calls=_calls(), caller=_callers, rules=_rules)
def test_the_calls_of_a_script_are_those_of_call_tool_with_the_same_arguments(
    shared: Site, calls: Calls, caller: Caller, rules: list[tuple[str, dict[str, list[str]]]]
) -> None:
    shared.caller = caller
    shared.rules = policy("".join(rule(action, **conditions) for action, conditions in rules))
    _received(shared)

    expected, shown, asks = anyio.run(_one_by_one, shared, calls)
    by_call_tool = _received(shared)
    answer = anyio.run(shared.run, in_turn(calls))

    assert _received(shared) == by_call_tool
    assert bool(answer.is_error) == asks
    if not asks:
        assert value(answer) == expected
    if calls and not asks:
        count = counter(DEFAULT_ENCODING)
        came_back = sum(map(count, texts(answer)[1:]))
        assert facts(answer)["tokens_kept_out"] == sum(map(count, shown)) - came_back


@settings(max_examples=examples(15))
@given(rows=st.integers(0, 400), log=st.integers(0, 60), max_tokens=st.integers(200, 1_000))
def test_every_page_of_a_result_is_within_its_budget_and_all_of_them_are_the_whole(
    shared: Site, rows: int, log: int, max_tokens: int
) -> None:
    shared.caller, shared.rules = Caller("ann"), policy("")
    source = f'print("é" * {log})\n[str(n) + " ünïcode" for n in range({rows})]'

    async def pages() -> list[list[str]]:
        read: list[list[str]] = []
        arguments: dict[str, Any] = {"source": source, "max_tokens": max_tokens}
        async with shared.client() as client:
            while True:
                page = texts(await client.call_tool("run_script", arguments))
                read.append(page)
                if not page[-1].startswith('{"nextCursor"'):
                    return read
                arguments["cursor"] = json.loads(page[-1])["nextCursor"]

    read = anyio.run(pages)

    count = counter(DEFAULT_ENCODING)
    assert all(sum(map(count, page)) <= max_tokens for page in read)
    # a page on its own has the result in a block, others have it in the text behind what is stated
    whole = "\n".join(read[0]) if len(read) == 1 else "".join(page[0] for page in read)
    stated, *said, result = whole.split("\n")
    assert json.loads(stated)["calls"] == []
    assert [json.loads(each)["log"] for each in said] == ["é" * log + "\n"]
    assert json.loads(result) == [f"{number} ünïcode" for number in range(rows)]
