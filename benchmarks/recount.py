"""Recount: is each number that Toolscale states equal to a count of the messages that were sent?

A raw client of the MCP SDK lists each of the demo's servers first, which gives the definitions as they are on the wire.
Four callers then use a real `toolscale serve` over HTTP, through a proxy that records each request and its response.
They use every tool, on both revisions of the protocol: filters, encodings, pages, errors, a toolset and an enforced
budget. Each number is computed again from the recorded messages and the raw definitions, with tiktoken and without code
of the product. The exit code is 1 if a number differs.

The session covers cases, not habits: it searches far more often than a task needs, so its net is no example.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx2

from benchmarks.harness import Figures, Watches, command, head, run_benchmark, table
from benchmarks.recount_messages import Agent, Exchange, raw_tools, recording, session
from benchmarks.recount_numbers import (
    LIST,
    Caller,
    Row,
    Upstream,
    Value,
    advice_rows,
    answer_rows,
    command_rows,
    report_rows,
    script_rows,
    share_rows,
    with_sight,
    without_digest,
)
from tests.support.http_callers import entry, token_file
from tests.support.processes import Composition
from tests.support.warm import run
from toolscale.demo.demo import QUESTIONS
from toolscale.demo.servers import LaunchableServer, install

LAST_REPORT = "toolscale savings today"
CONFIG = "mcp.json"
ANSWER_CHARACTERS = 100

GROUPS = {"git": ["dev"], "sqlite": ["dev"], "filesystem": ["dev"], "time": ["office"], "powerpoint": ["office"]}
TOOLSETS = {"slides": ["powerpoint"], "mixed": ["git", "time:get_current_time", "filesystem"]}
ANN = Caller("ann", "ann-" + "a" * 40)
BOB = Caller("bob", "bob-" + "b" * 40, groups=("dev",))
CY = Caller("cy", "cy-" + "c" * 40, toolset="mixed", budget_tokens=2_000)
DORA = Caller("dora", "dora-" + "d" * 40, groups=("office",), read_only=True)

SEARCHES = 60
WORDS = (
    "add", "chart", "commit", "convert", "create", "directory", "données", "echo", "fetch", "file", "git", "graph",
    "hash", "image", "index", "json", "key", "list", "log", "memory", "note", "page", "query", "read", "redis",
    "search", "slide", "sql", "store", "stream", "table", "think", "time", "vector", "web", "write", "zone", "日本",
)  # fmt: skip

# The recorder writes in the background; a report covers only written rows.
_WRITTEN_S = 1.0


# The session on the demo's servers


async def play(scratch: Path, url: str) -> None:
    """Let each caller use the service; `scratch` is the working directory of the servers."""
    async with session(f"{url}/mcp", ANN.token) as agent:
        await agent.list_tools()
        await _search(agent)
        await _search_widely(agent)
        await _read(agent)
        await _call(agent, scratch)
    async with session(f"{url}/mcp/slides", ANN.token) as agent:
        await agent.list_tools()
        await agent.call("find_tool", tool_description="add a slide with a chart")
        await agent.call("get_active_toolset")
        await agent.call("list_available_tools", detail="summary")
        await agent.call("create_presentation", id="recount")
        await _report(agent)
    async with session(f"{url}/mcp", BOB.token, mode="legacy") as agent:
        await agent.list_tools()
        await agent.list_tools()
        await agent.call("find_tool", tool_description="show the commits of a repository")
        await agent.call("find_tool", tool_description="read a file", encoding="o200k_base", detail="summary")
        await agent.call_pages("list_available_tools", detail="detailed", max_tokens=1_500)
        await agent.call("call_tool", tool_name="git:git_status", parameters={"repo_path": str(scratch / "repository")})
        await _report(agent)
    async with session(f"{url}/mcp", CY.token) as agent:
        await agent.list_tools()
        await agent.call("find_tool", tool_description="read a file")
        await agent.call("find_tool", tool_description="write a file", detail="summary", encoding="o200k_base")
        await agent.call("get_active_toolset")
        await agent.call("get_active_toolset", encoding="heuristic")
        await agent.call("filesystem__list_allowed_directories")
        await _report(agent)
        await agent.call("get_active_toolset", encoding="o200k_base")  # with advice from the call
    async with session(f"{url}/mcp", DORA.token) as agent:
        for _ in range(3):
            await agent.list_tools()
        await agent.call("call_tool", tool_name="time:get_current_time", parameters={"timezone": "UTC"})
    async with session(f"{url}/mcp", ANN.token) as agent:
        await _report(agent)


async def _search(agent: Agent) -> None:
    for question in QUESTIONS:
        await agent.call("find_tool", tool_description=question, limit=3)
    for detail in ("summary", "detailed", "full", "auto"):
        for encoding in ("cl100k_base", "o200k_base", "heuristic"):
            await agent.call("find_tool", tool_description="store a note", detail=detail, encoding=encoding)
    await agent.call("find_tool", tool_description="show the commits", servers=["git"])
    await agent.call("find_tool", tool_description="read a file", groups=["dev"], read_only=True)
    await agent.call("find_tool", tool_description="read a file", exclude=["filesystem:read_file"], limit=1)
    await agent.call("find_tool", tool_description=["read a file", "send it as a slide"], detail="summary")
    await agent.call_pages("find_tool", tool_description="list what is there", limit=12, max_tokens=1_200)
    await agent.call("find_tool", tool_description="list what is there", limit=50, max_tokens=250)
    await agent.call("find_tool", tool_description="peel seven ripe bananas under water")
    await agent.call("find_tool", tool_description="x", limit=0)


async def _search_widely(agent: Agent) -> None:
    """Send searches of random words, in all forms, encodings and sizes; the seed is fixed."""
    random = Random(7)
    for _ in range(SEARCHES):
        arguments: dict[str, Any] = {
            "tool_description": " ".join(random.sample(WORDS, random.randint(1, 6))),
            "detail": random.choice(["summary", "detailed", "full", "auto"]),
            "encoding": random.choice(["cl100k_base", "o200k_base", "heuristic"]),
            "limit": random.randint(1, 20),
        }
        limits = {"max_tokens": random.choice([250, 500, 999, 1_000, 2_000])} if random.random() < 0.5 else {}
        await agent.call("find_tool", **arguments, **limits)


async def _read(agent: Agent) -> None:
    await agent.call("describe_tool", names=["time:convert_time", "sqlite:read_query", "no:such_tool"])
    await agent.call("describe_tool", names="convert_time", detail="full", encoding="o200k_base")
    await agent.call_pages("describe_tool", names=["redis:hset", "memory:create_entities"], max_tokens=300)
    for detail in ("name", "summary", "detailed", "full"):
        await agent.call_pages("list_available_tools", detail=detail)
    await agent.call("list_available_tools", servers=["time", "sqlite"], detail="summary", encoding="heuristic")
    await agent.call("list_available_tools", groups=["dev"], encoding="o200k_base")
    await agent.call("get_active_toolset")
    await agent.call("get_active_toolset", name="mixed")


async def _call(agent: Agent, scratch: Path) -> None:
    long = scratch / "files" / "long.txt"
    long.write_text("A line of a long file, with ünïcode.\n" * 4_000, encoding="utf-8")
    await agent.call("call_tool", tool_name="time:get_current_time", parameters={"timezone": "Asia/Tokyo"})
    await agent.call_pages("call_tool", tool_name="filesystem:read_text_file", parameters={"path": str(long)})
    await agent.call("call_tool", tool_name="filesystem:read_text_file", parameters={"path": "/no/such/file"})
    await agent.call("call_tool", tool_name="no:such_tool", parameters={})
    await agent.call("call_tool", tool_name="time:get_current_time", parameters={"timezone": 7})
    await _script(agent, scratch)


async def _script(agent: Agent, scratch: Path) -> None:
    """Make calls one by one, and the same by a script, which says so: the recount knows their results by that."""
    short = scratch / "files" / "short.txt"
    short.write_text("A line of a short file, with ünïcode.\n" * 40, encoding="utf-8")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("filesystem:read_text_file", {"path": str(short)}),
        ("filesystem:list_allowed_directories", {}),
        ("git:git_status", {"repo_path": str(scratch / "repository")}),
        ("filesystem:read_text_file", {"path": "/no/such/file"}),
    ]
    one = "try:\n    lengths.append(len(str(await call({!r}, {!r}))))\nexcept ToolError:\n    print('failed')\n"
    tries = "".join(one.format(tool, parameters) for tool, parameters in calls)
    for end in ("lengths", "lengths['no']"):
        for tool, parameters in calls:
            await agent.call("call_tool", tool_name=tool, parameters=parameters)
        await agent.call("run_script", source=f"# as the {len(calls)} calls before\nlengths = []\n{tries}{end}")
    await agent.call("run_script", source="print('no calls')\n1 + 1")


async def _report(agent: Agent) -> None:
    await anyio.sleep(_WRITTEN_S)
    await agent.call("get_savings_report")


# A run


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers of a run with their groups, its toolsets and callers, and the session at the address of a service.

    The first caller sees all tools, writes the toolsets, and begins the session on the latest revision.
    """

    servers: Sequence[LaunchableServer]
    groups: Mapping[str, Sequence[str]]
    toolsets: Mapping[str, Sequence[str]]
    callers: Sequence[Caller]
    play: Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of a session, the raw tools of the servers, and the answers of commands after the session."""

    exchanges: Sequence[Exchange]
    upstream: Upstream
    unasked: Upstream
    report: dict[str, Any]
    costs: dict[str, Any]
    servers: Sequence[dict[str, Any]]


def record(plan: Plan) -> Recording:
    """List each server, then play the session on a service of its own."""
    upstream, unasked = (Upstream(raw_tools(plan.servers, can_be_asked=asked), plan.groups) for asked in (True, False))
    # a server that ends late may still write its log
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        tokens = token_file(Path(name) / "tokens.toml", **{caller.name: _entry(caller) for caller in plan.callers})
        composition = Composition("", Path(name), {"QDRANT_URL": "", "TOOLSCALE_TOKENS_FILE": str(tokens)})
        with serving(plan, composition) as url, recording(url) as recorder:
            headers = {"authorization": f"Bearer {plan.callers[0].token}"}
            with httpx2.Client(headers=headers, timeout=30.0, trust_env=False) as client:
                for toolset, tools in plan.toolsets.items():
                    put = client.put(f"{url}/toolsets/{toolset}", json={"name": toolset, "tools": list(tools)})
                    put.raise_for_status()
            anyio.run(plan.play, recorder.url)
        report = _printed(composition, "savings", "today")
        costs = _printed(composition, "costs", "--config", str(composition.directory / CONFIG))
        servers = _printed(composition, "ls")
    return Recording(recorder.exchanges, upstream, unasked, report, costs, servers)


@contextmanager
def serving(plan: Plan, composition: Composition) -> Generator[str]:
    """Run `toolscale serve`; yield its address once all servers are listed."""
    entries = {
        server.server_id: {
            "command": server.command,
            "args": list(server.args),
            "env": dict(server.env),
            "groups": list(plan.groups.get(server.server_id, ())),
        }
        for server in plan.servers
    }
    config = composition.directory / CONFIG
    config.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    with composition.run("serve", "-m", "toolscale", "serve", "--config", str(config), "--port", "0") as running:
        running.wait_for("query_service_started")
        address = re.search(r"(http://127\.0\.0\.1:\d+)/mcp", running.output())
        assert address, running.output()
        running.wait_for("server_indexed", within_s=120, times=len(plan.servers))
        yield address.group(1)


def _entry(caller: Caller) -> Any:
    rights = {"permissions": ["catalog:read"]} if caller.read_only else {}
    budget = {"budget_tokens": caller.budget_tokens, "enforce_budget": True} if caller.budget_tokens else {}
    toolset = {"toolset": caller.toolset} if caller.toolset else {}
    return entry(caller.token, list(caller.groups) if caller.groups else "*", **rights, **budget, **toolset)


def _printed(composition: Composition, *arguments: str) -> Any:
    done = run([sys.executable, "-m", "toolscale", *arguments, "--json"], env=composition.environment, timeout=300.0)
    return json.loads(done.stdout)


def recounted(plan: Plan, recording: Recording) -> list[Row]:
    """Return the rows of all answers."""
    upstream = recording.upstream
    seen = with_sight(recording.exchanges, plan.callers, plan.toolsets, upstream)
    rows = [row for each in seen for row in answer_rows(each, upstream)]
    rows += share_rows(seen)
    rows += script_rows(seen)
    for number, each in enumerate(seen):
        caller, before = each.visible.caller, seen[:number]
        is_of_all = caller.groups is None and each.visible.toolset is None
        covered = [earlier for earlier in before if is_of_all or earlier.visible.caller == caller]
        if each.tool == "get_savings_report":
            rows += report_rows(json.loads(each.texts[0]), covered, upstream, f"{caller.name} get_savings_report")
        if each.tool == "get_active_toolset":
            rows += advice_rows(each, covered, upstream)
    own = next(each.exchange.result["tools"] for each in seen if each.tool == LIST and not each.visible.toolset)
    rows += command_rows(
        recording.costs, recording.servers, list(map(without_digest, own)), upstream, recording.unasked
    )
    return [*rows, *report_rows(recording.report, seen, upstream, LAST_REPORT)]


# The results


def measure(demo: Path, watches: Watches) -> Figures:
    """Record the session on the demo's servers and return the recount."""
    servers, scratch = install(demo, print), demo.resolve() / "scratch"
    plan = Plan(servers, GROUPS, TOOLSETS, (ANN, BOB, CY, DORA), partial(play, scratch))
    recording = watches.measure("session", partial(record, plan))
    sizes = {"tools": len(recording.upstream.tools), "messages": len(recording.exchanges)}
    return {"servers": len(servers), **sizes, **summed(recounted(plan, recording))}


