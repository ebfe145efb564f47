"""`toolscale serve --stdio` as clients see it: from the first message, and several on one data directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.types import CallToolResult, ElicitResult
from mcp_types import ElicitRequestParams

from tests.e2e.test_serve import serving
from tests.support.calling import text_of
from tests.support.hostile.processes import callable_stdio
from tests.support.policies import rule
from tests.support.stdio_client import MODERN, StdioClient, stdio_client
from tests.support.waiting import eventually
from tests.support.warm import run
from toolscale.embedded.holder import SOCKET

HEAVY = ("celery", "fastembed", "jwt", "numpy", "onnxruntime", "qdrant_edge", "tiktoken")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    target = callable_stdio()
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": target.command, "args": list(target.args)}}}))
    return path


def echoed(client: StdioClient, words: str) -> str:
    """Return the text of the tool `echo`, once the catalogue has it."""
    texts: list[str] = []

    def is_echoed() -> bool:
        result = client.call("call_tool", tool_name="s:echo", parameters={"words": words})
        texts.append(result["content"][0]["text"])
        return not result.get("isError")

    eventually(is_echoed, what="echo")
    return texts[-1]


def test_the_answers_before_the_service_need_none_of_its_modules() -> None:
    program = (
        "import sys, toolscale.app, toolscale.embedded.serve\n"
        "from toolscale.embedded.front import Front\n"
        "Front()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("2024-11-05", marks=pytest.mark.slow),
        "2025-11-25",
        pytest.param("2026-07-28", marks=pytest.mark.slow),
    ],
)
def test_tools_are_listed_before_the_service_starts_and_equal_its_own_byte_for_byte(
    tmp_path: Path, config: Path, version: str
) -> None:
    is_modern = version == "2026-07-28"
    params: dict[str, Any] = {"_meta": MODERN} if is_modern else {}
    with stdio_client(tmp_path, "--config", str(config)) as client:
        if not is_modern:
            client.handshake(version)
        early = client.request("tools/list", params)
        client.answer(early)
        call = client.request("tools/call", {"name": "find_tool", "arguments": {"tool_description": "x"}, **params})
        client.answer(call)
        late = client.request("tools/list", params)
        client.answer(late)

        lists = [line.replace(f'"id":{late},', f'"id":{early},') for line in client.lines if "alwaysLoad" in line]
        assert client.end() == 0

    assert len(lists) == 2
    assert lists[0] == lists[1]
    assert [tool["name"] for tool in json.loads(lists[0])["result"]["tools"]][:2] == ["find_tool", "describe_tool"]


def test_a_call_that_comes_before_the_service_waits_for_it(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        result = client.call("find_tool", tool_description="x")

    assert result["structuredContent"]["token_metrics"]


def test_without_a_service_a_ping_is_answered_and_a_call_does_not_wait_for_ever(tmp_path: Path) -> None:
    program = (
        "from toolscale.embedded.front import Front\nfront = Front(wait_s=0.1)\nfront.start()\nfront.has_ended.wait()\n"
    )
    with stdio_client(tmp_path, command=("-c", program)) as client:
        client.handshake()
        result = client.call("find_tool", tool_description="x")
        pong = client.answer(client.request("ping"))
        assert client.end() == 0

    assert pong.get("result") == {}
    assert result["isError"]
    assert "is still starting" in result["content"][0]["text"]


def test_a_client_that_leaves_while_the_service_starts_ends_the_process(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        client.request("tools/call", {"name": "find_tool", "arguments": {"tool_description": "x"}})

        assert client.end() == 0

    assert "Traceback" not in client.running.output()


def test_a_start_that_fails_reaches_the_client_as_the_error_of_its_calls(tmp_path: Path, config: Path) -> None:
    config.write_text('{"mcpServers": {"s": {"command": ""}}}')
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        result = client.call("find_tool", tool_description="x")
        again = client.call("find_tool", tool_description="x")
        code = client.end()

    assert result["isError"]
    assert result["content"][0]["text"].startswith(f"Toolscale could not start: {config}: no usable server; s: ")
    assert again == result
    assert code == 2
    assert f"error: {config}: no usable server" in client.running.output()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_call_that_the_policy_asks_about_is_sent_if_the_user_of_the_client_accepts(
    tmp_path: Path, config: Path, mode: str
) -> None:
    rules, answers, questions = tmp_path / "policy.toml", ["decline", "accept"], list[str]()
    rules.write_text(rule("ask", tools=["echo"]))

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        is_accepted = answers.pop(0) == "accept"
        return ElicitResult(action="accept", content={}) if is_accepted else ElicitResult(action="decline")

    async def call() -> list[CallToolResult]:
        async with Client(toolscale_over_stdio(config, rules), mode=mode, elicitation_callback=answer) as client:
            await described(client, "s:echo")
            request = {"tool_name": "s:echo", "parameters": {"words": "one"}}
            return [await client.call_tool("call_tool", request) for _ in range(2)]

    declined, accepted = anyio.run(call)

    assert questions == ['Call the tool echo of the server s with these arguments? {"words": "one"}'] * 2
    assert text_of(declined) == "s: the user did not confirm the call of echo, so it was not sent"
    assert text_of(accepted).startswith("one from ")


async def described(client: Client, name: str) -> None:
    """Return once the catalogue has this tool."""
    for _ in range(600):
        if (await client.call_tool("describe_tool", {"names": [name]})).structured_content["tools"]:
            return
        await anyio.sleep(0.1)
    raise AssertionError(f"{name} was not described")


def toolscale_over_stdio(config: Path, policy: Path) -> StdioServerParameters:
    """Return the command by which a client starts Toolscale under a policy."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "TOOLSCALE_DATA_DIR": str(config.parent),
        "TOOLSCALE_POLICY_FILE": str(policy),
    }
    arguments = ["-m", "toolscale", "serve", "--stdio", "--config", str(config)]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment)


