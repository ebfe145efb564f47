"""The steps that each client library plays on `toolscale serve`; a step raises AssertionError if it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mcp.types import Tool

from query.find import FIND_TOOL
from query.tools.call_tool import CALL_TOOL
from query.tools.describe_tool import DESCRIBE_TOOL
from tests.clients.driving import Driver, Reply
from tests.support.waiting import eventually

TASK = "convert a time between two timezones"
CONVERT = "time:convert_time"
NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
ENDS_CALL = "server ends the call"
EMPTY: tuple[Any, ...] = ([], "", None)


def lists(driver: Driver, _: Path) -> None:
    """The library lists the tools of Toolscale."""
    assert {"find_tool", "describe_tool", "call_tool", "list_available_tools"} <= set(driver.tools())


def finds(driver: Driver, _: Path) -> None:
    """The answer of `find_tool` names the tool for a task."""
    goes_on(driver)


def describes(driver: Driver, _: Path) -> None:
    """The answer of `describe_tool` has the input schema."""
    (tool,) = driver.answer("describe_tool", names=CONVERT)["tools"]

    assert tool["inputSchema"]["required"] == ["source_timezone", "time", "target_timezone"]


def calls(driver: Driver, _: Path) -> None:
    """The result of `call_tool` is that of the server."""
    reply = driver.call("call_tool", tool_name=CONVERT, parameters=NOON)

    assert "T21:00:00+09:00" in reply["text"], reply


def runs_a_script(driver: Driver, _: Path) -> None:
    """A script makes several calls, of which only the last expression comes back, and an error has its line."""
    each = f'await call("{CONVERT}", {{**{NOON!r}, "time": f"{{hour}}:00"}})'
    reply = driver.call("run_script", source=f"times = [{each} for hour in range(10, 14)]\nlen(times)")
    failed = driver.call("run_script", source="x = 1\nx.no_such_name")

    assert '"count":4' in reply["text"], reply
    assert "T21:00:00" not in reply["text"], reply
    assert_error(failed, '"line":2')
    goes_on(driver)


def rejects(driver: Driver, _: Path) -> None:
    """Wrong arguments return an error that names the argument, and the session goes on."""
    missing = driver.call("call_tool", tool_name=CONVERT, parameters={"source_timezone": "UTC"})
    mistyped = driver.call("find_tool", tool_description=TASK, limit="many")
    unknown = driver.call("call_tool", tool_name="time:tell", parameters={})

    assert_error(missing, "parameters.time: is required")
    assert_error(mistyped, "limit: expected a whole number")
    assert_error(unknown, "time:tell")
    goes_on(driver)


def goes_on(driver: Driver) -> None:
    assert CONVERT in names(driver.answer("find_tool", tool_description=TASK))


def assert_error(reply: Reply, words: str) -> None:
    assert words in reply.get("text", ""), reply
    assert reply["is_error"] is not False, reply  # None, if the library does not show it


def ignores_empty(driver: Driver, _: Path) -> None:
    """Each empty value of an optional argument counts as absent, as clients in strict mode send them."""
    for tool, given in ((FIND_TOOL, {"tool_description": TASK}), (DESCRIBE_TOOL, {"names": CONVERT})):
        expected = names(driver.answer(tool.name, **given))
        for empty in (*each_empty(tool), *all_empty(tool)):
            assert names(driver.answer(tool.name, **given, **empty)) == expected, empty
    for empty in (*each_empty(CALL_TOOL), *all_empty(CALL_TOOL)):
        reply = driver.call("call_tool", tool_name="callable:counts", **empty)
        assert " from " in reply["text"], (empty, reply)


def each_empty(tool: Tool) -> list[dict[str, Any]]:
    """Return arguments with one optional argument each."""
    return [{name: value} for name in optional(tool) for value in EMPTY]


def all_empty(tool: Tool) -> list[dict[str, Any]]:
    """Return arguments with all optional arguments."""
    return [dict.fromkeys(optional(tool), value) for value in EMPTY]


def optional(tool: Tool) -> list[str]:
    return [name for name in tool.input_schema["properties"] if name not in tool.input_schema.get("required", ())]


def pages(driver: Driver, _: Path) -> None:
    """The cursor of an answer returns other tools."""
    asked = partial(driver.answer, "find_tool", tool_description="echo a message", limit=2)

    first = asked()
    second = asked(cursor=first["nextCursor"])

    assert len({*names(first), *names(second)}) == 4


def cancels(driver: Driver, directory: Path) -> None:
    """The library cancels a call that the server is working on, and the session goes on."""
    cancelled_call(driver, directory)
    goes_on(driver)


def ends_the_call(driver: Driver, directory: Path) -> None:
    """The server ends a call that the library cancels."""
    state = cancelled_call(driver, directory)

    eventually(lambda: state.read_text(encoding="utf-8") == "cancelled", what="the end of the call at its server")


def cancelled_call(driver: Driver, directory: Path) -> Path:
    """Cancel a slow call after it reached its server; return the file with the state of the call."""
    state = directory / "state"
    slow = {"file": str(state), "for_s": 100}
    number = driver.begin("call_tool", tool_name="callable:waits", parameters=slow)
    eventually(state.exists, what="the slow call at its server")
    assert driver.cancel(number) == {"cancelled": True}
    return state


def names(answer: Mapping[str, Any]) -> list[str]:
    return [tool["name"] for tool in answer["tools"]]


Step = Callable[[Driver, Path], None]

STEPS: Mapping[str, Step] = {
    "lists tools": lists,
    "find_tool": finds,
    "describe_tool": describes,
    "call_tool": calls,
    "wrong arguments": rejects,
    "empty arguments": ignores_empty,
    "next page": pages,
    "cancels": cancels,
    ENDS_CALL: ends_the_call,
}


def wait_until_listed(driver: Driver) -> None:
    """Return once the catalogue holds the tools of both servers."""

    eventually(
        lambda: len(driver.answer("list_available_tools")["toolsByServer"]) == 2, what="the list of both servers"
    )
