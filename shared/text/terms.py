"""Words and terms of names and prose, in any script, for embedding and keyword search."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Protocol, cast

from py_rust_stemmers import SnowballStemmer  # type: ignore[import-untyped]  # a compiled module without stubs

# Longer texts do not improve search, and cost time.
MAX_CHARACTERS = 20_000
# Words repeat; their terms are cached, except those of longer words.
CACHED_RUNS, CACHED_CHARACTERS = 50_000, 64

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be been being but by can could did do does doing for from get got
    had has have having he help her here hers hey him his how i if in into is it its just let lets like me mine more
    most my need needs no not of off on once only or other our ours out over own please s same she should so some such
    t than that the their theirs them then there these they this those to too up us use using very want wants was we
    were what when where which while who whom whose why will with would you your yours
    """.split()  # noqa: SIM905  # a list of literals is hard to read
)

_CAMEL_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[\W_]+")
# Scripts that put no space between words: kana, Chinese characters, Hangul, Thai, Lao, Khmer, Myanmar.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
# Vowel signs and accents that follow their letter and that \w leaves out.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0980-\u0983\u09bc-\u09cd\u0b80-\u0bcd"
_RUN = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{_MARKS}])*")
_UNSPACED_START = re.compile(f"[{_UNSPACED}]")
_PART_EDGE = re.compile(rf"{_CAMEL_EDGE.pattern}|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


class _Stemmer(Protocol):
    def stem_word(self, word: str, /) -> str: ...


def _stemmer(language: str) -> _Stemmer:
    return cast("_Stemmer", SnowballStemmer(language))


_ENGLISH, _RUSSIAN = _stemmer("english"), _stemmer("russian")


def words(identifier: str) -> str:
    """Return an identifier's words: `getHTTPStatus_code` gives `get HTTP Status code`."""
    spaced = _CAMEL_EDGE.sub(" ", identifier)
    return " ".join(part for part in _SEPARATOR.split(spaced) if part)


def name_terms(name: str) -> list[str]:
    """Return the terms of an identifier: `getUser` gives those of `getUser`, `get` and `user`.

    The whole name is a term too, because prose writes a name such as GitHub as one word.
    """
    return [term for run in _runs(name) for term in _terms(run, is_prose=False)]


def prose_terms(text: str) -> list[str]:
    """Return the terms of a description or a query, in order, without stop words.

    A capitalised word stays whole, since it is a name (GitHub is not git); other identifiers are split.
    """
    return [term for run in _runs(text) for term in _terms(run, is_prose=True)]


def _runs(text: str) -> list[str]:
    return _RUN.findall(unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]))


def _terms(run: str, *, is_prose: bool) -> tuple[str, ...]:
    return (_cached_terms if len(run) <= CACHED_CHARACTERS else _terms_of)(run, is_prose)


def _terms_of(run: str, is_prose: bool) -> tuple[str, ...]:
    tokens = (token.lower() for token in _whole_and_parts(run, is_prose=is_prose))
    return tuple(_stem(token) for token in tokens if token not in STOP_WORDS)


_cached_terms = lru_cache(CACHED_RUNS)(_terms_of)


def _whole_and_parts(run: str, *, is_prose: bool) -> list[str]:
    if _UNSPACED_START.match(run):
        return _bigrams(run)
    parts = _PART_EDGE.split(run)
    if len(parts) == 1 or (is_prose and run[0].isupper()):
        return [run]
    return [run, *parts]


def _bigrams(run: str) -> list[str]:
    """Return overlapping pairs of characters, which match words of unspaced scripts; a single character is a term."""
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def _stem(token: str) -> str:
    if token.isascii():
        return _ENGLISH.stem_word(token)
    return _RUSSIAN.stem_word(token) if "\u0400" <= token[0] <= "\u04ff" else token
