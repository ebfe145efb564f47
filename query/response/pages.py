"""The pages of a search: each is a new search without the tools of earlier pages.

Any replica can return any page. No definition comes twice and none is lost, even if the ranking changes between two
pages. A position in the ranking guarantees neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from query.cursors import Cursors
from shared.catalog import IndexedTool

# Of a hash of the definition. In about 1 of 40,000 rankings of 450 tools, two definitions share it.
MARK_BYTES = 4

TOOL = "find_tool"


@dataclass(frozen=True, slots=True)
class SearchPages:
    """The pages of one caller's question; `shown` has the marks of the definitions on earlier pages."""

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

    def is_new(self, tool: IndexedTool) -> bool:
        """Return whether no earlier page has shown this definition, of any server."""
        return not self.shown or _mark(tool) not in self.shown

    def cursor(self, tools: Sequence[IndexedTool]) -> str:
        """Return the cursor to the page after these tools.

        Raises:
            CursorsUnavailable: the state is too long for the cursor itself and cannot be stored now.
        """
        shown = self.shown.union(_mark(tool) for tool in tools)
        return self.cursors.seal(b"".join(sorted(shown)), *self._binding)

    @property
    def _binding(self) -> tuple[str, str, str]:
        return self.caller, TOOL, self.question


def _mark(tool: IndexedTool) -> bytes:
    return hashlib.blake2b(tool.definition_id.encode(), digest_size=MARK_BYTES).digest()
