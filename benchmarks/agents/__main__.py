"""`python -m benchmarks.agents`: play the tasks, record each run, and count the record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import Tool

import benchmarks.agents
from benchmarks.agents.models import SCRIPT, Message, Model, ScriptedAgent, endpoint
from benchmarks.agents.tasks import Task, prepare, read_tasks
from benchmarks.agents.toolboxes import CLIENT_SEARCH, SearchedToolbox, Toolbox, Tools
from benchmarks.harness import Figures, Watches, command, head, number, run_benchmark, table
from shared.text.tokens import counter, json_text
from tests.support.transcripts.serving import serving_servers
from toolscale.demo.servers import LaunchableServer, install, launchable

ADVICE = "You do what the user asks with your tools, and answer in one sentence."
MAX_REQUESTS = 12
SEARCHES = {CLIENT_SEARCH, "find_tool"}
ALL, CLIENT, TOOLSCALE = "all tools in the prompt", "a search of the client", "Toolscale"
QUICK = {"time", "git", "sqlite"}

Record = dict[str, Any]
"""A run of a task: its way, model and messages, the tokens of each request, and what the check reads."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a way, by the names that the model sees, and the instructions of their servers."""

    tools: Tools
    instructions: str


@asynccontextmanager
async def connected(targets: Mapping[str, Any]) -> AsyncGenerator[Offer]:
    """Connect to these servers, by URL or transport; each key is the prefix of the names of a server's tools."""
    async with AsyncExitStack() as stack:
        tools: dict[str, tuple[Client, Tool]] = {}
        instructions: list[str] = []
        for prefix, target in targets.items():
            client = await stack.enter_async_context(Client(target))
            tools |= {prefix + tool.name: (client, tool) for tool in (await client.list_tools()).tools}
            instructions += [client.instructions] if client.instructions else []
        yield Offer(tools, "\n\n".join(instructions))


def started(server: LaunchableServer) -> Any:
    """Return the transport to a process of this server."""
    parameters = StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env))
    return stdio_client(parameters, subprocess.DEVNULL)  # type: ignore[arg-type]  # a file of Popen


# A run


