"""The recount: equal on a real service, different where a message, a tool or a report is changed."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recount import Plan, Recording, record, recounted, summed
from benchmarks.recount_messages import session
from benchmarks.recount_numbers import Caller, Row, Upstream, tokens_of
from shared.catalog import ENCODINGS
from shared.text.tokens import counter
from shared.upstream.target import StdioTarget
from tests.support.hostile.processes import callable_stdio, scripted_stdio
from tests.support.profiles import examples
from toolscale.demo.servers import LaunchableServer

pytestmark = pytest.mark.process

ANN = Caller("ann", "ann-" + "a" * 40)
BOB = Caller("bob", "bob-" + "b" * 40, toolset="some")
SERVERS = {"good": scripted_stdio("good"), "callable": callable_stdio()}


def launchable(server: str, target: StdioTarget) -> LaunchableServer:
    return LaunchableServer(server, target.command, target.args, {})


async def play(url: str) -> None:
    async with session(f"{url}/mcp", ANN.token) as agent:
        await agent.list_tools()
        await agent.call("find_tool", tool_description="something useful")
        await agent.call("find_tool", tool_description="echo", detail="summary", encoding="o200k_base")
        await agent.call_pages("list_available_tools", detail="summary", max_tokens=500)
        await agent.call("call_tool", tool_name="callable:echo", parameters={"words": "hello"})
        await agent.call("call_tool", tool_name="callable:dies", parameters={})
        await agent.call_pages("call_tool", tool_name="callable:huge", parameters={"size_bytes": 100_000})
    async with session(f"{url}/mcp", BOB.token, mode="legacy") as agent:
        await agent.list_tools()
        await agent.call("find_tool", tool_description="echo")
        await agent.call("get_active_toolset")
        await agent.call("callable__echo", words="hello")
        await anyio.sleep(1)  # until the call is written
        await agent.call("get_active_toolset", encoding="o200k_base")


PLAN = Plan(
    [launchable(name, target) for name, target in SERVERS.items()],
    {"good": ["dev"]},
    {"some": ["callable", "good:one"]},
    (ANN, BOB),
    play,
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(PLAN)


def differences(recording: Recording) -> set[str]:
    return {row.number for row in recounted(PLAN, recording) if not row.is_equal}


def test_all_numbers_of_a_real_service_equal_their_recount(recording: Recording) -> None:
    rows = recounted(PLAN, recording)

    assert [row for row in rows if not row.is_equal] == []
    assert {row.number.split()[0] for row in rows} >= {
        "find_tool", "list_available_tools", "get_active_toolset", "report", "costs", "ls",
    }  # fmt: skip
    assert "get_active_toolset advice, tokens less" in {row.number for row in rows}


def test_a_changed_number_of_a_report_is_a_difference(recording: Recording) -> None:
    totals = recording.report["totals"] | {"net_tokens_saved": 7}

    assert differences(replace(recording, report=recording.report | {"totals": totals})) == {
        "report totals.net_tokens_saved"
    }


def test_a_message_that_the_service_did_not_count_is_a_difference(recording: Recording) -> None:
    again = replace(recording, exchanges=[*recording.exchanges, recording.exchanges[-1]])

    assert "report own_tools[get_active_toolset].answers" in differences(again)


def test_a_tool_that_the_service_does_not_have_is_a_difference(recording: Recording) -> None:
    tools: dict[str, list[dict[str, object]]] = {"good": [{"name": "unknown", "inputSchema": {"type": "object"}}]}
    for (server, _), tool in recording.upstream.tools.items():
        tools.setdefault(server, []).append(tool)
    more = Upstream(tools, PLAN.groups)

    found = differences(replace(recording, upstream=more, unasked=more))

    assert {"find_tool token_metrics.baseline_tokens", "find_tool token_metrics.net_tokens_saved"} <= found
    assert {"report totals.baseline_tokens", "costs total.tokens.wire", "ls tokens"} <= found


@settings(max_examples=examples(100))
@given(st.text(), st.sampled_from(ENCODINGS))
def test_the_independent_count_of_a_text_is_that_of_the_product(text: str, encoding: str) -> None:
    assert tokens_of(text, encoding) == counter(encoding)(text)  # type: ignore[arg-type]


def test_the_example_of_a_number_is_its_first_difference() -> None:
    rows = [Row("a", "first", 1, 1), Row("a", "second", 1, 2), Row("b", "first", True, True)]

    found = summed(rows)

    assert (found["numbers"]["a"]["compared"], found["numbers"]["a"]["equal"]) == (2, 1)
    assert found["numbers"]["a"]["example"]["answer"] == "second"
    assert [row["answer"] for row in found["differences"]] == ["second"]
