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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status

from query.catalogue import catalogue_of
from query.listener import open_listener
from query.mcp import build_server
from query.search.ranking import category_vectors
from query.service import HttpServer
from query.tools.registry import builtin_tools
from shared.errors import ConfigInvalid, ToolscaleError
from shared.settings import Settings, load_settings
from shared.text.tokens import PROFILE
from shared.upstream.mcp_json import Config, read_config
from toolscale.console import err
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
    settings = _fresh_settings(directory, config_path)
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
        err.print(f"  {line}", highlight=False)

    try:
        install(directory, progress)
        return write_config(directory)
    except OSError as error:
        raise ConfigInvalid(f"--directory: cannot install into {directory}: {error.strerror or error}") from error


def _fresh_settings(directory: Path, config: Path) -> Settings:
    """Return settings of the embedded composition with an empty data directory, without Redis or Qdrant servers."""
    data_dir = directory / "data"
    shutil.rmtree(data_dir, ignore_errors=True)
    environment = load_settings(mcp_config=config, data_dir=data_dir, port=0)
    return environment.model_copy(update={"redis_url": None, "qdrant_url": None, "host": "127.0.0.1"})


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
                    progress.console.print(f"  {record.server_id}: {record.last_error or listed}", highlight=False)
                    progress.advance(bar)
            time.sleep(0.05)


@contextmanager
def _query_service(embedded: Embedded) -> Generator[str]:
    deps = embedded.deps
    category_vectors(deps.embedder)  # load the model before the first query, as the query service does
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
