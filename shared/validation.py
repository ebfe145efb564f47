"""Values of settings, files and events, and the reasons why they are invalid: without the value, perhaps a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from shared.quoting import quoted_name

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# A single letter is near to everything; comparing takes time that grows with the square of the lengths.
_SHORTEST, _LONGEST_NAME = 2, 60
# Two names with this ratio of equal letters are similar, 0 to 1 (`difflib`).
SIMILAR = 0.6

_EXPECTED: Mapping[tuple[str, ...], str] = {
    ("missing", "missing_argument", "missing_keyword_only_argument"): "missing",
    ("extra_forbidden", "unexpected_keyword_argument"): "unknown; check its spelling",
    ("string_type", "string_sub_type", "string_unicode"): "expected a string",
    ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"): "expected a list",
    ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"): "expected an object",
    ("bool_type", "bool_parsing"): "expected true or false",
    ("int_type", "int_parsing", "int_parsing_size", "int_from_float"): "expected a whole number",
    ("float_type", "float_parsing", "finite_number"): "expected a number",
    ("greater_than",): "expected more than {gt}",
    ("greater_than_equal",): "expected {ge} or more",
    ("less_than",): "expected less than {lt}",
    ("less_than_equal",): "expected {le} or less",
    ("too_short",): "expected {min_length} or more elements",
    ("too_long",): "expected {max_length} or fewer elements",
    ("string_too_short",): "expected {min_length} or more characters",
    ("string_too_long",): "expected {max_length} or fewer characters",
    ("string_pattern_mismatch",): "expected a string that matches {pattern}",
    ("literal_error", "enum"): "expected {expected}",
    ("union_tag_invalid",): "expected {expected_tags}",
    ("union_tag_not_found",): "{discriminator} is missing",
    ("json_invalid", "json_type"): "expected JSON",
    ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid"): "expected a time",
    ("timezone_aware",): "expected a time with a time zone",
    ("url_type", "url_parsing", "url_syntax_violation"): "expected a URL",
    ("url_scheme",): "expected a URL with {expected_schemes}",
    ("value_error", "assertion_error"): "{error}",
}
_EXPECTED_BY_TYPE = {name: text for names, text in _EXPECTED.items() for name in names}


def first_problem(
    error: ValidationError, otherwise: str = "", written: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return `field: reason` with the dotted path of the first invalid field; `otherwise` names the whole value.

    `written` are the keys that a file has for fields, where they differ.
    """
    (*path,), reason = first_invalid(error)
    path[:1] = [written.get(str(part), part) for part in path[:1]]
    return ": ".join(filter(None, (".".join(quoted_name(str(part)) for part in path) or otherwise, reason)))


def first_invalid_argument(error: ValidationError) -> str:
    """Return `argument: reason` for the first invalid argument, without the path inside its value.

    Of an argument that may be a text or a list, the reason is that of the form it has.
    """
    path, reason = first_invalid(error)
    same = (problem for problem in _problems(error) if problem["loc"][:1] == path[:1])
    reasons = (_reason(problem) for problem in same if problem["type"] not in _OTHER_FORM)
    return f"{path[0]}: {next(reasons, reason)}" if path else reason


def first_invalid(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return the path of the first invalid field, empty for the whole value, and the reason."""
    return all_invalid(error)[0]


def all_invalid(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Return the path of each invalid field, empty for the whole value, and the reason."""
    return [(problem["loc"], _reason(problem)) for problem in _problems(error)]


def checked_url(url: str, *schemes: str) -> SplitResult:
    """Return the parts of an absolute URL with one of these schemes.

    Raises:
        ValueError: it is none; unlike those of `urlsplit`, the reasons quote nothing of it.
    """
    wanted = " or ".join(f"{scheme}://" for scheme in schemes)
    if not url.isprintable() or " " in url:
        raise ValueError("expected a URL without blanks, line ends and invisible characters")
    if not url.lower().startswith(tuple(f"{scheme}://" for scheme in schemes)):
        quotes = ", without quotation marks" if url[:1] in ("'", '"') else ""
        raise ValueError(f"expected a URL that begins with {wanted}{quotes}")
    refused = ValueError(f"expected HOST or HOST:PORT after {wanted}; {ENCODE}")
    try:
        parts = urlsplit(url)
        is_placed = parts.port is None or bool(parts.hostname)
    except ValueError:
        raise refused from None
    if not is_placed or _NOT_ENCODED.search(parts.netloc):
        raise refused
    return parts


ENCODE = (
    "percent-encode user and password: %2F for `/`, %3F for `?`, %23 for `#`, %25 for `%`, %5B for `[`, %40 for `@`"
)
"""The repair of a URL whose password ends it early."""
_NOT_ENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})")


def nearest_names(name: str, known: Iterable[str], most: int = 3, cutoff: float = SIMILAR) -> list[str]:
    """Return the known names that were probably meant, the nearest first: similar ones, abbreviations, or parts."""
    by_plain = {_plain(each): each for each in known}
    given = _plain(name)
    related = [each for each in by_plain if _abbreviates(given, each) or _abbreviates(each, given)]
    similar = get_close_matches(given, by_plain, n=most, cutoff=cutoff)
    found = dict.fromkeys([*similar, *get_close_matches(given, related, n=most, cutoff=0)])
    return [by_plain[each] for each in islice(found, most)]


def did_you_mean(name: str, known: Iterable[str], cutoff: float = SIMILAR) -> str:
    """Return a question for the nearest known name, to follow on an error; "" without any."""
    nearest = nearest_names(name, known, 1, cutoff)
    return f"; did you mean {quoted_name(nearest[0])}?" if nearest else ""


def _plain(name: str) -> str:
    return name[:_LONGEST_NAME].replace("_", "").replace("-", "").lower()


def _abbreviates(short: str, name: str) -> bool:
    """Return whether a name is the end of another, or has its first letter and further ones in their order."""
    if len(short) < _SHORTEST or len(short) >= len(name):
        return False
    letters = iter(name)
    return name.endswith(short) or (name[0] == short[0] and all(letter in letters for letter in short))


_OTHER_FORM = ("string_type", "list_type")


def _problems(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _reason(problem: ErrorDetails) -> str:
    """Return the expectation in the words of JSON: a Python type is no help to the author of a file."""
    expected = _EXPECTED_BY_TYPE.get(problem["type"], "expected another value ({type})")
    return expected.format(**problem.get("ctx", {}) | {"type": problem["type"].replace("_", " ")})