def test_two_clients_on_one_data_directory_find_and_call_through_one_service(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config), log="first") as first:
        first.handshake()
        first_echo = echoed(first, "a")
        with stdio_client(tmp_path, "--config", str(config), log="second") as second:
            second.handshake()
            found = second.found("echo")
            second_echo = echoed(second, "b")
            steps = second.request(
                "tools/call",
                {
                    "name": "call_tool",
                    "arguments": {"tool_name": "s:steps", "parameters": {"count": 2}},
                    "_meta": {"progressToken": "p"},
                },
            )
            second.answer(steps)
            progress = [message["params"] for message in second.messages() if message.get("method")]
            assert second.end() == 0
        assert echoed(first, "c").startswith("c from ")
        assert first.end() == 0

    assert found.startswith("s:")
    # the same child of the one service
    assert first_echo.removeprefix("a") == second_echo.removeprefix("b")
    assert [(entry["progressToken"], entry["progress"]) for entry in progress] == [("p", 1), ("p", 2)]
    assert "service_joined" in second.running.output()
    assert not (tmp_path / SOCKET).exists()


@pytest.mark.parametrize("is_killed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_when_the_holder_ends_one_of_the_others_takes_over_and_all_go_on(
    tmp_path: Path, config: Path, is_killed: bool
) -> None:
    arguments = ("--config", str(config))
    with stdio_client(tmp_path, *arguments, log="holder") as holder:
        holder.handshake()
        echoed(holder, "a")
        with (
            stdio_client(tmp_path, *arguments, log="b") as second,
            stdio_client(tmp_path, *arguments, log="c") as third,
        ):
            for client in (second, third):
                client.handshake()
                echoed(client, "b")

            if is_killed:
                holder.running.kill()
            else:
                assert holder.end() == 0
            echoes = [echoed(client, "c") for client in (second, third)]
            found = [client.found("echo") for client in (second, third)]

            joined = [client.running.output().count("service_joined") for client in (second, third)]
            assert [second.end(), third.end()] == [0, 0]

    assert echoes[0] == echoes[1]
    assert found[0] == found[1]
    # one took over, and the other joined it
    assert sorted(joined) == [1, 2]


