"""What a test reads of a page of the service."""

from __future__ import annotations

import html
import re

import httpx2

from query.usage.usage import Usage
from shared.index.tools import ToolIndex
from tests.support.http_callers import app_of, http_client


async def get(index: ToolIndex, path: str, usage: Usage | None = None) -> httpx2.Response:
    """Return the page at this path of a service without tokens."""
    async with http_client(app_of(index, usage=usage)) as http:
        return await http.get(path)


def text(page: httpx2.Response) -> str:
    """Return the text of a page, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def blocks(page: httpx2.Response) -> list[str]:
    """Return the texts of the blocks to read or to copy."""
    return [html.unescape(block) for block in re.findall(r"<pre.*?><code>(.*?)</code>", page.text, re.DOTALL)]
