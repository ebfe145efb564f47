"""`toolscale demo`: the main path on real third-party servers, from events to find_tool over MCP."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from pydantic import BaseModel, ConfigDict
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from query.catalogue import catalogue_of
from query.listener import open_listener
from query.mcp import build_server
from query.search.ranking import CATEGORIES
from query.service import HttpServer
from query.tools.registry import builtin_tools
from shared.errors import ConfigInvalid, ToolscaleError
from shared.settings import load_settings
from shared.text.tokens import PROFILE
from shared.upstream.mcp_json import Config, read_config
from toolscale.console import err, out, print_lines
from toolscale.demo.servers import install, write_config
from toolscale.embedded.composition import Embedded, run_embedded

QUESTIONS = (
    "what time is it in Tokyo right now",
    "show the commits of a repository",
    "download a web page as text",
    "run an SQL query on a database",
    "add a slide with a chart to a presentation",
)

# Limit for a cold start of ten servers on a slow machine; the report lists slower servers without tools.
INGESTION_S = 60.0


class DemoServerResult(BaseModel):
    """A server of the demo with its tools; `error` is the reason if it has none.

    `tokens` count the model form of its tools, `wire_tokens` the JSON of `tools/list`.
    """

    model_config = ConfigDict(frozen=True)

    server: str
    declared_name: str
    protocol_version: str | None
    tools: int
    tokens: int
    wire_tokens: int
    error: str | None


class Answered(BaseModel):
    """A query and the unchanged answer of find_tool over MCP; `took_ms` is the duration of the call."""

    model_config = ConfigDict(frozen=True)

    question: str
    took_ms: float
    answer: dict[str, Any]


class Report(BaseModel):
    """The result of the demo."""

    model_config = ConfigDict(frozen=True)

    servers: list[DemoServerResult]
    tools: int
    tokens: int
    wire_tokens: int
    encoding: str
    profile: str
    ingestion_s: float
    answers: list[Answered]


def run_demo(directory: Path) -> Report:
    """Install the servers, ingest them, run the queries, and stop all processes.

    Raises:
        ToolscaleError: a server environment could not be installed, or no server could be listed.
    """
    with err.status("Preparing real MCP servers ...") as status:
        config_path = _install(directory, status)
    data_dir = directory / "data"
    shutil.rmtree(data_dir, ignore_errors=True)
    settings = load_settings(mcp_config=config_path, data_dir=data_dir, port=0)
    # the demo uses no Redis or Qdrant server
    settings = settings.model_copy(update={"redis_url": None, "qdrant_url": None, "host": "127.0.0.1"})
    with run_embedded(settings) as embedded:
        started = time.monotonic()
        _ingest(embedded, read_config(config_path, os.environ))
        ingestion_s = time.monotonic() - started
        with _query_service(embedded) as url:
            answers = anyio.run(_ask, url)
        return _report(embedded, answers, ingestion_s)


def _install(directory: Path, status: Status) -> Path:
    def progress(line: str) -> None:
        status.update(line)
        err.print(f"  {line}")

    try:
        install(directory, progress)
        return write_config(directory)
    except OSError as error:
        raise ConfigInvalid(f"--directory: cannot install into {directory}: {error.strerror or error}") from error


def _ingest(embedded: Embedded, config: Config) -> None:
    """Announce each server and show the progress of the listings."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err) as progress:
        announced = {intent.server_id for intent in embedded.announce(config)}
        encoding = embedded.settings.token_encoding
        bar = progress.add_task("Ingesting servers", total=len(announced))
        deadline = time.monotonic() + INGESTION_S
        seen: set[str] = set()
        while seen != announced and time.monotonic() < deadline:
            for record in embedded.deps.index.servers():
                if record.server_id in announced - seen and (record.is_listed or record.last_error):
                    seen.add(record.server_id)
                    listed = f"{record.tool_count:,} tools, {record.model_tokens.get(encoding, 0):,} tokens"
                    progress.console.print(f"  {record.server_id}: {record.last_error or listed}")
                    progress.advance(bar)
            time.sleep(0.05)


