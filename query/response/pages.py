"""The pages of a search: each is a new search without the tools of earlier pages.

Any replica can return any page. No tool comes twice and none is lost, even if the ranking changes between two pages.
A position in the ranking guarantees neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from query.cursors import Cursors

# The prefix of a point's id, which is a hash. In about 1 of 40,000 rankings of 450 tools, two tools share it.
MARK_BYTES = 4

TOOL = "find_tool"


@dataclass(frozen=True, slots=True)
class SearchPages:
    """The pages of one caller's question; `shown` has the marks of the tools on earlier pages."""

    cursors: Cursors
    caller: str
    question: str
    shown: frozenset[bytes] = frozenset()

    def after(self, cursor: str | None) -> SearchPages:
        """Return the pages behind this cursor; None: from the beginning.

        Raises:
            CursorInvalid: it belongs to another caller or question, was changed, or has expired.
            CursorsUnavailable: its stored state cannot be read now.
        """
        if cursor is None:
            return self
        state = self.cursors.unseal(cursor, *self._binding)
        marks = (state[at : at + MARK_BYTES] for at in range(0, len(state), MARK_BYTES))
        return replace(self, shown=frozenset(marks))

    def remaining(self, points: Sequence[str]) -> list[str]:
        """Return the points that no earlier page has shown."""
        return [point for point in points if _mark(point) not in self.shown]

    def cursor(self, points: Sequence[str]) -> str:
        """Return the cursor to the page after these points.

        Raises:
            CursorsUnavailable: the state is too long for the cursor itself and cannot be stored now.
        """
        shown = self.shown.union(_mark(point) for point in points)
        return self.cursors.seal(b"".join(sorted(shown)), *self._binding)

    @property
    def _binding(self) -> tuple[str, str, str]:
        return self.caller, TOOL, self.question


def _mark(point: str) -> bytes:
    return bytes.fromhex(point[: 2 * MARK_BYTES])
