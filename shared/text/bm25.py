"""BM25 as sparse vectors of tools and queries, and the terms of names and prose, in any script.

The dot product of both vectors, with Qdrant's IDF, is the score.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009. Fields are weighted within
the term frequency, before saturation, as in BM25F of the same paper.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol, cast

from py_rust_stemmers import SnowballStemmer  # type: ignore[import-untyped]  # a compiled module without stubs

from shared.catalog import SparseVector, ToolDefinition

SERVER_WEIGHT = 1.0
NAME_WEIGHT = 2.0
DESCRIPTION_WEIGHT = 1.0
PARAMETER_WEIGHT = 0.5

K1 = 1.2
B = 0.75
# Weighted terms of a tool of usual length. A constant, because a stored vector cannot follow an average.
# Its value hardly changes the recall (20 to 100 measured).
AVERAGE_LENGTH = 40.0

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


def tool_terms(tool: ToolDefinition, declared_name: str) -> SparseVector:
    """Return the weights of a tool's terms without IDF, which the index applies to a query."""
    frequencies: defaultdict[str, float] = defaultdict(float)
    _add(frequencies, name_terms(declared_name), SERVER_WEIGHT)
    _add(frequencies, name_terms(tool.name), NAME_WEIGHT)
    _add(frequencies, prose_terms(tool.description), DESCRIPTION_WEIGHT)
    _add(frequencies, (term for parameter in tool.parameters for term in name_terms(parameter)), PARAMETER_WEIGHT)
    length = sum(frequencies.values())
    norm = K1 * (1 - B + B * length / AVERAGE_LENGTH)
    return _sparse({term: frequency * (K1 + 1) / (frequency + norm) for term, frequency in frequencies.items()})


def query_terms(text: str) -> SparseVector:
    """Return weight 1 for each distinct term of a query; empty if it has only stop words."""
    return _sparse(dict.fromkeys(prose_terms(text), 1.0))


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


def _add(frequencies: defaultdict[str, float], terms: Iterable[str], weight: float) -> None:
    for term in terms:
        frequencies[term] += weight


def _sparse(weights: Mapping[str, float]) -> SparseVector:
    """Return weights by a 32-bit hash. Terms with the same hash count as one; 50,000 terms may have one such pair."""
    hashed: dict[int, float] = {}
    for term, weight in weights.items():
        hashed[zlib.crc32(term.encode("utf-8", "surrogatepass"))] = weight
    indices = tuple(sorted(hashed))
    return SparseVector(indices, tuple(map(hashed.__getitem__, indices)))


def _runs(text: str) -> list[str]:
    return _RUN.findall(unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]))


def _terms(run: str, *, is_prose: bool) -> tuple[str, ...]:
    return (_cached_terms if len(run) <= CACHED_CHARACTERS else _terms_of)(run, is_prose)


def _terms_of(run: str, is_prose: bool) -> tuple[str, ...]:
    if _UNSPACED_START.match(run):
        # overlapping pairs of characters match words of unspaced scripts; a single character is a term
        tokens = [run[at : at + 2] for at in range(len(run) - 1)] or [run]
    else:
        parts = _PART_EDGE.split(run)
        tokens = [run] if len(parts) == 1 or (is_prose and run[0].isupper()) else [run, *parts]
    return tuple(_stem(token) for token in map(str.lower, tokens) if token not in STOP_WORDS)


_cached_terms = lru_cache(CACHED_RUNS)(_terms_of)


def _stem(token: str) -> str:
    if token.isascii():
        return _ENGLISH.stem_word(token)
    return _RUSSIAN.stem_word(token) if "\u0400" <= token[0] <= "\u04ff" else token