@contextmanager
def _query_service(embedded: Embedded) -> Generator[str]:
    deps = embedded.deps
    CATEGORIES.of(deps.embedder)  # load the model before the first query, as the query service does
    catalogue = catalogue_of(deps.index, deps.embedder, embedded.settings)
    server = build_server(builtin_tools(catalogue), policy=catalogue.response_policy)
    http = HttpServer(server, open_listener(embedded.settings), index=deps.index)
    thread = threading.Thread(target=http.run, name="toolscale query", daemon=True)
    thread.start()
    try:
        yield http.url
    finally:
        http.stop()
        thread.join(timeout=10)


async def _ask(url: str) -> list[Answered]:
    answers: list[Answered] = []
    async with Client(url) as client:
        for question in QUESTIONS:
            started = time.monotonic()
            result = await client.call_tool("find_tool", {"tool_description": question, "limit": 3})
            took_ms = (time.monotonic() - started) * 1000
            answer: dict[str, Any] = result.structured_content or {}
            answers.append(Answered(question=question, took_ms=round(took_ms, 1), answer=answer))
    return answers


def _report(embedded: Embedded, answers: list[Answered], ingestion_s: float) -> Report:
    encoding = embedded.settings.token_encoding
    servers = [
        DemoServerResult(
            server=record.server_id,
            declared_name=record.declared_name,
            protocol_version=record.protocol_version,
            tools=record.tool_count,
            tokens=record.model_tokens.get(encoding, 0),
            wire_tokens=record.tokens.get(encoding, 0),
            error=record.last_error,
        )
        for record in sorted(embedded.deps.index.servers(), key=lambda record: record.server_id)
    ]
    if not any(server.tools for server in servers):
        raise ToolscaleError(f"no server could be listed: {', '.join(filter(None, (s.error for s in servers)))}")
    return Report(
        servers=servers,
        tools=sum(server.tools for server in servers),
        tokens=sum(server.tokens for server in servers),
        wire_tokens=sum(server.wire_tokens for server in servers),
        encoding=encoding,
        profile=PROFILE,
        ingestion_s=round(ingestion_s, 2),
        answers=answers,
    )


def print_report(report: Report) -> None:
    """Print the servers, and for each query the tools found and the tokens saved."""
    out.print(_server_table(report))
    for server in report.servers:
        if server.error:
            print_lines(f"{server.server}: {server.error}")
    out.print(_answer_table(report))
    out.print(
        f"{report.tools} tools of {len(report.servers)} servers, ingested in {report.ingestion_s:.1f} s. "
        f"A client that loads all tools pays {report.tokens:,} tokens ({report.encoding}, {report.profile} profile; "
        f"{report.wire_tokens:,} in the wire form); with find_tool it pays for the tools that it needs.",
    )


def _server_table(report: Report) -> Table:
    table = Table("server", "declares itself", "protocol", title="Servers", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("tools", "tokens", "wire"):
        table.add_column(heading, justify="right", no_wrap=True)
    for server in report.servers:
        table.add_row(server.server, server.declared_name, server.protocol_version or "", *_sizes(server))
    table.add_section()
    table.add_row("all", "", "", *_sizes(report))
    return table


def _sizes(of: DemoServerResult | Report) -> tuple[str, str, str]:
    return str(of.tools), f"{of.tokens:,}", f"{of.wire_tokens:,}"


def _answer_table(report: Report) -> Table:
    table = Table(title="find_tool over MCP, in tokens of the wire form", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("query, and the tools found, best first")
    for heading in ("returned", "saved", "%", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for asked in report.answers:
        answer, metrics = asked.answer, asked.answer["token_metrics"]
        found, saved = [tool["name"] for tool in answer["tools"]], ["", "", ""]
        if found:
            share = f"{metrics['savings_percentage']:.1f}"
            saved = [f"{metrics['returned_tokens']:,}", f"{metrics['tokens_saved']:,}", share]
        if answer.get("no_match"):
            found = [f"no tool fits; the nearest is {answer['nearest'][0]}"]
        table.add_row("\n  ".join((asked.question, *found)), *saved, f"{asked.took_ms:.0f}")
        table.add_section()
    return table
