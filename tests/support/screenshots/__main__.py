"""Take the pictures of docs/page.md from a real run on real servers: `make docs-screenshots`."""

from __future__ import annotations

import json
import sys
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
from tests.support.browser import Browser, browser
from tests.support.screenshots import SCREENSHOTS, Stage
from tests.support.transcripts.serving import called, serving, serving_demo
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
# Flat colours: more colours make larger files without a visible difference.
COLOURS = 128
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
    """Take the pictures of an empty installation, of one that was used for a month, and of one that breaks then."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        profile, empty, used = (Path(directory) / name for name in ("chromium", "empty", "used"))
        for each in (profile, empty, used):
            each.mkdir()
        with browser(profile) as chromium:
            (empty / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
            with serving(empty, empty / "mcp.json") as url:
                _take(chromium, url, "empty")
            with serving_demo(ROOT / ".demo", used) as url:
                anyio.run(_use, url)
                eventually(lambda: _is_kept(used), what="the history to be written")
                _look_back(used)
                _take(chromium, url, "healthy")
                _break(used / "mcp.json")
                eventually(lambda: "<ins>" in _page(url, "/ui/servers/time"), 60, "the change")
                eventually(lambda: "KeyError" in _page(url, "/ui/servers/mail"), 60, "the failure")
                _take(chromium, url, "broken")


async def _use(url: str) -> None:
    for question in QUESTIONS:
        await called(url, "find_tool", tool_description=question, limit=5)
    for arguments in CALLS:
        await called(url, "call_tool", **arguments)


def _is_kept(directory: Path) -> bool:
    with closing(open_usage(load_settings(data_dir=directory))) as usage:
        rows, sizes = usage.rows(today(), today()), usage.sizes(today(), today())
    calls = sum(counters.get("calls", 0) for counters in rows.values())
    return calls == len(CALLS) and sizes[today()].servers == _servers(directory)


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


def _break(config: Path) -> None:
    """Give the server `time` another time zone, which its definitions name, and add a server that cannot start."""
    document = json.loads(config.read_text(encoding="utf-8").replace('"UTC"', '"Asia/Tokyo"'))
    failing = "import os; os.environ['MAIL_TOKEN']"
    document["mcpServers"]["mail"] = {"command": sys.executable, "args": ["-c", failing]}
    config.write_text(json.dumps(document), encoding="utf-8")


def _page(url: str, path: str) -> str:
    return httpx2.get(url.removesuffix("/mcp") + path, trust_env=False).text


def _servers(directory: Path) -> int:
    return len(json.loads((directory / "mcp.json").read_text(encoding="utf-8"))["mcpServers"])


def _take(chromium: Browser, url: str, stage: Stage) -> None:
    PICTURES.mkdir(exist_ok=True)
    for screenshot in (each for each in SCREENSHOTS if each.stage == stage):
        tab = chromium.tab(screenshot.width, 600, dark=screenshot.dark, scripts=False)
        tab.open(url.removesuffix("/mcp") + screenshot.path)
        for name, text in screenshot.filled:
            tab.evaluate(f"document.querySelector('[name=\"{name}\"]').value = {json.dumps(text)}")
        if screenshot.filled:
            tab.follow("form.parameters button")
        tab.screenshot(PICTURES / screenshot.file, MAX_HEIGHT)
        with Image.open(PICTURES / screenshot.file) as picture:
            picture.convert("RGB").quantize(COLOURS).save(PICTURES / screenshot.file, optimize=True)


main()
