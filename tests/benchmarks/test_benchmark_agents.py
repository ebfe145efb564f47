"""The harness of agents: tools of both searches, an endpoint's messages, the checks, and a whole run of the script."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.agents.__main__ import ALL, CLIENT, TOOLSCALE, Record, called, play, render, scored
from benchmarks.agents.models import ChatEndpoint, Message, Model, ScriptedAgent
from benchmarks.agents.tasks import Step, Task, prepare, read_tasks
from benchmarks.agents.toolboxes import CLIENT_SEARCH, SearchedToolbox, Toolbox, Tools
from benchmarks.harness import document, kept
from tests.support.quick_runs import quick_run

TASK = Task(
    name="greet",
    request="Greet Ann.",
    wanted="Hello, Ann",
    steps=(Step(search="greet a person", tool="desk:greet", arguments={"name": "Ann"}),),
)


@asynccontextmanager
async def desk() -> AsyncGenerator[Tools]:
    server = MCPServer("desk")

    @server.tool()
    def greet(name: str) -> str:
        """Greet a person by name."""
        return f"Hello, {name}."

    @server.tool()
    def weigh(parcel: str) -> str:
        """Weigh a parcel in grams."""
        return f"{parcel} weighs 7 g."

    async with Client(server) as client:
        listed = (await client.list_tools()).tools
        yield {f"desk__{tool.name}": (client, tool) for tool in listed}


def names(toolbox: Toolbox) -> list[str]:
    return [tool["function"]["name"] for tool in toolbox.offered()]


def test_a_search_of_the_client_loads_what_it_finds_and_nothing_else() -> None:
    async def search() -> None:
        async with desk() as tools:
            toolbox = SearchedToolbox(tools)
            assert names(toolbox) == [CLIENT_SEARCH]
            assert "no tool" in await toolbox.call("desk__greet", {"name": "Ann"})

            await toolbox.call(CLIENT_SEARCH, {"query": "greeting or greet people"})

            assert names(toolbox) == [CLIENT_SEARCH, "desk__greet"]
            assert await toolbox.call("desk__greet", {"name": "Ann"}) == "Hello, Ann."

    anyio.run(search)


async def played(way: str, model: Model) -> Record:
    async with desk() as tools:
        toolbox = SearchedToolbox(tools) if way == CLIENT else Toolbox(tools)
        return await play(TASK, way, model, toolbox, "")


def test_an_endpoint_gets_the_tools_and_the_results_and_its_calls_are_made() -> None:
    agent = ScriptedAgent(TASK)
    bodies: list[dict[str, Any]] = []

    async def complete(request: Request) -> JSONResponse:
        bodies.append(await request.json())
        return JSONResponse({"choices": [{"message": await agent(bodies[-1]["messages"], bodies[-1]["tools"])}]})

    async def ask() -> Record:
        app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
            return await played(CLIENT, ChatEndpoint("http://model.example/v1/", "some-model", http))

    record = anyio.run(ask)

    assert called(record) == [CLIENT_SEARCH, "desk__greet"]
    assert TASK.is_done(record["messages"][-1]["content"])
    assert {body["model"] for body in bodies} == {"some-model"}
    assert len(bodies) == len(record["tokens"]) == 3
    assert bodies[-1]["messages"] == record["messages"][:-1]


def test_the_script_gives_up_without_the_tool() -> None:
    async def without() -> Record:
        async with desk() as tools:
            return await play(
                TASK, CLIENT, ScriptedAgent(TASK), SearchedToolbox({"desk__weigh": tools["desk__weigh"]}), ""
            )

    record = anyio.run(without)

    assert called(record) == [CLIENT_SEARCH]
    assert not TASK.is_done(record["messages"][-1]["content"])


@pytest.mark.parametrize("toolbox", [Toolbox, SearchedToolbox])
@pytest.mark.parametrize("written", ["[1]", '"Ann"', "null", "7", "{broken"])
def test_arguments_of_a_model_that_are_no_object_are_answered_and_end_no_run(
    written: str, toolbox: type[Toolbox]
) -> None:
    async def model(messages: Sequence[Message], _offered: object) -> Message:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "I gave up."}
        calls = [
            {"id": name, "function": {"name": name, "arguments": written}} for name in ("desk__greet", CLIENT_SEARCH)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    async def run() -> Record:
        async with desk() as tools:
            return await play(TASK, CLIENT, model, toolbox(tools), "")

    results = [message["content"] for message in anyio.run(run)["messages"] if message["role"] == "tool"]

    assert len(results) == 2
    assert all(result.startswith("The arguments") for result in results)


def test_no_task_is_done_by_an_agent_that_says_so_and_does_nothing(tmp_path: Path) -> None:
    prepare(tmp_path)
    prepare(tmp_path)  # also from a used directory
    tasks = read_tasks(tmp_path)

    done = [task.name for task in tasks if task.is_done(task.observed(tmp_path, f"Done: {task.request}"))]

    assert not done
    assert len({task.name for task in tasks}) == len(tasks)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.index
def test_the_script_does_its_tasks_in_each_way(
    demo_servers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(os.environ, "AGENT_MODEL", raising=False)
    record = tmp_path / "record.jsonl"

    quick_run("agents", tmp_path, "--demo", str(demo_servers), "--record", str(record))
    figures = kept("agents", tmp_path)
    (tmp_path / "again").mkdir()
    quick_run("agents", tmp_path / "again", "--score", str(record))

    assert {way: own["searched_percent"] for way, own in figures["ways"].items()} == {
        ALL: 0,
        CLIENT: 100,
        TOOLSCALE: 100,
    }
    assert [own["failed"] for own in figures["ways"].values()] == [[], [], []]
    assert kept("agents", tmp_path / "again")["ways"] == figures["ways"]
    assert document(render(figures)) == (tmp_path / "agents.md").read_text(encoding="utf-8")


def test_a_record_with_a_wrong_state_is_not_done() -> None:
    record = {
        "model": "script",
        "way": ALL,
        "task": "create a branch",
        "tokens": [10, 20],
        "messages": [],
        "observed": "* main\n",
    }

    (counts,) = scored([record, {**record, "observed": "* main\n  harvest\n"}])["ways"].values()

    assert (counts["done_percent"], counts["tokens"], counts["failed"]) == (50, 30, ["create a branch"])
