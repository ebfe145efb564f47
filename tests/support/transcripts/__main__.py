"""Write the answers of a real run into docs/tools.md: `make docs-transcripts`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import anyio
import httpx2

from tests.support.transcripts import TOOLSET, TRANSCRIPTS
from tests.support.transcripts.serving import called, serving_demo
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "tools.md"

_FENCE = r"```json\n.*?\n```"


def main() -> None:
    """Ask each question in turn and put its answer below its marker."""
    text = DOCUMENT.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory, serving_demo(ROOT / ".demo", Path(directory)) as url:
        httpx2.put(url.replace("/mcp", f"/toolsets/{TOOLSET['name']}"), json=TOOLSET).raise_for_status()
        for transcript in TRANSCRIPTS:
            if transcript.tool == "get_savings_report":
                eventually(lambda: anyio.run(_is_recorded, url), what="what was saved to be recorded")
            result = anyio.run(lambda: called(url, transcript.tool, **transcript.arguments))  # noqa: B023  # called at once
            below = re.compile(rf"{re.escape(transcript.marker)}(\n{_FENCE}\n\n{_FENCE})?", re.DOTALL)
            if not below.search(text):
                sys.exit(f"{DOCUMENT.name} has no line {transcript.marker}")
            block = transcript.block(result)
            text = below.sub(lambda _: block, text)  # noqa: B023  # called at once
    DOCUMENT.write_text(text, encoding="utf-8")


async def _is_recorded(url: str) -> bool:
    report = (await called(url, "get_savings_report"))["structuredContent"]
    return bool(report["totals"]["searches"])


main()
