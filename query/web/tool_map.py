"""The map of tools: the largest ones of the servers that cost most, by their tokens and their calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING

from query.kept import Recent
from query.tools.list_available_tools import tools_of
from query.usage.recent_calls import DAYS
from query.usage.report import is_unrestricted
from query.usage.usage import today
from query.web.page import cut, part_of_path
from query.web.treemap import Area, squarified

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.servers import ServerTable, SetRow
    from query.usage.usage import Usage
    from shared.catalog import Scope

MOST_TOOLS = 500
MOST_SERVERS = 100
# A tool with a tenth of the calls of the most called one counts as much used.
MUCH = 0.1

Tool = tuple[str, str]
"""A server, the first of its replicas, and the name of a tool."""
Calls = Mapping[Tool, int]


@dataclass(frozen=True, slots=True)
class MappedTool:
    """A tool of a server, with the tokens of its model form. Of replicas, that of the first server."""

    server_id: str
    name: str
    tokens: int
    does: str

    @property
    def key(self) -> Tool:
        """Return the key of its calls."""
        return self.server_id, self.name


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of the map: a tool, or the other tools of a server, or with neither, all other servers.

    `calls` is None where no history is kept. `use` is `much`, `some`, `none` or empty for several tools.
    """

    area: Area
    tokens: int
    server_id: str = ""
    name: str = ""
    tools: int = 1
    calls: int | None = None
    use: str = ""
    is_on_top: bool = False
    """Whether the name of its server is drawn over it."""

    @property
    def label(self) -> str:
        """Return what the tile is, and what it costs: the words drawn on it first, so that who speaks them opens it."""
        tokens = f"{self.tokens:,} tokens"
        if not self.name:
            owner = cut(self.server_id, 80) or "all other servers"
            return f"{self.tools:,} more {'tool' if self.tools == 1 else 'tools'} of {owner}, {tokens}"
        used = {None: "", 0: f", never called in {DAYS} days", 1: f", 1 call in {DAYS} days"}
        return f"{cut(self.server_id, 80)}:{cut(self.name, 200)}, {tokens}" + used.get(
            self.calls, f", {self.calls or 0:,} calls in {DAYS} days"
        )

    @property
    def path(self) -> str:
        """Return the address that it opens."""
        if not self.server_id:
            return "/ui/servers"
        if not self.name:
            return f"/ui/tools?server={part_of_path(self.server_id)}"
        return f"/ui/tools/{part_of_path(f'{self.server_id}:{self.name}')}"


@dataclass(frozen=True, slots=True)
class Group:
    """The frame of a server, with its number of replicas."""

    area: Area
    server_id: str
    replicas: int


@dataclass(frozen=True, slots=True)
class ToolMap:
    """The tiles, and the frames of their servers."""

    tiles: Sequence[Tile]
    groups: Sequence[Group]

    @property
    def tokens(self) -> int:
        """Return the tokens of all tiles."""
        return sum(tile.tokens for tile in self.tiles)

    @property
    def unused_tokens(self) -> int:
        """Return the tokens of drawn tools without calls."""
        return sum(tile.tokens for tile in self.tiles if tile.use == "none")


