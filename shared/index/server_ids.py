"""The servers of points: one read of the index for each point, ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.index.points import PointCollection

# About 50 MB. The cache is emptied when it has more points.
MAX_REMEMBERED = 300_000


class ServerIdsOfPoints:
    """A cache of servers by point. It never expires, since a point's id is derived from its server's id."""

    def __init__(self, tools: PointCollection) -> None:
        self._tools = tools
        self._known: dict[str, str] = {}

    def of(self, points: Iterable[str]) -> dict[str, str]:
        """Return the server of each of these points; missing points may be absent.

        Raises:
            IndexUnavailable: a point was not cached, and the engine did not answer.
        """
        asked = dict.fromkeys(points)
        known = self._known
        unknown = [point for point in asked if point not in known]
        if unknown:
            self._read(unknown, known)
        return {point: known[point] for point in asked if point in known}

    def _read(self, points: Sequence[str], known: dict[str, str]) -> None:
        rows = self._tools.retrieve(points, ("server_id",))
        known.update({point: str(row["server_id"]) for point, row in rows.items()})
        if len(known) > MAX_REMEMBERED:
            self._known = {}  # another thread may still use the old cache
