"""What `call_tool` refuses before it connects; `test_called_tool.py` calls real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult

from query.caller import Caller
from query.calling.limits import CallLimits
from query.catalogue import Catalogue, recorded
from query.mcp import build_server, service_of
from query.tool import CATALOGUE_UNREACHABLE
from query.tools.registry import builtin_tools
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import RowKey, today
from shared.catalog import IndexedTool
from shared.upstream.target import StdioTarget, Target
from tests.support.calling import PATIENT, catalogue_of, text_of, tool_of, upstreams_to
from tests.support.fakes import FakeIndex, make_tool
from tests.support.metrics import counted
from tests.support.present import present

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("noon")]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

CONVERT = tool_of("time", "convert", at={"type": "string"})
# whatever gets as far as this shows that it was sent
SENT: Mapping[str, Target] = {"time": StdioTarget("no-such-program-anywhere")}
WAS_SENT = "time: cannot be started"


async def call(
    *tools: IndexedTool,
    name: str = "time:convert",
    server_name: str | None = None,
    parameters: object = None,
    caller: Caller | None = None,
    mode: str = "auto",
    catalogue: Catalogue | None = None,
    limits: CallLimits = PATIENT,
) -> CallToolResult:
    upstreams = upstreams_to(SENT, limits)
    ours = builtin_tools(catalogue or catalogue_of(tools), upstreams)
    server = build_server(ours, lambda _: caller or Caller("anyone"))
    request = {"tool_name": name, "parameters": {"at": "noon"} if parameters is None else parameters}
    request |= {"server_name": server_name} if server_name else {}
    async with Client(server, mode=mode) as client:
        answer = await _answer(client, request)
    if isinstance(answer, MCPError):
        raise answer
    return answer


async def _answer(client: Client, request: dict[str, Any]) -> CallToolResult | MCPError:
    try:
        return await client.call_tool("call_tool", request)
    except MCPError as error:  # raised within the client's block, it would come out in a group
        return error


@both_eras
async def test_what_may_be_called_is_sent(mode: str) -> None:
    assert text_of(await call(CONVERT, mode=mode)).startswith(WAS_SENT)


@both_eras
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"at": [12]}, "convert: parameters.at: expected string"),
        ({}, 'convert: parameters.at: is required; its schema: {"type":"string"}'),
    ],
)
async def test_invalid_arguments_return_an_error_result_that_names_the_field_and_the_expected_value(
    parameters: dict[str, Any], reason: str, mode: str
) -> None:
    result = await call(CONVERT, parameters=parameters, mode=mode)

    assert result.is_error
    assert text_of(result) == reason


async def test_callers_mistakes_are_no_failures_of_toolscale() -> None:
    catalogue = catalogue_of([CONVERT])
    upstreams = upstreams_to(SENT)
    with counted() as found:
        await call(catalogue=catalogue, parameters={})
        async with Client(service_of(catalogue, upstreams)) as client:
            for tool, arguments in {"find_tool": {"tool_description": "time"}, "call_tool": {}}.items():
                with pytest.raises(MCPError) as caught:
                    await client.call_tool(tool, {**arguments, "cursor": "forged"})
                assert caught.value.code == INVALID_PARAMS

    assert found['toolscale_calls_total{outcome="refused"}'] == 1
    assert found['toolscale_requests_total{outcome="refused",tool="call_tool"}'] == 2
    assert found['toolscale_requests_total{outcome="refused",tool="find_tool"}'] == 1
    assert not [name for name, number in found.items() if number and ('"error"' in name or '"failed"' in name)]


@pytest.mark.parametrize("status", ["stopped", "quarantined"])
async def test_a_server_that_does_not_run_is_said_so_and_nothing_is_sent(status: Any) -> None:
    result = await call(replace(CONVERT, status=status))

    assert result.is_error
    assert text_of(result).startswith(f"time: is {status}")


@pytest.mark.parametrize("status", ["stopped", "quarantined"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_tool_named_like_that_of_a_server_which_does_not_run_is_not_called_in_its_place(
    status: Any, *, apart: bool
) -> None:
    catalogue = catalogue_of([make_tool("fs", "read", status=status), make_tool("time", "fs:read")])
    record = present(catalogue.index.server("fs"))
    catalogue.index.put_server(record.model_copy(update={"status": status}))
    name, server_name = ("read", "fs") if apart else ("fs:read", None)

    result = await call(catalogue=catalogue, name=name, server_name=server_name)

    assert text_of(result).startswith(f"fs: is {status}")


async def test_a_server_that_stopped_after_its_tools_were_read_is_not_called() -> None:
    catalogue = catalogue_of([CONVERT])
    record = present(catalogue.index.server("time"))
    catalogue.index.put_server(record.model_copy(update={"status": "stopped"}))

    assert text_of(await call(catalogue=catalogue)) == "time: is stopped, so its tools cannot be called now"


async def test_a_stale_server_is_tried() -> None:
    catalogue = catalogue_of([CONVERT])
    record = present(catalogue.index.server("time"))
    catalogue.index.put_server(record.model_copy(update={"stale_since": 1.0, "last_error": "no answer"}))

    assert text_of(await call(catalogue=catalogue)).startswith(WAS_SENT)


async def test_a_tool_of_a_group_that_the_caller_is_not_in_cannot_be_called_or_seen() -> None:
    hidden = replace(CONVERT, groups=frozenset({"hr"}))
    seen = make_tool("git", "log", groups=["code"])

    result = await call(hidden, seen, caller=Caller("ann", groups=frozenset({"code"})))

    assert text_of(result) == "There is no tool 'time:convert'. Nearest: git:log"


async def test_a_name_of_several_servers_is_answered_with_all_of_them() -> None:
    result = await call(CONVERT, make_tool("units", "convert"), name="convert")

    assert text_of(result) == "'convert' is a tool of several servers: time:convert, units:convert"


@both_eras
@pytest.mark.parametrize("name", ["time.convert", "time__convert", "time/convert"])
async def test_a_name_that_joins_server_and_tool_in_another_way_is_sent_nowhere_and_the_tool_is_named(
    name: str, mode: str
) -> None:
    stranger = make_tool("units", name)

    result = await call(CONVERT, stranger, name=name, mode=mode)

    assert result.is_error
    assert text_of(result).startswith(f"There is no tool {name!r}. Nearest: ")
    assert "time:convert" in text_of(result)
    assert text_of(await call(CONVERT, stranger, name=f"units:{name}", mode=mode)).startswith("units: ")


async def test_a_caller_without_the_permission_is_refused_and_not_offered_the_tool() -> None:
    reader = Caller("ann", permissions=frozenset({"catalog:read"}))
    upstreams = upstreams_to(SENT)
    async with Client(build_server(builtin_tools(catalogue_of([CONVERT]), upstreams), lambda _: reader)) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}

    assert "find_tool" in listed
    assert "call_tool" not in listed
    assert "tools:call" in text_of(await call(CONVERT, caller=reader))


async def test_an_unreachable_catalogue_is_said() -> None:
    catalogue = catalogue_of([CONVERT])
    assert isinstance(catalogue.index, FakeIndex)
    catalogue.index.is_down = True

    assert text_of(await call(catalogue=catalogue)) == CATALOGUE_UNREACHABLE


async def test_without_a_way_to_the_servers_no_tool_that_calls_is_offered() -> None:
    async with Client(build_server(builtin_tools(catalogue_of([CONVERT])))) as client:
        assert "call_tool" not in {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize(
    ("name", "parameters", "outcome", "tool", "server"),
    [
        ("convert", {"at": "secret"}, "ServerUnreachable", "convert", "time"),
        ("convert", {"at": ["secret"]}, "ArgumentsInvalid", "convert", "time"),
        ("nothing", {"at": "secret"}, "ToolNotFound", "nothing", None),
    ],
)
async def test_one_log_line_says_who_called_what_and_how_it_ended_and_never_with_what(
    name: str, parameters: dict[str, Any], outcome: str, tool: str, server: str | None
) -> None:
    with structlog.testing.capture_logs() as lines, contextlib.suppress(MCPError):
        await call(CONVERT, name=name, parameters=parameters, caller=Caller("ann"))

    (line,) = [line for line in lines if line["event"] == "tool_called"]
    assert (line["caller"], line["outcome"], line["tool"], line["server"]) == ("ann", outcome, tool, server)
    assert "secret" not in repr(line)


async def test_a_call_is_noted_by_server_and_tool_and_one_that_toolscale_ended_itself_is_not(tmp_path: Path) -> None:
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)) as usage:
        with recorded(catalogue_of([CONVERT]), usage) as catalogue:
            await call(catalogue=catalogue)
            await call(catalogue=catalogue, name="time:nothing")
            await call(catalogue=catalogue, parameters={})
            await call(catalogue=catalogue, limits=CallLimits(per_caller=0))
        ((key, counts),) = usage.rows(today(), today()).items()

    assert key == RowKey(today(), "anyone", "time", "convert")
    assert {**counts, "ms": 0} == {"answers": 0, "calls": 1, "failed_calls": 1, "bytes": 0, "ms": 0}
