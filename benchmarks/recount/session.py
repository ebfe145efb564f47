"""The session on the demo's servers: several callers, every tool, filters, encodings, pages, errors and a toolset."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio

from benchmarks.recount.agent import Agent, session
from benchmarks.recount.measuring import Plan
from benchmarks.recount.scopes import CallerPlan
from toolscale.demo.demo import QUESTIONS
from toolscale.demo.servers import install

GROUPS = {"git": ["dev"], "sqlite": ["dev"], "filesystem": ["dev"], "time": ["office"], "powerpoint": ["office"]}
TOOLSETS = {"slides": ["powerpoint"], "mixed": ["git", "time:get_current_time", "filesystem"]}
ANN = CallerPlan("ann", "ann-" + "a" * 40)
BOB = CallerPlan("bob", "bob-" + "b" * 40, groups=("dev",))
CY = CallerPlan("cy", "cy-" + "c" * 40, toolset="mixed", budget_tokens=2_000)
DORA = CallerPlan("dora", "dora-" + "d" * 40, groups=("office",), read_only=True)

SEARCHES = 60
WORDS = (
    "add", "chart", "commit", "convert", "create", "directory", "données", "echo", "fetch", "file", "git", "graph",
    "hash", "image", "index", "json", "key", "list", "log", "memory", "note", "page", "query", "read", "redis",
    "search", "slide", "sql", "store", "stream", "table", "think", "time", "vector", "web", "write", "zone", "日本",
)  # fmt: skip

# The recorder writes in the background; a report covers only written rows.
_WRITTEN_S = 1.0


def demo_plan(demo: Path) -> Plan:
    """Return the plan of a run on the demo's servers, which are installed in `demo` if they are missing."""
    servers, scratch = install(demo, print), demo.resolve() / "scratch"
    return Plan(servers, GROUPS, TOOLSETS, (ANN, BOB, CY, DORA), partial(_play, scratch))


async def _play(scratch: Path, url: str) -> None:
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
        await _use_older_revision(agent, scratch)
    async with session(f"{url}/mcp", CY.token) as agent:
        await _use_toolset(agent)
    async with session(f"{url}/mcp", DORA.token) as agent:
        for _ in range(3):
            await agent.list_tools()
        await agent.call("call_tool", tool_name="time:get_current_time", parameters={"timezone": "UTC"})
    async with session(f"{url}/mcp", ANN.token) as agent:
        await _report(agent)


async def _use_older_revision(agent: Agent, scratch: Path) -> None:
    await agent.list_tools()
    await agent.list_tools()
    await agent.call("find_tool", tool_description="show the commits of a repository")
    await agent.call("find_tool", tool_description="read a file", encoding="o200k_base", detail="summary")
    await agent.call_pages("list_available_tools", detail="detailed", max_tokens=1_500)
    await agent.call("call_tool", tool_name="git:git_status", parameters={"repo_path": str(scratch / "repository")})
    await _report(agent)


async def _use_toolset(agent: Agent) -> None:
    await agent.list_tools()
    await agent.call("find_tool", tool_description="read a file")
    await agent.call("find_tool", tool_description="write a file", detail="summary", encoding="o200k_base")
    await agent.call("get_active_toolset")
    await agent.call("get_active_toolset", encoding="heuristic")
    await agent.call("filesystem__list_allowed_directories")
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


async def _report(agent: Agent) -> None:
    await anyio.sleep(_WRITTEN_S)
    await agent.call("get_savings_report")
