"""One run: the servers' own lists, a recorded session, and each stated number beside its recount."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx2

from benchmarks.recount.answers import answer_rows, share_rows
from benchmarks.recount.costs import costs_rows, servers_rows
from benchmarks.recount.proxy import Exchange, recording
from benchmarks.recount.rows import Row
from benchmarks.recount.scopes import CallerPlan, Upstream, Visible, visible
from benchmarks.recount.upstream import raw_tools
from benchmarks.recount.usage import LIST, Seen, in_pages, report_rows
from tests.support.http_callers import entry, token_file
from tests.support.processes import Composition
from tests.support.warm import run
from toolscale.demo.servers import LaunchableServer

LAST_REPORT = "toolscale savings today"
CONFIG = "mcp.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers of a run with their groups, its toolsets and callers, and the session at the address of a service.

    The first caller sees all tools, writes the toolsets, and begins the session on the latest revision.
    """

    servers: Sequence[LaunchableServer]
    groups: Mapping[str, Sequence[str]]
    toolsets: Mapping[str, Sequence[str]]
    callers: Sequence[CallerPlan]
    play: Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of a session, the raw tools of the servers, and the answers of commands after the session."""

    exchanges: Sequence[Exchange]
    upstream: Upstream
    report: dict[str, Any]
    costs: dict[str, Any]
    servers: Sequence[dict[str, Any]]


def record(plan: Plan) -> Recording:
    """List each server, then play the session on a service of its own."""
    groups = {server: frozenset(names) for server, names in plan.groups.items()}
    upstream = Upstream(raw_tools(plan.servers), groups)
    with tempfile.TemporaryDirectory() as name:
        composition = _composition(plan, Path(name))
        with _serving(plan, composition) as url, recording(url) as recorder:
            _create_toolsets(plan, url)
            anyio.run(plan.play, recorder.url)
        report = _printed(composition, "savings", "today")
        costs = _printed(composition, "costs", "--config", str(composition.directory / CONFIG))
        servers = _printed(composition, "ls")
    return Recording(recorder.exchanges, upstream, report, costs, servers)


def recounted(plan: Plan, recording: Recording) -> list[Row]:
    """Return the rows of all answers."""
    upstream, seen = recording.upstream, _seen(plan, recording)
    rows = [row for each in seen if each.tool != LIST for row in answer_rows(each.exchange, each.visible, upstream)]
    for pages in _listings(seen):
        rows += share_rows(pages, f"{pages[0].path} {pages[0].arguments}")
    for number, each in enumerate(seen):
        if each.tool == "get_savings_report":
            rows += _of_report(each, seen[:number], upstream)
    own = next(each.exchange.result["tools"] for each in seen if each.tool == LIST and not each.visible.toolset)
    rows += [*costs_rows(recording.costs, upstream, own), *servers_rows(recording.servers, upstream)]
    return [*rows, *report_rows(recording.report, seen, upstream, LAST_REPORT)]


def _of_report(each: Seen, before: Sequence[Seen], upstream: Upstream) -> list[Row]:
    caller = each.visible.caller
    is_of_all = caller.groups is None and each.visible.toolset is None
    covered = [seen for seen in before if is_of_all or seen.visible.caller == caller]
    stated: dict[str, Any] = json.loads(each.exchange.result["content"][0]["text"])
    return report_rows(stated, covered, upstream, f"{caller.name} get_savings_report")


def _seen(plan: Plan, recording: Recording) -> list[Seen]:
    """Return the lists and calls with what their callers see; a list offers its tools to all messages of its path."""
    by_token = {caller.token: caller for caller in plan.callers}
    used = [exchange for exchange in recording.exchanges if exchange.method in (LIST, "tools/call")]
    sights: dict[tuple[str, str], Visible] = {}
    for token, path in {(exchange.caller, exchange.path) for exchange in used}:
        sight = visible(by_token[token], path, plan.toolsets, recording.upstream)
        own = [exchange for exchange in used if (exchange.caller, exchange.path) == (token, path)]
        listed = frozenset(tool["name"] for exchange in own for tool in exchange.result.get("tools", ()))
        sights[token, path] = replace(sight, listed=listed)
    return [Seen(exchange, sights[exchange.caller, exchange.path]) for exchange in used]


def _listings(seen: Sequence[Seen]) -> Iterator[list[Exchange]]:
    """Yield the pages of each listing that shows all its tools with their shares."""
    for group in in_pages(seen, "list_available_tools"):
        pages = [each.exchange for each in group if "structuredContent" in each.exchange.result]
        parsed = [page.result["structuredContent"] for page in pages]
        servers = [server for page in parsed for server in page["toolsByServer"]]
        if servers and "nextCursor" not in parsed[-1] and all("tools" in server for server in servers):
            yield pages


def _printed(composition: Composition, *arguments: str) -> Any:
    done = run([sys.executable, "-m", "toolscale", *arguments, "--json"], env=composition.environment, timeout=300.0)
    return json.loads(done.stdout)


def _composition(plan: Plan, directory: Path) -> Composition:
    tokens = token_file(directory / "tokens.toml", **{caller.name: _entry(caller) for caller in plan.callers})
    return Composition("", directory, {"QDRANT_URL": "", "TOOLSCALE_TOKENS_FILE": str(tokens)})


def _entry(caller: CallerPlan) -> Any:
    rights = {"permissions": ["catalog:read"]} if caller.read_only else {}
    budget = {"budget_tokens": caller.budget_tokens, "enforce_budget": True} if caller.budget_tokens else {}
    toolset = {"toolset": caller.toolset} if caller.toolset else {}
    return entry(caller.token, list(caller.groups) if caller.groups else "*", **rights, **budget, **toolset)


@contextmanager
def _serving(plan: Plan, composition: Composition) -> Generator[str]:
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
    command = ("-m", "toolscale", "serve", "--config", str(config), "--port", "0")
    with composition.run("serve", *command) as running:
        running.wait_for("query_service_started")
        address = re.search(r"(http://127\.0\.0\.1:\d+)/mcp", running.output())
        assert address, running.output()
        running.wait_for("server_indexed", within_s=120, times=len(plan.servers))
        yield address.group(1)


def _create_toolsets(plan: Plan, url: str) -> None:
    headers = {"authorization": f"Bearer {plan.callers[0].token}"}
    with httpx2.Client(headers=headers, timeout=30.0, trust_env=False) as client:
        for name, tools in plan.toolsets.items():
            toolset = {"name": name, "tools": list(tools)}
            client.put(f"{url}/toolsets/{name}", json=toolset).raise_for_status()
