"""Write the answers of a real run into docs/tools.md: `make docs-transcripts`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from tests.support.transcripts import TRANSCRIPTS, Transcript
from tests.support.transcripts.serving import serving_demo

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "tools.md"

_FENCE = r"```json\n.*?\n```"


def main() -> None:
    """Ask the questions in one session, and put each answer below its marker."""
    with tempfile.TemporaryDirectory() as directory, serving_demo(ROOT / ".demo", Path(directory)) as url:
        results = anyio.run(_results, url)
    text = DOCUMENT.read_text(encoding="utf-8")
    for transcript, result in zip(TRANSCRIPTS, results, strict=True):
        text = _with_answer(text, transcript, result)
    DOCUMENT.write_text(text, encoding="utf-8")


async def _results(url: str) -> list[dict[str, Any]]:
    """Return the result of each call, as it is on the wire."""
    async with Client(url) as client:
        results = [await client.call_tool(each.tool, dict(each.arguments)) for each in TRANSCRIPTS]
    return [result.model_dump(mode="json", by_alias=True, exclude_none=True) for result in results]


def _with_answer(text: str, transcript: Transcript, result: dict[str, Any]) -> str:
    below = re.compile(rf"{re.escape(transcript.marker)}(\n{_FENCE}\n\n{_FENCE})?", re.DOTALL)
    if not below.search(text):
        sys.exit(f"{DOCUMENT.name} has no line {transcript.marker}")
    return below.sub(lambda _: transcript.block(result), text)


main()
