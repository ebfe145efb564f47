"""What no message about a server may hold: the credentials it was given, wherever they were put."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

from shared.upstream.dial import HttpTarget, StdioTarget, Target

SHORTEST = 8
"""Characters below which a value is no credential; hiding it would only make messages unreadable."""

_PATH = re.compile(r"(~|\.{1,2})?/[^\s:]*")
_PLAIN_NAME = re.compile(r"@?[a-z]+([-_./@][a-z]+)*")


def secrets_of(target: Target) -> tuple[str, ...]:
    """Return the credentials among the target's headers, variables, arguments and URLs, the longest first."""
    values = _in_http(target) if isinstance(target, HttpTarget) else _in_stdio(target)
    parts = {part for value in values for part in (value, value.rpartition(" ")[2])}  # with and without its `Bearer`
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True))


def _in_http(target: HttpTarget) -> Iterator[str]:
    yield from target.headers.values()
    yield from _in_url(target.url)


def _in_stdio(target: StdioTarget) -> Iterator[str]:
    words = [word for argument in target.args for word in argument.split()]
    for value in (*target.env.values(), *_in_words(words)):
        if not _PATH.fullmatch(value):
            yield value
            yield from _in_url(value)


def _in_words(words: Iterable[str]) -> Iterator[str]:
    """Yield what may be a credential: what a long option is given, and whatever is not a plain name."""
    for before, word in pairwise(("", *words)):
        if word.startswith("-"):
            yield word.partition("=")[2]
        elif before.startswith("--") or not _PLAIN_NAME.fullmatch(word):
            yield word


def _in_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # it is none
    if parts.scheme and parts.netloc:
        yield from (value for _, value in parse_qsl(parts.query))
        yield from (parts.username or "", parts.password or "")
