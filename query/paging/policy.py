"""The operator's limits on responses, and the cursors to the pages after the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from query.cursors import Cursors, open_cursors, own_cursors
from query.paging.budget import Budget, counting

if TYPE_CHECKING:
    from shared.catalog import Encoding
    from shared.settings import ResponseMode, Settings


@dataclass(frozen=True, slots=True)
class ResponsePolicy:
    """The limits of every response, and its cursors; the default cursors work in this process only."""

    cursors: Cursors = field(default_factory=own_cursors)
    mode: ResponseMode = "auto"
    max_tokens: int = 5_000
    encoding: Encoding = "cl100k_base"

    def budget(self, max_tokens: int | None = None, encoding: Encoding | None = None) -> Budget:
        """Return the budget of one response: the smaller of the caller's and the operator's limit."""
        allowed = self.max_tokens if max_tokens is None else min(max_tokens, self.max_tokens)
        return Budget(allowed, counting(encoding or self.encoding))


def response_policy(settings: Settings) -> ResponsePolicy:
    """Return the response policy of these settings.

    Raises:
        ConfigInvalid: the key of the cursors cannot be read or written.
    """
    counting(settings.token_encoding)  # loads the vocabulary, which the first caller would wait for
    cursors = open_cursors(settings)
    return ResponsePolicy(cursors, settings.response_mode, settings.max_response_tokens, settings.token_encoding)
