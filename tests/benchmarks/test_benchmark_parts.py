"""A reading of the parts benchmark counts for the part of its innermost file."""

from __future__ import annotations

import pytest

from benchmarks.parts import OTHER, part_of


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        (
            "run (asyncio/runners.py:1);call (query/mcp.py:3);dumps (json/__init__.py:2)",
            "other code of Toolscale",
        ),
        ("call (query/mcp.py:3);run (mcp/server/runner.py:2);validate (pydantic/main.py:9)", "MCP SDK"),
        ("search (query/search/search.py:1);get (shared/index/edge.py:2);__init__ (uuid.py:3)", "index"),
        ("send (uvicorn/h11_impl.py:1);notify (threading.py:2)", "event loop and hand-overs to threads"),
        ("main (x.py:1)", OTHER),
    ],
)
def test_the_innermost_known_file_decides(stack: str, part: str) -> None:
    assert part_of(stack.split(";")) == part
