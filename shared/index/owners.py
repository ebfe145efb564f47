"""Which server a point's tool is of, remembered: for 450 candidates, reading it takes as long as the search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.index.points import PointCollection

# About 50 MB. More points than this are remembered anew from time to time.
MAX_REMEMBERED = 300_000


class Owners:
    """Servers by point. A point's id is derived from its server's, so what was read once stays true."""

    def __init__(self, tools: PointCollection) -> None:
        self._tools = tools
        self._known: dict[str, str] = {}

    def of(self, points: Iterable[str]) -> dict[str, str]:
        """Return the server of each of these points; one that is no longer there may be left out.

        Raises:
            IndexUnavailable: some had to be read, and the engine did not answer.
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
            self._known = {}  # another thread may still be using the old one
