"""The filters and the order of the table of servers.

The URL of the page holds all filters and the order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from query.servers import ServerRow, SetRow
from query.usage.report import is_unrestricted
from shared.catalog import DOCKER_SOURCE, KUBERNETES_SOURCE, OPERATOR_SOURCE, SERVER_STATES, TOOLHIVE_SOURCE

if TYPE_CHECKING:
    from query.web.page import PageRequest
    from shared.catalog import ServerState

PATH = "/ui/servers"
LONGEST = 401
"""Characters of a filter: those of the longest label with its value."""

Origin = Literal["mcp.json", "docker", "kubernetes", "event"]

ORIGINS: Mapping[Origin, tuple[str, ...]] = {
    "mcp.json": (OPERATOR_SOURCE,),
    "docker": (DOCKER_SOURCE,),
    "kubernetes": (KUBERNETES_SOURCE, TOOLHIVE_SOURCE),
    "event": (),
}
"""The sources of each origin; all other sources are producers of events."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that sorts the table; `descends` is true if its first link shows the largest values on top."""

    name: str
    label: str
    key: Callable[[SetRow], str | float]
    descends: bool = False
    style: str = ""


def _worst(of_set: SetRow) -> int:
    return min(SERVER_STATES.index(row.state) for row in of_set.rows)


COLUMNS = (
    Column("name", "Server", lambda of_set: of_set.server_id),
    Column("status", "Status", _worst),
    Column("freshness", "Last listed", lambda of_set: of_set.last_listed_at or 0, style="wide"),
    Column("tools", "Tools", lambda of_set: of_set.tools or 0, descends=True, style="n wide"),
    Column("tokens", "Tokens", lambda of_set: of_set.tokens or 0, descends=True, style="n"),
)
_BY_NAME = {column.name: column for column in COLUMNS}


def origin_of(source: str) -> Origin:
    """Return the origin of a server that this source announced last."""
    for origin, known in ORIGINS.items():
        if any(source == each or source.startswith(f"{each}/") for each in known):
            return origin
    return "event"


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The filters, the column and the direction that a URL requests; an empty filter admits every server.

    `label` is `key=value` or a key. Only a caller who may see all servers can filter by labels.
    """

    q: str = ""
    status: str = ""
    group: str = ""
    label: str = ""
    source: str = ""
    sort: str = "tokens"
    order: str = ""

    @property
    def has_filters(self) -> bool:
        """Return whether any filter is set."""
        return any((self.q, self.status, self.group, self.label, self.source))

    @property
    def descends(self) -> bool:
        """Return whether the largest values are on top."""
        return self.order == "desc" if self.order else _BY_NAME[self.sort].descends

    def admits(self, row: ServerRow) -> bool:
        """Return whether all filters but the status admit this server."""
        record = row.record
        key, equals, value = self.label.partition("=")
        has_label = record.labels.get(key) == value if equals else not key or key in record.labels
        is_in_group = not self.group or self.group in record.groups
        is_named = self.q.casefold() in record.server_id.casefold()
        return is_named and is_in_group and has_label and (not self.source or self.source == origin_of(record.source))

    def applied(self, sets: Iterable[SetRow]) -> tuple[list[SetRow], Sequence[tuple[ServerState, int]]]:
        """Return the found servers in the requested order, replicas together, and equal ones by name.

        With them come the states with the number of servers that all filters but the status admit.
        """
        admitted = [[row for row in of_set.rows if self.admits(row)] for of_set in sets]
        counts = Counter(row.state for rows in admitted for row in rows)
        if self.status:
            admitted = [[row for row in rows if row.state == self.status] for rows in admitted]
        by_name = sorted((SetRow(rows) for rows in admitted if rows), key=_BY_NAME["name"].key)
        found = sorted(by_name, key=_BY_NAME[self.sort].key, reverse=self.descends)
        return found, [(state, counts[state]) for state in SERVER_STATES if counts[state]]

    def url(self, **changes: str) -> str:
        """Return the URL of the table with these changes, from its first page, ready for further parameters."""
        values = {name: getattr(self, name) for name in self.__slots__} | changes
        if values["sort"] == "tokens" and not values["order"]:
            values.pop("sort")
        query = urlencode({name: value for name, value in values.items() if value}, errors="replace")
        return f"{PATH}?{query}"

    def sorted_by(self, column: Column) -> str:
        """Return the URL of the table in the order of a column, or in the other direction of the current one."""
        is_first = column.name == self.sort and self.descends == column.descends
        turned = "asc" if column.descends else "desc"
        return self.url(sort=column.name, order=turned if is_first else "")


def table_query(request: PageRequest) -> TableQuery:
    """Return the filters and the order of a request; unknown values are left out."""
    values = {name: request.query.get(name, "").strip()[:LONGEST] for name in TableQuery.__slots__}
    known = {"status": SERVER_STATES, "source": ORIGINS, "sort": _BY_NAME, "order": ("asc", "desc")}
    values = {name: value for name, value in values.items() if value and value in known.get(name, (value,))}
    if not is_unrestricted(request.caller):
        values.pop("label", None)
    return TableQuery(**values)
