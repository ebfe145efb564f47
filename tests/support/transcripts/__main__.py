"""Write the answers of a real run into docs/tools.md: `make docs-transcripts`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client

from tests.support.transcripts import TOOLSET, TRANSCRIPTS, Transcript
from tests.support.transcripts.serving import serving_demo
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "tools.md"

_FENCE = r"```json\n.*?\n```"


def main() -> None:
    """Ask the questions in one session, and put each answer below its marker."""
    with tempfile.TemporaryDirectory() as directory, serving_demo(ROOT / ".demo", Path(directory)) as url:
        httpx2.put(url.replace("/mcp", f"/toolsets/{TOOLSET['name']}"), json=TOOLSET).raise_for_status()
        results = anyio.run(_results, url)
    text = DOCUMENT.read_text(encoding="utf-8")
    for transcript, result in zip(TRANSCRIPTS, results, strict=True):
        text = _with_answer(text, transcript, result)
    DOCUMENT.write_text(text, encoding="utf-8")


async def _results(url: str) -> list[dict[str, Any]]:
    """Return the result of each call, as it is on the wire; a session lists the tools once."""
    results: list[dict[str, Any]] = []
    async with Client(url) as client:
        for transcript in TRANSCRIPTS:
            if transcript.tool in ("get_active_toolset", "get_savings_report"):
                await anyio.to_thread.run_sync(_wait_until_recorded, url)
            result = await client.call_tool(transcript.tool, dict(transcript.arguments))
            results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return results


def _wait_until_recorded(url: str) -> None:
    """Wait until the history has the searches, and the size of every server."""
    searches = sum(transcript.tool == "find_tool" for transcript in TRANSCRIPTS)
    servers = len(json.loads((ROOT / ".demo" / "mcp.json").read_text(encoding="utf-8"))["mcpServers"])

    def is_recorded() -> bool:
        found = httpx2.get(url.replace("/mcp", "/api/savings"), trust_env=False).json()
        return found["totals"]["searches"] == searches and [day["servers"] for day in found["catalogue"]] == [servers]

    eventually(is_recorded, what="the session to be recorded")


def _with_answer(text: str, transcript: Transcript, result: dict[str, Any]) -> str:
    below = re.compile(rf"{re.escape(transcript.marker)}(\n{_FENCE}\n\n{_FENCE})?", re.DOTALL)
    if not below.search(text):
        sys.exit(f"{DOCUMENT.name} has no line {transcript.marker}")
    return below.sub(lambda _: transcript.block(result), text)


main()
