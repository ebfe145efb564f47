"""`run_script`: what a script returns, what it lists, and how it ends."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from mcp_types import ElicitResult

from query.caller import Caller
from query.mcp import service_of
from query.scripts.script import AT_ONCE
from query.tools.registry import builtin_definitions
from query.tools.run_script import RUN_SCRIPT
from shared.catalog import DEFAULT_ENCODING
from shared.text.tokens import counter
from tests.scripts.site import Site, facts, outcomes, respond, running_site, texts, value
from tests.support.calling import PATIENT
from tests.support.hostile.scripted_http import Exchange
from tests.support.policies import policy, rule

pytestmark = [pytest.mark.anyio, pytest.mark.process]

READER = Caller("ann", permissions=frozenset({"catalog:read"}))


def test_its_definition_costs_at_most_160_tokens() -> None:
    (wire,) = [each.wire for each in builtin_definitions() if each.name == RUN_SCRIPT.name]

    assert counter(DEFAULT_ENCODING)(wire) <= 160


async def test_a_call_returns_structured_content_or_parsed_json_or_a_text(site: Site) -> None:
    answer = await site.run(
        'a = await call("files:read", {"path": "x"})\n'
        'b = await call("files:list", {"n": 1})\n'
        'c = await call("files:say")\n'
        "[a, b, c]"
    )

    assert value(answer) == [{"read": {"path": "x"}}, [{"n": 1}, 1], "said {}"]
    assert outcomes(answer) == [("files:read ok", 1), ("files:list ok", 1), ("files:say ok", 1)]


async def test_call_is_a_value_that_a_script_may_pass_on(site: Site) -> None:
    answer = await site.run(
        "async def twice(f, tool):\n    return [await f(tool), await f(tool)]\n"
        'c = call\n[await twice(c, "files:say"), find("read")]'
    )

    assert value(answer)[0] == ["said {}", "said {}"]


async def test_a_name_that_a_script_invents_is_cut(site: Site) -> None:
    answer = await site.run('try:\n    await call("x" * 1_000_000)\nexcept ToolError:\n    pass\n1')

    assert value(answer) == 1
    assert len(texts(answer)[0]) < 1_000


async def test_eight_gathered_calls_are_in_flight_at_a_time(site: Site) -> None:
    in_flight, most, lock = 0, list[int](), threading.Lock()

    def respond_slowly(exchange: Exchange) -> None:
        nonlocal in_flight
        with lock:
            in_flight += 1
            most.append(in_flight)
        time.sleep(0.3)
        with lock:
            in_flight -= 1
        respond(exchange)

    site.servers.on_call = dict.fromkeys(site.servers.on_call, respond_slowly)
    await site.run('import asyncio\nawait asyncio.gather(*[call("time:say") for n in range(30)])')

    assert max(most) == AT_ONCE


async def test_gathered_calls_run_at_the_same_time_and_are_counted_together(site: Site) -> None:
    answer = await site.run(
        "import asyncio\n"
        'found = await asyncio.gather(*[call("time:list", {"n": n}) for n in range(20)])\n'
        "sum(each[0]['n'] for each in found)"
    )

    assert value(answer) == sum(range(20))
    assert outcomes(answer) == [("time:list ok", 20)]


async def test_gathered_calls_wait_for_each_other_within_the_callers_limit() -> None:
    with running_site(replace(PATIENT, per_caller=2)) as site:
        answer = await site.run('import asyncio\nawait asyncio.gather(*[call("time:say") for n in range(9)])')

    assert outcomes(answer) == [("time:say ok", 9)]


async def test_an_error_of_a_tool_is_caught_as_tool_error(site: Site) -> None:
    answer = await site.run(
        'try:\n    await call("files:fail")\nexcept ToolError as error:\n    print(error)\n"went on"'
    )

    assert value(answer) == "went on"
    assert facts(answer)["log"] == "it failed\n"
    assert outcomes(answer) == [("files:fail tool_error", 1)]


async def test_an_error_has_its_line_and_the_calls_before_it(site: Site) -> None:
    answer = await site.run('x = await call("files:say")\nprint("é")\n\ny = x["no"]')

    assert answer.is_error
    assert facts(answer)["line"] == 4
    assert "TypeError" in facts(answer)["error"]
    assert outcomes(answer) == [("files:say ok", 1)]


async def test_an_uncaught_tool_error_ends_the_script_at_its_line(site: Site) -> None:
    answer = await site.run('await call("files:say")\nawait call("files:fail")\nawait call("files:say")')

    assert answer.is_error
    assert facts(answer)["line"] == 2
    assert facts(answer)["error"] == "ToolError: it failed"
    assert outcomes(answer) == [("files:say ok", 1), ("files:fail tool_error", 1)]


async def test_find_returns_signatures_with_and_without_await(site: Site) -> None:
    answer = await site.run('[find("read a path"), await find("read a path")]')

    first, second = value(answer)
    assert first == second
    assert any(line.startswith(("files:read(path", "read(path", "time:read(path")) for line in first)


@pytest.mark.parametrize(
    "written",
    [
        'call("files:read", {"path": "x", "paht": "y"})',
        'call(tool="files:read", arguments={"paht": "y"})',
        'call(  # the path\n  "files:read",\n  {"paht": "y"},\n)',
        "[call('files:read', {'paht': n}) for n in 'ab'][0]",
    ],
)
async def test_an_argument_that_a_tool_does_not_name_ends_the_script_before_its_first_call(
    site: Site, written: str
) -> None:
    answer = await site.run(f'await call("files:say")\nawait {written}')

    assert answer.is_error
    assert facts(answer)["line"] == 2
    assert "paht" in facts(answer)["error"]
    assert facts(answer)["calls"] == []
    assert site.servers.received == []


@pytest.mark.parametrize(
    "source",
    [
        'arguments = {"path": "x"}\nawait call("files:read", arguments)',
        'def read(tool):\n    return call(tool, {"path": "x"})\nawait read("files:read")\nawait read("time:read")',
        'for tool in ["files:read", "files:say"]:\n    x = await call(tool, {"path": "x"})\nx.upper()',
        'x = None\nfor n in range(2):\n    x = await call("files:read", {"path": str(n)})\nx["read"]',
        'await call("files:read", dict(path="x"))',
        'given = {"path": "x"}\nawait call("files:read", {**given})',
        'await call("files:read", {**{"path": "x"}})',
    ],
)
async def test_the_check_before_the_first_call_refuses_no_script_that_works(site: Site, source: str) -> None:
    answer = await site.run(source)

    assert not answer.is_error, texts(answer)


async def test_a_call_that_is_not_awaited_is_listed_and_named_in_the_log(site: Site) -> None:
    answer = await site.run('call("files:say")\n1')

    assert value(answer) == 1
    assert outcomes(answer) == [("files:say ok", 1)]
    assert "line 1" in facts(answer)["log"]


async def test_a_call_that_needs_the_user_ends_the_script_and_is_not_sent(site: Site) -> None:
    site.rules = policy(rule("ask", tools=["fail"]))

    async def accepts(context: Any, params: Any) -> ElicitResult:
        raise AssertionError("a script asks nobody")

    answer = await site.run(
        'await call("files:say")\ntry:\n    await call("files:fail")\nexcept ToolError:\n    pass\n'
        'await call("files:list")',
        elicitation_callback=accepts,
    )

    assert answer.is_error
    assert "files:fail" in facts(answer)["error"]
    assert "call_tool" in facts(answer)["error"]
    assert facts(answer)["line"] == 3
    assert outcomes(answer) == [("files:say ok", 1), ("files:fail CallNotConfirmed", 1)]
    assert site.servers.received == [("files", "say")]


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        ('await call("files:fail")', 2),  # the policy asks
        ('for n in range(64):\n    await call("files:say")', 3),
        ('for n in range(17):\n    find("x")', 3),
        ("while True:\n    pass", 1),
    ],
)
async def test_what_was_printed_and_the_line_are_there_however_the_script_ends(
    site: Site, ending: str, line: int
) -> None:
    site.rules = policy(rule("ask", tools=["fail"]))

    answer = await site.run(f'await call("files:say"); print("got so far")\n{ending}')

    assert answer.is_error
    assert facts(answer)["log"] == "got so far\n"
    assert facts(answer)["line"] == line


async def test_calls_in_flight_end_before_the_script_does(site: Site) -> None:
    def respond_slowly(exchange: Exchange) -> None:
        time.sleep(0.5)
        respond(exchange)

    site.servers.on_call = dict.fromkeys(site.servers.on_call, respond_slowly)
    site.rules = policy(rule("ask", tools=["fail"]))

    answer = await site.run(
        'import asyncio\nawait asyncio.gather(call("files:say"), call("files:fail"), call("files:list"))'
    )

    received = [f"{server}:{tool} ok" for server, tool in site.servers.received]
    assert sorted(received) == sorted(outcome for outcome, _ in outcomes(answer) if outcome.endswith(" ok"))


async def test_a_denied_call_and_one_of_an_unknown_tool_raise_tool_error(site: Site) -> None:
    site.rules = policy(rule("deny", tools=["say"]))
    site.caller = Caller("ann", groups=frozenset({"office"}))

    answer = await site.run(
        "errors = []\n"
        'for tool in ["time:say", "files:read", "no:such"]:\n'
        '    try:\n        await call(tool, {"path": "x"})\n'
        "    except ToolError as error:\n        errors.append(str(error))\n"
        "errors"
    )

    denied, invisible, unknown = value(answer)
    assert denied.startswith("There is no tool 'time:say'")
    assert invisible.replace("files:read", "") == unknown.replace("no:such", "")
    assert site.servers.received == []


async def test_a_script_finds_no_denied_tool(site: Site) -> None:
    before = value(await site.run('await find("say read list fail")'))
    site.rules = policy(rule("deny", tools=["say"]))

    after = value(await site.run('await find("say read list fail")'))

    assert any(line.startswith("time:say(") for line in before)
    assert after
    assert not any("say(" in line for line in after)


async def test_a_caller_that_may_not_search_finds_nothing_in_a_script(site: Site) -> None:
    site.caller = Caller("ann", permissions=frozenset({"tools:call"}))

    found = value(await site.run('try:\n    r = await find("read")\nexcept ToolError as error:\n    r = str(error)\nr'))

    assert found == "find needs the permission catalog:read"


async def test_after_a_call_that_fails_inside_the_answer_still_has_the_calls_before_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("query.tools.call_tool.check_parameters", fails)
    answer = await site.run('try:\n    await call("time:say")\nexcept ToolError as error:\n    r = str(error)\nr')

    assert outcomes(answer) == [("time:say failed", 1)]
    assert value(answer) == "internal error"


async def test_arguments_hold_as_many_values_as_those_of_a_request(site: Site) -> None:
    answer = await site.run('await call("time:say", {"all": [1] * 60_000})')

    assert "50,000 values" in str(answer.content)
    assert site.servers.received == []


async def test_a_caller_that_may_not_call_tools_never_sees_it(site: Site) -> None:
    site.caller = READER

    async with site.client() as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("run_script", {"source": "1"})

    assert "run_script" not in listed
    assert answer.is_error


@pytest.mark.parametrize("conditions", ['callers = ["a*"]', 'groups = ["dev"]', ""])
async def test_the_policy_switches_scripts_off_for_callers(site: Site, conditions: str) -> None:
    site.caller = Caller("ann", groups=frozenset({"dev"}))
    site.rules = policy(f'[[scripts]]\n{conditions}\naction = "deny"\n')

    async with site.client() as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("run_script", {"source": "1"})

    assert "run_script" not in listed
    assert "call_tool" in listed
    assert answer.is_error


async def test_the_policy_of_others_leaves_a_caller_its_scripts(site: Site) -> None:
    site.rules = policy('[[scripts]]\ncallers = ["bob"]\naction = "deny"\n')

    assert value(await site.run("1 + 1")) == 2


async def test_progress_is_a_line_for_each_call_that_has_ended(site: Site) -> None:
    lines: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        lines.append((progress, message))

    async with site.client() as client:
        await client.call_tool(
            "run_script",
            {"source": 'for n in range(3): await call("files:list", {"n": n})\nawait call("time:say")'},
            progress_callback=on_progress,
        )

    assert lines == [(1, "files:list: ok"), (2, "files:list: ok"), (3, "files:list: ok"), (4, "time:say: ok")]


async def test_a_long_result_comes_in_pages_and_the_calls_are_on_the_first() -> None:
    with running_site(max_tokens=300) as site:
        async with site.client() as client:
            source = 'await call("files:say")\n[f"row {n}" for n in range(500)]'
            page = await client.call_tool("run_script", {"source": source})
            pages = [page]
            while cursor := _cursor(texts(page)[-1]):
                page = await client.call_tool("run_script", {"source": source, "cursor": cursor})
                pages.append(page)

    count = counter(DEFAULT_ENCODING)
    assert all(sum(map(count, texts(each))) <= 300 for each in pages)
    first, *rest = [texts(each)[0] for each in pages]
    stated, _, beginning = first.partition("\n")
    assert json.loads(stated)["calls"] == [{"server": "files", "tool": "say", "outcome": "ok"}]
    assert json.loads(beginning + "".join(rest)) == [f"row {number}" for number in range(500)]
    assert site.servers.received == [("files", "say")]


def _cursor(text: str) -> str | None:
    found = re.search(r'"nextCursor":"([^"]+)"', text)
    return found[1] if found else None


async def test_the_tokens_of_inner_results_that_stayed_out_are_those_of_call_tool(site: Site) -> None:
    count = counter(DEFAULT_ENCODING)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("files:say", {"a": 1}),
        ("files:list", {"b": list(range(50))}),
        ("files:fail", {}),
    ]
    async with site.client() as client:
        inner = 0
        for tool, arguments in calls:
            result = await client.call_tool("call_tool", {"tool_name": tool, "parameters": arguments})
            inner += sum(map(count, texts(result)))

    answer = await site.run(
        f'await call("files:say", {calls[0][1]})\nawait call("files:list", {calls[1][1]})\n'
        'try:\n    await call("files:fail")\nexcept ToolError:\n    print("failed")\n{"sum": 3}'
    )

    assert facts(answer)["tokens_kept_out"] == inner - count('{"sum":3}') - count('{"log":"failed\\n"}')


async def test_a_caller_runs_two_scripts_at_a_time(site: Site) -> None:
    import anyio

    answers: list[bool | None] = []

    async with site.client() as client, anyio.create_task_group() as tasks:

        async def run() -> None:
            result = await client.call_tool("run_script", {"source": "import time\ntime.sleep(1.5)"})
            answers.append(result.is_error)

        for _ in range(3):
            tasks.start_soon(run)

    assert sorted(map(bool, answers)) == [False, False, True]


async def test_a_long_source_is_refused(site: Site) -> None:
    answer = await site.run("#" * 100_001)

    assert answer.is_error
    assert "100,000" in texts(answer)[0]


async def test_without_upstreams_there_are_no_scripts(site: Site) -> None:
    from mcp import Client

    async with Client(service_of(replace(site.catalogue))) as client:
        assert "run_script" not in [tool.name for tool in (await client.list_tools()).tools]
