"""The token budget of a response, as much as fits into it, and the operator's limits."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import structlog
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from query.kept import Kept, open_kept
from shared.catalog import DEFAULT_ENCODING, Encoding
from shared.errors import AssetInvalid, CountFailed
from shared.quoting import quoted_name
from shared.text.tokens import Counter, counter, estimate, is_estimate
from shared.validation import did_you_mean

if TYPE_CHECKING:
    from shared.settings import ResponseMode, Settings

MIN_TOKENS = 200
# No token of the encodings is longer, so a text of more characters than this for each token needs no counting.
MAX_TOKEN_CHARACTERS = 128
# Counting a run of blanks takes time that grows with its square, so a longer text is counted in pieces.
EXACT_CHARACTERS = 64 << 10
PIECE_CHARACTERS = 4 << 10
_STEP_CHARACTERS = 16
# A part ends before the first key of an object in a list, or the key behind a list: no token of the encodings spans a
# run of signs and a letter or digit behind it, so the tokens of the parts add up.
_PART_END = re.compile(r"""(?:,\{|\[\{|\}\],)"(?=[A-Za-z0-9])""")
# Parts of answers and short texts, mostly a tool each, whose tokens are remembered, and their length in characters.
REMEMBERED_PARTS, REMEMBERED_CHARACTERS = 4_096, 2_048

_log = structlog.get_logger()


class ToolRequest(BaseModel):
    """The arguments of a tool; an optional argument that is null, "", [] or {} counts as absent.

    Some clients send every optional argument. `aliases` are further names that agents use, with what they mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    aliases: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        given = renamed(without_empty(cast("Mapping[str, Any]", raw), optional | cls.aliases.keys()), cls.aliases)
        for name in given:
            if name not in cls.model_fields:
                raise ValueError(f"{quoted_name(name)}: {cls.unknown(name, given)}")
        return given

    @classmethod
    def unknown(cls, name: str, given: Collection[str]) -> str:  # noqa: ARG003
        """Return why an argument of this name is refused, among those that are given."""
        # without those that `tools/list` leaves out
        known = ", ".join(cls.model_json_schema()["properties"])
        return f"no argument of this tool{did_you_mean(name, (*cls.model_fields, *cls.aliases)) or f'; it has {known}'}"


def renamed(arguments: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments with the names that the aliases mean; of two names for one, an empty value gives way.

    Raises:
        ValueError: an argument is given twice, under two names.
    """
    found: dict[str, Any] = {}
    used: dict[str, str] = {}
    for given, value in arguments.items():
        name = aliases.get(given, given)
        if name in found and is_empty(value):
            continue
        if not is_empty(found.get(name)):
            raise ValueError(f"{given}: says the same as {used[name]}, use one of them")
        found[name], used[name] = value, given
    return found


def without_empty(arguments: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the arguments without those of these names that are empty."""
    return {name: value for name, value in arguments.items() if name not in names or not is_empty(value)}


def is_empty(value: object) -> bool:
    """Return whether a value says nothing: clients that send every argument fill them with such values."""
    return value in (None, "", [], {})


MaxTokens = Annotated[int, Field(ge=MIN_TOKENS)]
CursorText = Annotated[str, Field(max_length=200)]


class PagedRequest(ToolRequest):
    """The arguments of a built-in tool for the size of its response and for the next page."""

    # accepted, and left out of `tools/list`: few agents need it, and each pays for each word
    max_tokens: SkipJsonSchema[MaxTokens | None] = None
    cursor: CursorText | None = None
    """nextCursor."""


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


@dataclass(frozen=True, slots=True)
class ResponsePolicy:
    """The operator's limits of every response, and the store of its cursors; the default one is of this process."""

    kept: Kept = field(default_factory=Kept)
    mode: ResponseMode = "auto"
    max_tokens: int = 5_000
    encoding: Encoding = DEFAULT_ENCODING

    def budget(self, max_tokens: int | None = None, encoding: Encoding | None = None) -> Budget:
        """Return the budget of one response: the smaller of the caller's and the operator's limit."""
        allowed = self.max_tokens if max_tokens is None else min(max_tokens, self.max_tokens)
        return Budget(allowed, counting(encoding or self.encoding))


def response_policy(settings: Settings) -> ResponsePolicy:
    """Return the response policy of these settings."""
    counting(settings.token_encoding)  # loads the vocabulary, which the first caller would wait for
    kept = open_kept(settings)
    return ResponsePolicy(kept, settings.response_mode, settings.max_response_tokens, settings.token_encoding)


def most_that_fit(items: int, fits: Callable[[int], bool]) -> int:
    """Return how many of the first items fit, 0 to `items`, by a binary search over `fits(n)`."""
    if items and fits(items):
        return items
    enough, too_many = 0, items
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        enough, too_many = (middle, too_many) if fits(middle) else (enough, middle)
    return enough


def items_that_fit(texts: Sequence[str], budget: Budget) -> int:
    """Return how many of the first texts the budget admits together: for a page of a listing."""
    left = budget
    for number, text in enumerate(texts):
        if not left.may_admit(text) or (tokens := left.count(text)) > left.max_tokens:
            return number
        left = left.minus(tokens)
    return len(texts)


def fitting_prefix(text: str, budget: Budget) -> int:
    """Return how many characters of a text the budget admits: as many as it can hold, give or take a token.

    The text ends there at a token boundary, since a character more would be one token more.
    """
    likely, left = 0, budget
    while likely < len(text):
        piece = text[likely : likely + PIECE_CHARACTERS]
        if (tokens := left.count(piece)) > left.max_tokens:
            likely += _most_characters(piece, left)
            break
        likely, left = likely + len(piece), left.minus(tokens)
    # a longer text is counted in the same pieces, each of them only once
    return likely if likely > EXACT_CHARACTERS else _exact_prefix(text, likely, budget)


def _exact_prefix(text: str, likely: int, budget: Budget) -> int:
    """Return the exact prefix, a few characters from the likely one: tokens may span the ends of pieces."""
    enough, too_many, step = likely, likely, _STEP_CHARACTERS
    while not budget.admits(text[:enough]):
        enough, too_many, step = max(0, enough - step), enough, 2 * step
    while enough == too_many or (too_many <= len(text) and budget.admits(text[:too_many])):
        enough, too_many, step = too_many, too_many + step, 2 * step
    return enough + _most_characters(text[: too_many - 1], budget, enough)


def _most_characters(text: str, budget: Budget, start: int = 0) -> int:
    """Return how many characters behind `start` the budget admits together with those before it."""
    return most_that_fit(len(text) - start, lambda more: budget.count(text[: start + more]) <= budget.max_tokens)


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
