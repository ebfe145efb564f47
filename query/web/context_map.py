"""The context of all tools as a treemap: the largest servers, their largest tools, and the parts of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from query.web.rendering import cut, number
from query.web.servers import by_tokens
from query.web.tool_tokens import fields_of
from query.web.treemap import Rect, squarified

if TYPE_CHECKING:
    from query.web.page import PageRequest
    from query.web.servers import ServerTable, SetRow
    from shared.catalog import Encoding, IndexedTool, Scope
    from shared.index.tools import ToolIndex

FRAME = Rect(0, 0, 1000, 480)
# At most 12 servers of 4 tools of 3 parts, 12 times "other tools", and "others".
SERVERS, TOOLS = 12, 4
# A server with more tools is drawn undivided: its largest tools are not known without reading all.
READ_TOOLS = 250
PARTS = ("name and description", "parameters", "rest")
_KEPT, _KEPT_S = 64, 60.0
# The height of a line of text; a server whose name is shown has a strip of it above its tools.
STRIP = 22
_CHARACTER_WIDTH = 8
# A longer label is cut where so many of its characters have room, and otherwise left out.
_CHARACTERS = 8


class ToolShare(NamedTuple):
    """A tool, its tokens in the model form, and those of its PARTS; no parts if they could not be counted."""

    name: str
    tokens: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle with its tokens, the label that fits into it, and the tiles within it."""

    name: str
    tokens: int
    rect: Rect
    label: str
    inner: Sequence[Tile] = ()


def context_map(request: PageRequest, table: ServerTable) -> list[Tile]:
    """Return the tiles of the largest servers with tokens; the last tile, without a name, is that of all others."""
    sets = [of_set for of_set in sorted(table.sets, key=by_tokens) if of_set.tokens]
    shown, others = sets[:SERVERS], sum(of_set.tokens or 0 for of_set in sets[SERVERS:])
    weights = [of_set.tokens or 0 for of_set in shown] + ([others] if others else [])
    rects = squarified(weights, FRAME)
    tiles = [_server_tile(of_set, rect, request) for of_set, rect in zip(shown, rects, strict=False)]
    if others:
        tiles.append(Tile("", others, rects[-1], _label("others", rects[-1])))
    return tiles


def _server_tile(of_set: SetRow, rect: Rect, request: PageRequest) -> Tile:
    """Return the tile of a replica set, whose tools count once for each replica."""
    row = next(row for row in of_set.rows if row.tokens)
    of_one, of_all = row.tokens or 0, of_set.tokens or 0
    scope = replace(request.caller.scope, servers=frozenset({row.record.server_id}))
    index, encoding = request.catalogue.pinned().index, request.catalogue.encoding
    tools = _kept_largest(index, scope, encoding, row.record.revision, time.monotonic() // _KEPT_S)
    running = sum(row.tokens is not None for row in of_set.rows)
    below = rect._replace(y=rect.y + STRIP, height=rect.height - STRIP)
    label = _label(f"{of_set.server_id} × {running}" if running > 1 else of_set.server_id, below)
    rest, copies = of_one - sum(tool.tokens for tool in tools), of_all // of_one
    named = [*tools, *([ToolShare("", rest, ())] if tools and rest > 0 else [])]
    rects = squarified([tool.tokens for tool in named], below if label else rect)
    inner = [_tool_tile(tool, copies, at) for tool, at in zip(tools, rects, strict=False)]
    if len(named) > len(tools):
        inner.append(_others_tile((row.tools or 0) - len(tools), copies * rest, rects[-1]))
    return Tile(row.record.server_id, of_all, rect, label, inner)


def _others_tile(count: int, tokens: int, rect: Rect) -> Tile:
    """Return the tile, without a name, of all tools of a server that have none of their own."""
    whole = f"{number(count)} other {'tool' if count == 1 else 'tools'}, {number(tokens)}"
    short = f"{number(count)} {'other' if count == 1 else 'others'}"
    return Tile("", tokens, rect, _label(whole if len(whole) <= _room(rect) else short, rect))


def _tool_tile(tool: ToolShare, copies: int, rect: Rect) -> Tile:
    known = [(name, copies * tokens) for name, tokens in zip(PARTS, tool.parts, strict=False) if tokens > 0]
    rects = squarified([tokens for _, tokens in known], rect)
    inner = [Tile(name, tokens, at, "") for (name, tokens), at in zip(known, rects, strict=True)]
    return Tile(tool.name, copies * tool.tokens, rect, _label(tool.name, rect), inner)


def _label(text: str, rect: Rect) -> str:
    """Return the text, cut to the room in a line of the rectangle; empty where that would name nothing."""
    room = _room(rect)
    has_line = rect.height > STRIP and room >= min(len(text), _CHARACTERS)
    return cut(text, room) if has_line else ""


def _room(rect: Rect) -> int:
    """Return how many characters fit into a line of the rectangle."""
    return int(rect.width / _CHARACTER_WIDTH) - 1


def _largest(index: ToolIndex, scope: Scope, encoding: Encoding, _revision: int, _period: float) -> list[ToolShare]:
    """Return the largest tools of a server in the scope; none if it has more than READ_TOOLS."""
    page = index.tools(scope, limit=READ_TOOLS)
    if page.next_after is not None:
        return []
    ordered = sorted(page.tools, key=lambda tool: (-tool.model_counts.get(encoding, 0), tool.definition.name))
    return [_share(tool, encoding) for tool in ordered[:TOOLS] if tool.model_counts.get(encoding)]


_kept_largest: Callable[..., list[ToolShare]] = lru_cache(_KEPT)(_largest)


def _share(tool: IndexedTool, encoding: Encoding) -> ToolShare:
    tokens, by_field = tool.model_counts[encoding], fields_of(tool, encoding, "model")
    if by_field is None:
        return ToolShare(tool.definition.name, tokens, ())
    texts = sum(count for field, count in by_field.items() if not field.is_parameter and field.name in PARTS[0].split())
    parameters = sum(count for field, count in by_field.items() if field.is_parameter)
    return ToolShare(tool.definition.name, tokens, (texts, parameters, tokens - texts - parameters))