@pytest.mark.slow
def test_a_call_in_flight_when_the_holder_ends_is_answered_with_a_warning(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "began"
    with stdio_client(tmp_path, "--config", str(config), log="holder") as holder:
        holder.handshake()
        echoed(holder, "a")
        with stdio_client(tmp_path, "--config", str(config), log="second") as second:
            second.handshake()
            echoed(second, "b")
            waits = {"tool_name": "s:waits", "parameters": {"file": str(file)}}
            call = second.request("tools/call", {"name": "call_tool", "arguments": waits})
            eventually(file.exists)

            holder.running.kill()

            result = second.answer(call)["result"]
            assert echoed(second, "c").startswith("c from ")

    assert result["isError"]
    assert "so the call may have run" in result["content"][0]["text"]


@pytest.mark.slow
def test_a_cancellation_reaches_the_server_through_the_holder(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "began"
    with stdio_client(tmp_path, "--config", str(config), log="holder") as holder:
        holder.handshake()
        echoed(holder, "a")
        with stdio_client(tmp_path, "--config", str(config), log="second") as second:
            second.handshake()
            waits = {"tool_name": "s:waits", "parameters": {"file": str(file)}}
            call = second.request("tools/call", {"name": "call_tool", "arguments": waits})
            eventually(lambda: file.exists() and file.read_text() == "began")

            second.send({"method": "notifications/cancelled", "params": {"requestId": call}})

            eventually(lambda: file.read_text() == "cancelled")
            assert echoed(second, "b").startswith("b from ")
            assert second.answers(call) == []


@pytest.mark.slow
def test_a_client_over_stdio_joins_a_service_over_http(tmp_path: Path, config: Path) -> None:
    with serving(config) as (_, _url), stdio_client(tmp_path) as client:
        client.handshake()
        found = client.found("echo")
        assert client.end() == 0

    assert found.startswith("s:")
    assert "service_joined" in client.running.output()


def test_the_service_counts_a_list_that_was_answered_before_it_started(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        client.answer(client.request("tools/list"))

        def listings() -> list[int]:
            report = json.loads(client.call("get_savings_report")["content"][0]["text"])
            return [use["answers"] for use in report["own_tools"] if use["name"] == "tools/list"]

        eventually(listings, what="a counted list")
        counted = listings()
        assert client.end() == 0

    assert counted == [1]


@pytest.mark.slow
def test_a_client_with_another_mcp_json_is_refused(tmp_path: Path, config: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(config.read_text())
    with stdio_client(tmp_path, "--config", str(config), log="holder") as holder:
        holder.handshake()
        echoed(holder, "a")
        with stdio_client(tmp_path, "--config", str(other), log="second") as second:
            second.handshake()
            result = second.call("find_tool", tool_description="x")
            assert second.end() == 2

    assert result["isError"]
    assert f"follows {config}, not {other}" in result["content"][0]["text"]


@pytest.mark.slow
def test_the_tools_of_a_toolset_are_announced_as_soon_as_the_service_has_them(tmp_path: Path, config: Path) -> None:
    with serving(config) as (running, _):
        running.wait_for('"event": "server_indexed"')
        create = [sys.executable, "-m", "toolscale", "toolset", "create", "dev", "s:echo", "--data-dir", str(tmp_path)]
        assert run(create, env={**os.environ, "REDIS_URL": "", "QDRANT_URL": ""}).returncode == 0

    with stdio_client(tmp_path, "--config", str(config), TOOLSCALE_STDIO_TOOLSET="dev") as client:
        capabilities = client.handshake()["result"]["capabilities"]
        early = client.answer(client.request("tools/list"))["result"]["tools"]
        changed = "notifications/tools/list_changed"
        eventually(lambda: any(message.get("method") == changed for message in client.messages()))
        late = client.answer(client.request("tools/list"))["result"]["tools"]
        assert client.end() == 0

    assert capabilities["tools"]["listChanged"]
    assert late[: len(early)] == early
    assert [tool["name"] for tool in late[len(early) :]] == ["s__echo"]