class LargestTools:
    """Reads the tools of the servers that cost most, and keeps them while no server changes."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._recent: Recent[Sequence[MappedTool]] = Recent(most=8)

    def of(self, scope: Scope, table: ServerTable) -> Sequence[MappedTool]:
        """Return the tools of the servers that cost most, until they have MOST_TOOLS, the largest first."""
        state = self._catalogue.ledger.state()
        return self._recent.get_or_read((scope,), state, lambda: self._read(scope, table))

    def of_server(self, scope: Scope, server_id: str) -> Sequence[MappedTool]:
        """Return the tools of a server, the largest first."""
        return self._tools(scope, {server_id: server_id})

    def _read(self, scope: Scope, table: ServerTable) -> Sequence[MappedTool]:
        chosen: dict[str, str] = {}
        known = 0
        for of_set in by_cost(table):
            if known >= MOST_TOOLS or len(chosen) == MOST_SERVERS:
                break
            known += of_set.tools or 0
            listed = next(row for row in of_set.rows if row.tokens is not None)
            chosen[listed.record.server_id] = of_set.server_id
        return self._tools(scope, chosen)

    def _tools(self, scope: Scope, first_of: Mapping[str, str]) -> Sequence[MappedTool]:
        if not first_of:
            return []
        within, encoding = replace(scope, servers=frozenset(first_of)), self._catalogue.encoding
        found = [
            MappedTool(
                first_of[tool.server_id],
                tool.definition.name,
                tool.model_counts.get(encoding, 0),
                tool.definition.description[:300],
            )
            for tool in tools_of(within, self._catalogue)
        ]
        return sorted(found, key=lambda tool: (-tool.tokens, tool.server_id, tool.name))


def by_cost(table: ServerTable) -> list[SetRow]:
    """Return the servers whose tools can be found, of replicas one, the most expensive first."""
    costs = ((-of_set.tokens_of_one, of_set.server_id, of_set) for of_set in table.sets)
    return [of_set for cost, _, of_set in sorted(costs, key=itemgetter(0, 1)) if cost]


def calls_of(usage: Usage, caller: Caller, table: ServerTable) -> Calls:
    """Return the calls of the last DAYS days by tool, of all callers or, for a caller with less rights, its own.

    Raises:
        HistoryUnavailable: the store does not answer.
    """
    first_of = {row.record.server_id: of_set.server_id for of_set in table.sets for row in of_set.rows}
    last, sees_all = today(), is_unrestricted(caller)
    calls: Counter[Tool] = Counter()
    for (name, server, tool), counts in usage.sums(last - timedelta(days=DAYS - 1), last, ("calls",)).items():
        if server in first_of and (sees_all or name == caller.name):
            calls[first_of[server], tool] += counts.get("calls", 0)
    return calls


def tool_map(tools: Sequence[MappedTool], table: ServerTable, calls: Calls | None) -> ToolMap:
    """Return the map of these tools, beside what else their servers and all others cost."""
    drawn: dict[str, list[MappedTool]] = defaultdict(list)
    for tool in tools[:MOST_TOOLS]:
        if tool.tokens:
            drawn[tool.server_id].append(tool)
    sets = by_cost(table)
    shown, others = sets[:MOST_SERVERS], sets[MOST_SERVERS:]
    weights: list[tuple[int, SetRow | None]] = [(of_set.tokens_of_one, of_set) for of_set in shown]
    if others:
        weights.append((sum(of_set.tokens_of_one for of_set in others), None))
        weights.sort(key=lambda each: -each[0])
    most = max(calls.values(), default=0) if calls else 0
    tiles: list[Tile] = []
    groups: list[Group] = []
    for (tokens, of_set), area in zip(weights, squarified([each[0] for each in weights], Area()), strict=True):
        if of_set is None:
            tiles.append(Tile(area, tokens, tools=sum(each.tools or 0 for each in others)))
            continue
        tiles += _tiles_of(of_set, drawn[of_set.server_id], area, calls, most)
        groups.append(Group(area, of_set.server_id, len(of_set.rows)))
    return ToolMap(tiles, groups)


def _tiles_of(of_set: SetRow, tools: Sequence[MappedTool], area: Area, calls: Calls | None, most: int) -> list[Tile]:
    """Return the tiles of a server: its drawn tools, and one for all others."""
    rest = of_set.tokens_of_one - sum(tool.tokens for tool in tools)
    others = (of_set.tools or 0) - len(tools)
    parts: list[tuple[int, MappedTool | None]] = [(tool.tokens, tool) for tool in tools]
    if rest > 0 and others > 0:
        parts.append((rest, None))
        parts.sort(key=lambda part: -part[0])
    tiles: list[Tile] = []
    for (tokens, tool), place in zip(parts, squarified([part[0] for part in parts], area), strict=True):
        if tool is None:
            tiles.append(Tile(place, tokens, of_set.server_id, tools=others, is_on_top=place.y == area.y))
            continue
        count = None if calls is None else calls.get(tool.key, 0)
        use = "" if count is None else "none" if not count else "much" if count >= most * MUCH else "some"
        is_on_top = place.y == area.y
        tiles.append(Tile(place, tokens, tool.server_id, tool.name, calls=count, use=use, is_on_top=is_on_top))
    return tiles
