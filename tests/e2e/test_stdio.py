"""`toolscale serve --stdio` as clients see it: from the first message, and several on one background service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.types import CallToolResult, ElicitResult, ResourceLink, TextResourceContents
from mcp_types import ElicitRequestParams

from query.digest import BEING_LISTED
from shared.settings import load_settings
from tests.e2e.test_serve import serving
from tests.support.asked import ANSWERS, KINDS, Person
from tests.support.background import end_background, running_instance
from tests.support.calling import text_of
from tests.support.hostile.processes import callable_stdio
from tests.support.policies import rule
from tests.support.processes import Composition
from tests.support.stdio_client import MODERN, StdioClient, stdio_client
from tests.support.waiting import eventually
from tests.support.warm import run
from toolscale.client.background import service_of
from toolscale.client.instance import FILE

pytestmark = pytest.mark.process

KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL
HEAVY = ("anyio", "httpx2", "mcp", "numpy", "pydantic", "rich", "starlette", "structlog", "typer", "uvicorn")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    target = callable_stdio()
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": target.command, "args": list(target.args)}}}))
    return path


@pytest.fixture
def no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "QDRANT_URL"):
        monkeypatch.setenv(name, "")


@pytest.fixture(autouse=True)
def _no_service_stays(tmp_path: Path) -> Generator[None]:
    yield
    end_background(tmp_path)


def echoed(client: StdioClient, words: str) -> str:
    """Return the text of the tool `echo`, once the catalogue has it."""
    texts: list[str] = []

    def is_echoed() -> bool:
        result = client.call("call_tool", tool_name="s:echo", parameters={"words": words})
        texts.append(result["content"][0]["text"])
        return not result.get("isError")

    eventually(is_echoed, what="echo")
    return texts[-1]


def test_the_proxy_loads_neither_the_service_nor_the_settings() -> None:
    program = (
        "import sys, toolscale.cli, toolscale.stdio, shared.service.process\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert loaded.stdout.strip() == "[]"


@pytest.mark.cold
def test_a_cold_start_answers_initialize_within_seconds_and_a_warm_one_at_once(tmp_path: Path, config: Path) -> None:
    took_s: list[float] = []
    for log in ("cold", "warm"):
        started_s = time.monotonic()
        with stdio_client(tmp_path, "--config", str(config), log=log) as client:
            assert client.handshake()["result"]["serverInfo"]["name"] == "toolscale"
            took_s.append(time.monotonic() - started_s)
            client.answer(client.request("tools/list"))
            assert client.end() == 0

    assert took_s[1] < took_s[0] < 20  # a busy machine takes longer than a quiet one


@pytest.mark.parametrize(("labels", "processes"), [({"stateful": "true"}, 2), ({}, 1)])
def test_two_clients_share_a_server_unless_it_is_declared_stateful(
    tmp_path: Path, config: Path, labels: dict[str, str], processes: int
) -> None:
    entries = json.loads(config.read_text())
    entries["mcpServers"]["s"]["labels"] = labels
    config.write_text(json.dumps(entries))

    with (
        stdio_client(tmp_path, "--config", str(config), log="one") as one,
        stdio_client(tmp_path, "--config", str(config), log="other") as other,
    ):
        for client in (one, other):
            client.handshake()
        used = [echoed(client, "hello") for client in (one, other, one)]

    assert len(set(used)) == processes
    assert used[0] == used[2]


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("2024-11-05", marks=pytest.mark.slow),
        "2025-11-25",
        pytest.param("2026-07-28", marks=pytest.mark.slow),
    ],
)
def test_tools_are_listed_before_the_service_starts_and_equal_its_own_and_both_are_counted(
    tmp_path: Path, config: Path, version: str
) -> None:
    is_modern = version == "2026-07-28"
    params: dict[str, Any] = {"_meta": MODERN} if is_modern else {}
    with stdio_client(tmp_path, "--config", str(config)) as client:
        if not is_modern:
            assert client.handshake(version)["result"]["protocolVersion"] == version
        early = client.request("tools/list", params)
        client.answer(early)
        call = client.request("tools/call", {"name": "find_tool", "arguments": {"tool_description": "x"}, **params})
        client.answer(call)
        late = client.request("tools/list", params)
        client.answer(late)

        def counted() -> list[int]:
            request: dict[str, Any] = {"name": "get_savings_report", "arguments": {}, **params}
            report = client.answer(client.request("tools/call", request))["result"]
            uses = json.loads(report["content"][0]["text"]).get("own_tools", [])
            return [use["answers"] for use in uses if use["name"] == "tools/list"]

        eventually(lambda: counted() == [2], what="two counted lists")
        lists = [line.replace(f'"id":{late},', f'"id":{early},') for line in client.lines if "alwaysLoad" in line]
        assert client.end() == 0

    assert len(lists) == 2
    # but for the digest of the catalogue and how long it stays
    before, after = (json.loads(line)["result"] for line in lists)
    assert before["tools"][0]["description"].endswith(BEING_LISTED.text)
    assert before["tools"][1:] == after["tools"][1:]
    assert before["tools"][0] | {"description": ""} == after["tools"][0] | {"description": ""}
    assert [tool["name"] for tool in json.loads(lists[0])["result"]["tools"]][:2] == ["find_tool", "describe_tool"]


def test_a_call_that_comes_before_the_service_waits_for_it(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        result = client.call("find_tool", tool_description="x")

    assert result["structuredContent"]["token_metrics"]


def test_a_client_that_leaves_while_the_service_starts_ends_its_process_alone(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        client.request("tools/call", {"name": "find_tool", "arguments": {"tool_description": "x"}})
        eventually((tmp_path / FILE).exists)

        assert client.end() == 0

    assert client.running.output() == ""
    with stdio_client(tmp_path, "--config", str(config)) as next_client:
        assert next_client.handshake()["result"]


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
    assert code == 0
    assert f"Toolscale could not start: {config}: no usable server" in client.running.output()


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


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_server_gets_the_answers_of_the_clients_user_of_its_model_and_its_roots(
    tmp_path: Path, config: Path, mode: str
) -> None:
    person, rules = Person(), tmp_path / "policy.toml"
    rules.write_text("")

    async def call() -> CallToolResult:
        async with person.client(toolscale_over_stdio(config, rules), mode=mode) as client:
            await described(client, "s:asks")
            request = {"tool_name": "s:asks", "parameters": {"kinds": list(KINDS)}}
            return await client.call_tool("call_tool", request)

    _, _, *answers = json.loads(text_of(anyio.run(call)))

    assert answers == [ANSWERS[kind] for kind in KINDS]


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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_resource_that_a_result_links_to_is_read(tmp_path: Path, config: Path, mode: str) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text("")

    async def read() -> str:
        async with Client(toolscale_over_stdio(config, rules), mode=mode) as client:
            await described(client, "s:echo")
            request = {"tool_name": "s:links", "parameters": {"tool": "echo", "arguments": {"words": "hello"}}}
            (link,) = (await client.call_tool("call_tool", request)).content
            assert isinstance(link, ResourceLink)
            (contents,) = (await client.read_resource(link.uri)).contents
            assert isinstance(contents, TextResourceContents)
            return contents.text

    assert anyio.run(read).startswith("hello from ")


def test_two_clients_that_start_at_once_find_and_call_through_one_service(tmp_path: Path, config: Path) -> None:
    arguments = ("--config", str(config))
    with (
        stdio_client(tmp_path, *arguments, log="first") as first,
        stdio_client(tmp_path, *arguments, log="second") as second,
    ):
        first.handshake()
        second.handshake()
        first_echo, second_echo = echoed(first, "a"), echoed(second, "b")
        found = second.found("echo")
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
    assert (first.running.output(), second.running.output()) == ("", "")


def test_after_the_service_was_killed_the_next_request_starts_another(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        before, was = echoed(client, "a"), running_instance(tmp_path)

        end_background(tmp_path, KILL)
        after = echoed(client, "a")

        assert client.end() == 0

    assert before != after
    assert running_instance(tmp_path).instance_id != was.instance_id


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no process can be stopped for a while")
def test_a_call_in_flight_when_the_service_is_killed_is_answered_with_a_warning_and_a_read_is_repeated(
    tmp_path: Path, config: Path
) -> None:
    file = tmp_path / "began"
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        echoed(client, "a")
        pid = running_instance(tmp_path).pid
        waits = {"tool_name": "s:waits", "parameters": {"file": str(file)}}
        call = client.request("tools/call", {"name": "call_tool", "arguments": waits})
        eventually(file.exists)
        os.kill(pid, signal.SIGSTOP)  # it receives the search, and does not answer
        search = client.request("tools/call", {"name": "find_tool", "arguments": {"tool_description": "echo"}})
        time.sleep(0.3)

        end_background(tmp_path, KILL)

        result, found = client.answer(call)["result"], client.answer(search)["result"]
        assert echoed(client, "c").startswith("c from ")

    assert result["isError"]
    assert "so the call may have run" in result["content"][0]["text"]
    assert not found.get("isError")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_a_cancellation_reaches_the_server(tmp_path: Path, config: Path, version: str) -> None:
    file = tmp_path / "began"
    params = {"_meta": MODERN} if version == "2026-07-28" else {}
    with stdio_client(tmp_path, "--config", str(config)) as client:
        if not params:
            client.handshake(version)
        waits = {"tool_name": "s:waits", "parameters": {"file": str(file)}}

        def has_begun() -> bool:
            call = client.request("tools/call", {"name": "call_tool", "arguments": waits, **params})
            eventually(lambda: file.exists() or client.answers(call), what="a call")
            calls.append(call)
            return file.exists() and file.read_text() == "began"

        calls: list[int] = []
        eventually(has_begun, what="a call that waits")

        client.send({"method": "notifications/cancelled", "params": {"requestId": calls[-1]}})

        eventually(lambda: file.read_text() == "cancelled")
        assert client.answers(calls[-1]) == []
        assert client.end() == 0


@pytest.mark.slow
def test_a_client_over_stdio_joins_a_service_in_a_terminal_which_goes_on(tmp_path: Path, config: Path) -> None:
    with serving(config) as (running, url), stdio_client(tmp_path) as client:
        client.handshake()
        found = client.found("echo")
        instance = running_instance(tmp_path)
        assert client.end() == 0
        assert running.process.poll() is None

    assert found.startswith("s:")
    assert f"{instance.url}/mcp" == url


@pytest.mark.usefixtures("no_stores")
def test_a_command_gets_the_service_that_is_ready_and_starts_it_where_none_runs(tmp_path: Path, config: Path) -> None:
    settings = load_settings(data_dir=tmp_path, mcp_config=config)

    started = service_of(settings)
    ready = httpx2.get(f"{started.url}/readyz", trust_env=False).json()
    again = service_of(settings)

    assert ready["status"] == "ready"
    assert ready["mcp_json"]["path"] == str(config)
    assert again == started


def test_a_background_service_ends_when_it_was_not_used_for_a_while(tmp_path: Path) -> None:
    program = (
        "import toolscale.cli, toolscale.embedded.service as service\n"
        "service.IDLE_S, service.IDLE_CHECK_S = 1.0, 0.1\n"
        "toolscale.cli.main()"
    )
    command = ("-c", program, "serve", "--background", "--data-dir", str(tmp_path))
    with Composition("", tmp_path, {"REDIS_URL": "", "QDRANT_URL": ""}).run("background", *command) as running:
        code = running.process.wait(90)

    assert code == 0
    assert '"event": "service_idle"' in running.output()
    assert not (tmp_path / FILE).exists()


def test_a_background_service_ends_when_its_directory_is_gone(tmp_path: Path) -> None:
    program = (
        "import toolscale.cli, toolscale.embedded.service as service\nservice.IDLE_CHECK_S = 0.1\ntoolscale.cli.main()"
    )
    directory = tmp_path / "data"
    command = ("-c", program, "serve", "--background", "--data-dir", str(directory))
    with Composition("", tmp_path, {"REDIS_URL": "", "QDRANT_URL": ""}).run("background", *command) as running:
        eventually((directory / FILE).exists)
        (directory / FILE).unlink()  # first of all that is removed with the directory
        code = running.process.wait(90)

    assert code == 0


def test_a_service_in_a_terminal_takes_over_from_the_background_and_clients_go_on(tmp_path: Path, config: Path) -> None:
    with stdio_client(tmp_path, "--config", str(config)) as client:
        client.handshake()
        assert client.found("echo")
        with serving(config):
            is_background = running_instance(tmp_path).is_background
            found = client.found("echo")
            assert client.end() == 0

    assert not is_background
    assert found.startswith("s:")


@pytest.mark.slow
def test_a_newer_version_replaces_the_service_of_an_older_one_and_its_clients_go_on(
    tmp_path: Path, config: Path
) -> None:
    with stdio_client(tmp_path, "--config", str(config), log="older") as older:
        older.handshake()
        echoed(older, "a")
        file = tmp_path / FILE
        was = json.loads(file.read_text())
        file.write_text(json.dumps({**was, "version": "0.0.1"}))
        with stdio_client(tmp_path, "--config", str(config), log="newer") as newer:
            newer.handshake()
            assert echoed(newer, "b").startswith("b from ")
        assert echoed(older, "c").startswith("c from ")

    assert running_instance(tmp_path).instance_id != was["instance_id"]


@pytest.mark.slow
@pytest.mark.parametrize("is_alone", [True, False])
def test_another_mcp_json_than_the_services_is_an_error_while_other_clients_use_it(
    tmp_path: Path, config: Path, is_alone: bool
) -> None:
    other = tmp_path / "other.json"
    other.write_text(config.read_text())
    with stdio_client(tmp_path, "--config", str(config), log="first") as first:
        first.handshake()
        echoed(first, "a")
        if is_alone:
            assert first.end() == 0
        with stdio_client(tmp_path, "--config", str(other), log="second") as second:
            answer = second.answer(second.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}))
            assert second.end() == 0

    assert running_instance(tmp_path).mcp_config == str(other if is_alone else config)
    if not is_alone:
        assert f"follows {config}, not {other}" in answer["error"]["message"]


@pytest.mark.slow
def test_another_environment_than_the_services_is_an_error_that_names_the_variable(
    tmp_path: Path, config: Path
) -> None:
    entry = json.loads(config.read_text())
    entry["mcpServers"]["s"]["env"] = {"KEY": "${SOME_KEY}"}
    config.write_text(json.dumps(entry))
    with stdio_client(tmp_path, "--config", str(config), log="first", SOME_KEY="one") as first:
        first.handshake()
        echoed(first, "a")
        with stdio_client(tmp_path, log="without") as without:
            assert without.handshake()["result"]
        with stdio_client(tmp_path, log="second", SOME_KEY="two") as second:
            answer = second.answer(second.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}))

    assert "which has another value of SOME_KEY" in answer["error"]["message"]


@pytest.mark.slow
def test_the_list_of_a_client_with_a_toolset_has_its_tools_at_once(tmp_path: Path, config: Path) -> None:
    with serving(config) as (running, _):
        running.wait_for('"event": "server_indexed"')
        create = [sys.executable, "-m", "toolscale", "toolset", "create", "dev", "s:echo", "--data-dir", str(tmp_path)]
        assert run(create, env={**os.environ, "REDIS_URL": "", "QDRANT_URL": ""}).returncode == 0

    with stdio_client(tmp_path, "--config", str(config), TOOLSCALE_STDIO_TOOLSET="dev") as client:
        client.handshake()
        listed = client.answer(client.request("tools/list"))["result"]["tools"]
        assert client.end() == 0

    assert [tool["name"] for tool in listed][-1] == "s__echo"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_a_client_with_a_toolset_hears_that_its_tools_changed(tmp_path: Path, config: Path, version: str) -> None:
    def changes(client: StdioClient) -> int:
        return sum(message.get("method") == "notifications/tools/list_changed" for message in client.messages())

    with stdio_client(tmp_path, "--config", str(config), TOOLSCALE_STDIO_TOOLSET="dev") as client:
        if version == "2025-11-25":
            assert client.handshake()["result"]["capabilities"]["tools"]["listChanged"] is True
            client.answer(client.request("tools/list"))
        else:
            client.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": MODERN})
            acknowledged = "notifications/subscriptions/acknowledged"
            eventually(lambda: any(each.get("method") == acknowledged for each in client.messages()), what="listening")
        # the toolset, or the first listing of its server, whichever comes last
        create = [sys.executable, "-m", "toolscale", "toolset", "create", "dev", "s:echo", "--data-dir", str(tmp_path)]
        assert run(create, env={**os.environ, "REDIS_URL": "", "QDRANT_URL": ""}).returncode == 0
        eventually(lambda: changes(client), what="a notification")
        listed = client.answer(client.request("tools/list", {"_meta": MODERN} if version == "2026-07-28" else {}))
        assert client.end() == 0

    assert [tool["name"] for tool in listed["result"]["tools"]][-1] == "s__echo"


@pytest.mark.slow
def test_a_client_with_groups_finds_the_tools_of_these_alone(tmp_path: Path, config: Path) -> None:
    document = json.loads(config.read_text())
    entry = document["mcpServers"]["s"]
    document["mcpServers"] = {"s": {**entry, "groups": ["dev"]}, "t": {**entry, "groups": ["ops"]}}
    config.write_text(json.dumps(document))

    with (
        stdio_client(tmp_path, "--config", str(config), log="all") as whole,
        stdio_client(tmp_path, "--config", str(config), log="ops", TOOLSCALE_STDIO_GROUPS="ops, none") as limited,
    ):
        whole.handshake()
        limited.handshake()

        def servers(client: StdioClient) -> set[str]:
            listed = client.call("list_available_tools")["structuredContent"]["toolsByServer"]
            return {server["serverName"] for server in listed}

        eventually(lambda: len(servers(whole)) == 2, what="both servers")
        assert servers(limited) == {"t"}
