"""The credentials of a target, which messages about the server must not contain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urlsplit

from shared.upstream.dial import HttpTarget, StdioTarget, Target

SHORTEST = 8
"""Minimum characters of a credential; hiding shorter values would make messages unreadable."""

_CREDENTIAL_NAME = re.compile(
    r"key(?!w|b)|token(?!i)|secret|passw|pwd|auth(?!or(?!i))|credential|cookie", re.IGNORECASE
)
_PATH = re.compile(r"(~|\.{1,2})?/[^\s:]*")
_PLAIN_NAME = re.compile(r"@?[a-z]+([-_./@][a-z]+)*")


def secrets_of(target: Target) -> tuple[str, ...]:
    """Return the credentials among the target's headers, variables, arguments and URLs, the longest first."""
    values = _in_http(target) if isinstance(target, HttpTarget) else _in_stdio(target)
    parts = {part for value in values for part in (value, value.rpartition(" ")[2])}  # with and without `Bearer`
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True))


def credentials_of(target: Target) -> tuple[str, ...]:
    """Return the values that are credentials by the name of their header, variable, option or parameter.

    Unlike `secrets_of`, it leaves out values that may be ordinary data, such as the name of a database.
    """
    named = _named_in_http(target) if isinstance(target, HttpTarget) else _named_in_stdio(target)
    values = [value for name, value in named if _CREDENTIAL_NAME.search(name)]
    parts = {part for value in values for part in (value, value.rpartition(" ")[2])}  # with and without `Bearer`
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True))


def _named_in_http(target: HttpTarget) -> Iterator[tuple[str, str]]:
    yield from target.headers.items()
    yield from _named_in_url(target.url)


def _named_in_stdio(target: StdioTarget) -> Iterator[tuple[str, str]]:
    yield from target.env.items()
    for before, argument in pairwise(("", *target.args)):
        name, equals, value = argument.partition("=")
        is_option = before.startswith("-") and "=" not in before
        yield (name, value) if equals else (before if is_option else "", argument)
    for text in (*target.env.values(), *target.args):
        yield from _named_in_url(text)


def _named_in_url(text: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # not a URL
    if parts.scheme and parts.netloc:
        yield from parse_qsl(parts.query)
        yield "password", unquote(parts.password or "")


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
    """Yield possible credentials: the values of long options, and words that are not plain names."""
    for before, word in pairwise(("", *words)):
        if word.startswith("-"):
            yield word.partition("=")[2]
        elif before.startswith("--") or not _PLAIN_NAME.fullmatch(word):
            yield word


def _in_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return  # not a URL
    if parts.scheme and parts.netloc:
        yield from (value for _, value in parse_qsl(parts.query))
        yield from (parts.username or "", parts.password or "")
