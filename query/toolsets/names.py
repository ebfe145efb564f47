"""Distinct names for the tools of a toolset in `tools/list`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from shared.catalog import IndexedTool, point_id

# The longest function name that every client's model interface accepts.
MAX_CHARACTERS = 64
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 8


def direct_tool_names(tools: Sequence[IndexedTool], reserved: Collection[str]) -> dict[str, IndexedTool]:
    """Return the tools by distinct names of at most 64 letters, digits, `_` and `-`, none of them reserved.

    A tool keeps its own name if no other tool has it. Otherwise its server's name goes in front, and, if that clashes
    too, a part of a hash behind. The names do not depend on the order of the tools.
    """
    names = {tool.qualified_name: _valid(tool.definition.name) for tool in tools}
    taken = Counter(names.values())
    clashing = [tool for tool in tools if taken[own := names[tool.qualified_name]] > 1 or own in reserved]
    prefixed = {tool.qualified_name: _valid(f"{tool.server_id}_{tool.definition.name}") for tool in clashing}
    names |= prefixed
    taken = Counter(names.values())
    for tool in clashing:
        if taken[names[tool.qualified_name]] > 1 or names[tool.qualified_name] in reserved:
            names[tool.qualified_name] = _hashed(tool)
    return {names[tool.qualified_name]: tool for tool in tools}


def _valid(name: str) -> str:
    return _REFUSED.sub("_", name)[:MAX_CHARACTERS] or "_"


def _hashed(tool: IndexedTool) -> str:
    name = _valid(f"{tool.server_id}_{tool.definition.name}")
    mark = point_id(tool.server_id, tool.definition.name)[:_HASH]
    return f"{name[: MAX_CHARACTERS - _HASH - 1]}_{mark}"