def summed(rows: Sequence[Row]) -> Figures:
    """Return how often each number was compared and was equal, the rows of the last report, and the differences.

    The example of a number is its first difference, or else its first row.
    """
    by_number: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.number):
        by_number.setdefault(row.number, []).append(row)
    return {
        "numbers": {
            number: {
                "compared": len(own),
                "equal": sum(row.is_equal for row in own),
                "example": asdict(min(own, key=lambda row: row.is_equal)),
            }
            for number, own in by_number.items()
        },
        "session": [asdict(row) for row in rows if row.answer == LAST_REPORT and "report totals." in row.number],
        "differences": [asdict(row) for row in rows if not row.is_equal],
    }


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    numbers: dict[str, Figures] = figures["numbers"]
    compared = sum(number["compared"] for number in numbers.values())
    yield from head(__doc__, figures)
    yield (
        f"{figures['messages']} messages with {figures['servers']} third-party servers of {figures['tools']} tools:\n"
        f"{compared:,} numbers, of which {len(figures['differences']):,} differ."
    )
    yield "## The session"
    yield "`toolscale savings` after the session, beside the same sums over the recorded messages."
    yield _row_table(figures["session"])
    yield "## All numbers"
    yield "The values are those of the first answer with the number, or of the first difference."
    rows = (
        (number, f"{own['compared']:,}", f"{own['equal']:,}", *_values(own["example"]))
        for number, own in numbers.items()
    )
    yield table(("number", "compared", "equal", "stated", "recounted"), rows)
    yield "## Differences"
    yield _row_table(figures["differences"]) if figures["differences"] else "None."


def _row_table(rows: Iterable[Figures]) -> str:
    shown = (
        (row["number"], f"`{row['answer'][:ANSWER_CHARACTERS]}`".replace("|", "\\|"), *_values(row)) for row in rows
    )
    return table(("number", "answer", "stated", "recounted"), shown)


def _values(row: Figures) -> tuple[str, str]:
    def shown(value: Value) -> str:
        return str(value) if isinstance(value, bool) or not isinstance(value, int) else f"{value:,}"

    return shown(row["stated"]), shown(row["recounted"])


def main() -> None:
    """Measure, unless only the kept JSON is rendered again."""
    arguments = command("recount", __doc__, has_quick=False, needs_demo=True).parse_args()
    figures = run_benchmark("recount", arguments, partial(measure, arguments.demo), render)
    sys.exit(1 if figures["differences"] else 0)


if __name__ == "__main__":
    main()
