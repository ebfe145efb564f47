"""The token budget of a response."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Annotated

import structlog
from pydantic import Field

from query.paging.request import ToolRequest
from shared.catalog import Encoding
from shared.errors import AssetInvalid, CountFailed
from shared.text.tokens import Counter, counter, estimate, is_estimate

MIN_TOKENS = 200
# No token of the encodings is longer, so a text of more characters than this for each token needs no counting.
MAX_TOKEN_CHARACTERS = 128
# Counting a run of blanks takes time that grows with its square, so a longer text is counted in pieces.
EXACT_CHARACTERS = 64 << 10
PIECE_CHARACTERS = 4 << 10
# A part ends before the first key of an object in a list, or the key behind a list: no token of the encodings spans a
# run of signs and a letter or digit behind it, so the tokens of the parts add up.
_PART_END = re.compile(r"""(?:,\{|\}\],)"(?=[A-Za-z0-9])""")
# Parts of answers and short texts, mostly a tool each, whose tokens are remembered, and their length in characters.
REMEMBERED_PARTS, REMEMBERED_CHARACTERS = 4_096, 2_048

_log = structlog.get_logger()


MaxTokens = Annotated[int, Field(ge=MIN_TOKENS)]
CursorText = Annotated[str, Field(max_length=200)]


class PagedRequest(ToolRequest):
    """The arguments of a built-in tool for the size of its response and for the next page."""

    max_tokens: MaxTokens | None = None
    """For a shorter answer."""
    cursor: CursorText | None = None
    """nextCursor of the answer before."""


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `max_tokens` for a response."""

    max_tokens: int
    counter: Counter

    def count(self, text: str) -> int:
        """Return the tokens of a text; one above EXACT_CHARACTERS may have a token more for each of its pieces."""
        if len(text) <= EXACT_CHARACTERS:
            return self.counter(text)
        pieces = range(0, len(text), PIECE_CHARACTERS)
        return sum(self.counter(text[start : start + PIECE_CHARACTERS]) for start in pieces)

    def admits(self, *texts: str) -> bool:
        """Return whether these texts are within the budget; texts that are short or huge enough are not counted."""
        return self.surely_admits(*texts) or (self.may_admit(*texts) and self.cost(*texts) <= self.max_tokens)

    def may_admit(self, *texts: str) -> bool:
        """Return whether these texts are short enough to be counted; longer ones never fit."""
        return sum(len(text) for text in texts) <= self.max_tokens * MAX_TOKEN_CHARACTERS

    def surely_admits(self, *texts: str) -> bool:
        """Return whether these texts fit in any encoding: no token is shorter than a byte."""
        return sum(len(text.encode("utf-8", "replace")) for text in texts) <= self.max_tokens

    def cost(self, *texts: str) -> int:
        """Return the tokens of these texts."""
        return sum(self.count(text) for text in texts)

    def minus(self, tokens: int) -> Budget:
        """Return the budget reduced by this many tokens."""
        return Budget(max(0, self.max_tokens - tokens), self.counter)


@functools.lru_cache
def counting(encoding: Encoding) -> Counter:
    """Return a counter that never raises: it estimates tokens that the encoding cannot count."""
    try:
        count = counter(encoding)
    except AssetInvalid as error:
        _log.error("vocabulary_unusable", encoding=encoding, reason=str(error))
        return estimate
    if is_estimate(encoding):
        return count
    return functools.partial(_counted, count, functools.lru_cache(REMEMBERED_PARTS)(count))


def parts(text: str) -> list[str]:
    """Return the parts of a text, which has as many tokens as they have together."""
    # four times as fast as a split at an expression that looks behind each character
    ends = [end.end() for end in _PART_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _counted(count: Counter, remembered: Counter, text: str) -> int:
    """Return the tokens of a text; `remembered` counts its short parts."""
    try:
        return sum((remembered if len(part) <= REMEMBERED_CHARACTERS else count)(part) for part in parts(text))
    except CountFailed:
        return estimate(text)