async def play(task: Task, way: str, model: Model, toolbox: Toolbox, instructions: str) -> Record:
    """Send requests to the model, and its calls to the tools, until it answers."""
    count = counter("cl100k_base")
    messages: list[Message] = [
        {"role": "system", "content": f"{ADVICE}\n\n{instructions}".strip()},
        {"role": "user", "content": task.request},
    ]
    tokens: list[int] = []
    for _ in range(MAX_REQUESTS):
        offered = toolbox.offered()
        tokens.append(count(json_text(messages)) + count(json_text(offered)))
        message = await model(messages, offered)
        messages.append(message)
        for call in message.get("tool_calls") or ():
            result = await _result(toolbox, call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not message.get("tool_calls"):
            break
    return {"way": way, "task": task.name, "tokens": tokens, "messages": messages}


async def _result(toolbox: Toolbox, function: dict[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"The arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "The arguments: expected an object."
    return await toolbox.call(function["name"], cast("dict[str, Any]", arguments))


def measure(demo: Path, model: str, only: set[str], file: Path, watches: Watches) -> Figures:
    """Play the tasks in each way, append each run to the file, and count them; `only` limits the servers."""
    install(demo, print)
    records: list[Record] = []
    with (
        tempfile.TemporaryDirectory(prefix="toolscale-agents-", ignore_cleanup_errors=True) as name,
        file.open("a", encoding="utf-8") as lines,
    ):
        scratch = Path(name).resolve() / "scratch"
        servers = [server for server in launchable(demo, scratch) if not only or server.server_id in only]
        ids = {server.server_id for server in servers}
        tasks = [task for task in read_tasks(scratch) if task.servers <= ids]

        async def play_all(way: str, offer: Offer, chat: Model) -> None:
            for task in tasks:
                prepare(scratch)
                agent = ScriptedAgent(task) if model == SCRIPT else chat
                toolbox = (SearchedToolbox if way == CLIENT else Toolbox)(offer.tools)
                played = await play(task, way, agent, toolbox, offer.instructions)
                answer = str(played["messages"][-1].get("content") or "")
                records.append({"model": model, **played, "observed": task.observed(scratch, answer)})
                lines.write(json_text(records[-1]) + "\n")
                lines.flush()  # what a model was paid for stays, also where it fails later

        async def play_ways() -> None:
            async with endpoint(os.environ.get("AGENT_URL", ""), model, os.environ.get("AGENT_KEY", "")) as chat:
                async with connected({f"{server.server_id}__": started(server) for server in servers}) as offer:
                    await play_all(ALL, offer, chat)
                    await play_all(CLIENT, offer, chat)
                with serving_servers(servers, Path(name)) as url:
                    async with connected({"": url}) as offer:
                        await play_all(TOOLSCALE, offer, chat)

        watches.measure(model, lambda: anyio.run(play_ways))
    return scored(records)


# The record


def read_record(file: Path) -> list[Record]:
    """Return the runs of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def scored(records: Sequence[Record]) -> Figures:
    """Check and count the runs of a model, by way."""
    tasks = {task.name: task for task in read_tasks(Path("{scratch}"))}
    ways = {way: [record for record in records if record["way"] == way] for way in (ALL, CLIENT, TOOLSCALE)}
    return {
        "model": records[0]["model"],
        "tasks": len({record["task"] for record in records}),
        "ways": {way: _counts(own, tasks) for way, own in ways.items() if own},
    }


def _counts(records: Sequence[Record], tasks: dict[str, Task]) -> Figures:
    searches = [sum(name in SEARCHES for name in called(record)) for record in records]
    done = [tasks[record["task"]].is_done(record["observed"]) for record in records]
    return {
        "runs": len(records),
        "done_percent": 100 * fmean(done),
        "searched_percent": 100 * fmean(map(bool, searches)),
        "searches": fmean(searches),
        "requests": fmean(len(record["tokens"]) for record in records),
        "first_tokens": fmean(record["tokens"][0] for record in records),
        "tokens": fmean(sum(record["tokens"]) for record in records),
        "failed": sorted({record["task"] for record, is_done in zip(records, done, strict=True) if not is_done}),
    }


def called(record: Record) -> list[str]:
    """Return the names of the tools that the model called, in their order."""
    calls = (message.get("tool_calls") or () for message in record["messages"] if message["role"] == "assistant")
    return [call["function"]["name"] for each in calls for call in each]


# The report


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    yield from head(benchmarks.agents.__doc__, figures)
    if figures["model"] == SCRIPT:
        yield "**A script played the agent: this shows that the harness runs, and nothing about models.**"
    yield f"{figures['tasks']} tasks, played by {figures['model']}; means of a task."
    columns = ("done_percent", "searched_percent", "searches", "requests", "first_tokens", "tokens")
    yield table(
        ("tools", "runs", "done, %", "searched, %", "searches", "requests", "tokens of the first request", "of all"),
        [(way, own["runs"], *(number(own[column]) for column in columns)) for way, own in figures["ways"].items()],
    )
    yield "\n".join(
        f"- Not done with {way}: {', '.join(own['failed']) or 'none'}." for way, own in figures["ways"].items()
    )


def main() -> None:
    """Play and record, or count a record."""
    parser = command("agents", benchmarks.agents.__doc__, needs_demo=True)
    parser.add_argument("--record", type=Path, help="JSONL file to append to; default: agents-MODEL.jsonl of the demo")
    parser.add_argument("--score", type=Path, help="play nothing, and count the runs of this file")
    arguments = parser.parse_args()
    model = os.environ.get("AGENT_MODEL") or SCRIPT
    records = read_record(arguments.score) if arguments.score else []
    if records:
        model = records[0]["model"]
    slug = re.sub(r"[^\w.]+", "-", model)
    file = arguments.record or arguments.demo / f"agents-{slug}.jsonl"
    only = QUICK if arguments.quick else set[str]()
    measured = partial(measure, arguments.demo, model, only, file)
    name = "agents" if model == SCRIPT else f"agents-{slug}"
    run_benchmark(name, arguments, (lambda _: scored(records)) if records else measured, render)


if __name__ == "__main__":
    main()
