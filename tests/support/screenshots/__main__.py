"""Take the pictures of docs/page.md from a real run on real servers: `make docs-screenshots`."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
from PIL import Image

from query.usage.usage import TOOLS_LIST, CatalogueSize, RowKey, open_usage, today
from shared.settings import load_settings
from tests.support.browser import browser
from tests.support.screenshots import SCREENSHOTS
from tests.support.transcripts.serving import called, serving_demo
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
# Flat colours: more colours make larger files without a visible difference.
COLOURS = 64
# The top of a page is enough.
MAX_HEIGHT = 1_250
DAYS_BEFORE = 29
QUESTIONS = (
    "what time is it in another timezone",
    "show the commits of a repository",
    "read a file",
    "run an SQL query",
    "download a web page as text",
    "add a slide with a chart to a presentation",
    "remember something about a person",
)
CALLS: tuple[dict[str, Any], ...] = (
    {"tool_name": "time:get_current_time", "parameters": {"timezone": "Asia/Tokyo"}},
    {"tool_name": "memory:read_graph", "parameters": {}},
    {"tool_name": "sqlite:list_tables", "parameters": {}},
    {"tool_name": "git:git_status", "parameters": {"repo_path": "/nowhere"}},
)
# The tools that earlier days called, the most frequent first.
CALLED = ("git:git_log", "git:git_status", "filesystem:read_text_file", "sqlite:read_query", "memory:search_nodes")


def main() -> None:
    """Search, call tools, change the definitions of a server, and open each page."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        serving_demo(ROOT / ".demo", Path(directory)) as url,
    ):
        anyio.run(_use, url)
        eventually(lambda: _is_kept(Path(directory)), what="the history to be written")
        _look_back(Path(directory))
        _move(ROOT / ".demo" / "mcp.json")
        changed = url.removesuffix("/mcp") + "/ui/servers/time"
        eventually(lambda: "changed definition" in httpx2.get(changed, trust_env=False).text, 60, "the change")
        _take(url.removesuffix("/mcp"), Path(directory))


async def _use(url: str) -> None:
    for question in QUESTIONS:
        await called(url, "find_tool", tool_description=question, limit=5)
    for arguments in CALLS:
        await called(url, "call_tool", **arguments)


def _is_kept(directory: Path) -> bool:
    with closing(open_usage(load_settings(data_dir=directory))) as usage:
        rows, sizes = usage.rows(today(), today()), usage.sizes(today(), today())
    calls = sum(counters.get("calls", 0) for counters in rows.values())
    return calls == len(CALLS) and sizes[today()].servers == _servers()


def _look_back(directory: Path) -> None:
    """Write the history of earlier days, in which the servers appear one by one."""
    with closing(open_usage(load_settings(data_dir=directory))) as usage:
        size = usage.sizes(today(), today())[today()]
        for back in range(1, DAYS_BEFORE):
            day, there = today() - timedelta(days=back), size.servers - back // 6
            tools, tokens = size.tools * there // size.servers, size.tokens * there // size.servers
            usage.put_size(day, CatalogueSize(there, tools, tokens))
            found = back * 7 % 11
            baseline = {"baseline_tokens": tokens * found, "baseline_tools": tools * found}
            listed = {"answers": found, "tokens": 1_000 * found, "bytes": 7_500 * found}
            saved = max(0, tokens - 100) * found
            answers = {"answers": found, "tokens": 600 * found, "bytes": 2_400 * found}
            usage.add(
                {
                    RowKey(day, "anyone", "", TOOLS_LIST): listed | baseline,
                    RowKey(day, "anyone", "", "find_tool"): answers | {"searches": found, "tokens_saved": saved},
                }
                | {
                    RowKey(day, "anyone", *tool.split(":")): {"answers": found, "calls": found // part, "bytes": 900}
                    for part, tool in enumerate(CALLED, 1)
                }
            )


def _move(config: Path) -> None:
    """Give the server `time` another time zone, which its definitions name."""
    config.write_text(config.read_text(encoding="utf-8").replace('"UTC"', '"Asia/Tokyo"'), encoding="utf-8")


def _servers() -> int:
    return len(json.loads((ROOT / ".demo" / "mcp.json").read_text(encoding="utf-8"))["mcpServers"])


def _take(address: str, directory: Path) -> None:
    PICTURES.mkdir(exist_ok=True)
    profile = directory / "chromium"
    profile.mkdir()
    with browser(profile) as chromium:
        for screenshot in SCREENSHOTS:
            tab = chromium.tab(screenshot.width, 600, dark=screenshot.dark, scripts=False)
            tab.open(address + screenshot.path)
            tab.screenshot(PICTURES / screenshot.file, MAX_HEIGHT)
            with Image.open(PICTURES / screenshot.file) as picture:
                picture.convert("RGB").quantize(COLOURS).save(PICTURES / screenshot.file, optimize=True)


main()
