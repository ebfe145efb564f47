"""The pages of a search: each is ranked anew, without the tools that earlier pages showed.

So any replica makes any page, no tool comes twice, and none is lost, however the ranking moves while servers come
and go. A position in the ranking would promise neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from query.cursors import Cursors

# Of a point's id, which is a hash: in one of some 40,000 rankings of 450 tools two share them.
MARK_BYTES = 4

TOOL = "find_tool"


@dataclass(frozen=True, slots=True)
class SearchPages:
    """The pages that one caller reads of the answers to one question; `shown` marks what those so far held."""

    cursors: Cursors
    caller: str
    question: str
    shown: frozenset[bytes] = frozenset()

    def after(self, cursor: str | None) -> SearchPages:
        """Return the pages as they stand where this cursor was given; None: at the beginning.

        Raises:
            CursorInvalid: it is of another caller or question, was changed, or has expired.
            CursorsUnavailable: what it refers to cannot be read now.
        """
        if cursor is None:
            return self
        state = self.cursors.unseal(cursor, *self._binding)
        marks = (state[at : at + MARK_BYTES] for at in range(0, len(state), MARK_BYTES))
        return replace(self, shown=frozenset(marks))

    def remaining(self, points: Sequence[str]) -> list[str]:
        """Return the points that no page has shown yet."""
        return [point for point in points if _mark(point) not in self.shown]

    def cursor(self, points: Sequence[str]) -> str:
        """Return the cursor to what comes after these points.

        Raises:
            CursorsUnavailable: so much was shown that it must be kept, and it cannot be.
        """
        shown = self.shown.union(_mark(point) for point in points)
        return self.cursors.seal(b"".join(sorted(shown)), *self._binding)

    @property
    def _binding(self) -> tuple[str, str, str]:
        return self.caller, TOOL, self.question


def _mark(point: str) -> bytes:
    return bytes.fromhex(point[: 2 * MARK_BYTES])
