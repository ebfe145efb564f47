"""Validation of arguments against a tool's input schema, before anything is sent.

The schema comes from a server and is not trusted: references outside it are not followed, and steps and time are
bounded. A schema that is large, broken or too slow gives no verdict; the server validates in any case.
Values that a server may convert or fill in are left to it.
Regular expressions are not evaluated: one can run for years, and its dialect is not Python's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import (
    SchemaError,
    UnknownType,
    ValidationError,
    best_match,  # pyright: ignore[reportUnknownVariableType]  # typed in part
)
from jsonschema.protocols import Validator
from jsonschema.validators import (
    extend,  # pyright: ignore[reportUnknownVariableType]  # typed in part
    validator_for,
)
from referencing import Registry
from referencing.exceptions import Unresolvable

from query.calling.conversion import may_be_accepted, missing
from shared.catalog import ToolDefinition
from shared.errors import ArgumentsInvalid
from shared.quoting import encodable, quoted_name
from shared.text.tokens import json_text

MAX_STEPS = 100_000
# Keywords within keywords; the library's Rust parts panic where Python's recursion ends.
MAX_DEPTH = 64
# Processor time of this thread; real schemas take a hundredth of it.
MAX_SECONDS = 0.05
# Checking a schema of this many values against its dialect takes about 0.1 s, once.
MAX_SCHEMA_VALUES = 1_000
MAX_DEFINITION_CHARACTERS = 64 << 10
# Comparing all pairs grows with the square of their number.
MAX_UNIQUE_ITEMS = 1_000
_SHOWN_CHARACTERS = 200

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_steps_left: ContextVar[int] = ContextVar("steps_left")
_depth: ContextVar[int] = ContextVar("depth", default=0)
_ends_at_s: ContextVar[float] = ContextVar("ends_at_s")


class _TooCostly(Exception):
    """A verdict would take too long."""


def check_arguments(definition: ToolDefinition, arguments: dict[str, Any]) -> None:
    """Return if the tool's server may accept these arguments by its input schema.

    Raises:
        ArgumentsInvalid: the server surely rejects them; the reason never repeats a value of the caller.
    """
    validator = _validator(definition.wire) if len(definition.wire) <= MAX_DEFINITION_CHARACTERS else None
    if validator is None:
        return
    _steps_left.set(MAX_STEPS)
    _depth.set(0)
    _ends_at_s.set(time.thread_time() + MAX_SECONDS)
    try:
        error = cast("ValidationError | None", best_match(_certain(validator.iter_errors(arguments))))
        # an unchecked dialect may give a keyword another type: `required` of draft 3 is a boolean
        problem = None if error is None else ArgumentsInvalid(_field(error), _reason(error))
    except _UNCHECKABLE:
        return
    if problem is not None:
        raise problem


def _certain(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Yield the errors of values that no server accepts."""
    for error in errors:
        _count_step()
        if not may_be_accepted(error):
            yield error


# Errors of hostile or broken schemas; the last ones come from keywords of unexpected types in unchecked dialects.
_UNCHECKABLE = (
    _TooCostly,
    SchemaError,
    UnknownType,
    Unresolvable,
    RecursionError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    ArithmeticError,
)


@lru_cache(maxsize=256)
def _validator(wire: str) -> Validator | None:
    """Return the validator of this schema, None if it gives no verdict."""
    schema = ToolDefinition.from_wire(wire).as_object().get("inputSchema", {})
    try:
        return _checked(schema) if _is_simple(schema) else None
    except _UNCHECKABLE:
        return None


def _checked(schema: Any) -> Validator:
    dialect: Any = _bounded(validator_for(schema, default=Draft202012Validator))
    dialect.check_schema(schema, format_checker=FormatChecker(()))  # would compile every regular expression
    if isinstance(schema, dict):
        # at a reference to the root, the library would switch to its own, unbounded dialect
        schema = {key: value for key, value in cast("dict[str, Any]", schema).items() if key != "$schema"}
    nothing_is_fetched: Registry[Any] = Registry()
    return cast("Validator", dialect(schema, registry=nothing_is_fetched))


def _is_simple(schema: Any) -> bool:
    """Return whether a schema is small, of one dialect, and refers only by JSON pointers."""
    left, values = [(schema, 0)], 0
    while left:
        value, depth = left.pop()
        values += 1
        if values > MAX_SCHEMA_VALUES or (isinstance(value, dict) and not _is_plain(cast("Any", value), depth)):
            return False
        left += [(inner, depth + 1) for inner in _inner(value)]
    return True


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, list) else ()


def _is_plain(schema: dict[str, Any], depth: int) -> bool:
    reference = schema.get("$ref", "#")
    refers_within = not isinstance(reference, str) or reference == "#" or reference.startswith("#/")
    changes_dialect = depth > 0 and isinstance(schema.get("$schema"), str)
    return refers_within and not changes_dialect and schema.keys().isdisjoint(("$dynamicRef", "$recursiveRef"))


@cache
def _bounded(dialect: type[Validator]) -> type[Validator]:
    """Return the dialect with its steps counted, without the keywords that cannot be bounded."""
    keywords: dict[str, Keyword] = {
        **dict(dialect.VALIDATORS),
        "pattern": _no_verdict,
        "patternProperties": _no_verdict,
        "unevaluatedProperties": _no_verdict,
        "unevaluatedItems": _no_verdict,
        "additionalProperties": _unless_by_pattern(dialect.VALIDATORS["additionalProperties"]),
        "uniqueItems": _unless_many(dialect.VALIDATORS["uniqueItems"]),
    }
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    bounded = cast("Any", extend(dialect, counted))  # type: ignore[no-untyped-call]  # as the library is
    # a schema without keywords also takes time for each element
    bounded.descend, bounded.iter_errors = _counting_steps(bounded.descend), _counting_steps(bounded.iter_errors)
    return cast("type[Validator]", bounded)


def _counting_steps(method: Callable[..., Iterator[ValidationError]]) -> Callable[..., Iterator[ValidationError]]:
    def spending(*args: Any, **kwargs: Any) -> Iterator[ValidationError]:
        _count_step()
        return method(*args, **kwargs)

    return spending


def _count_step() -> None:
    left = _steps_left.get() - 1
    if left < 0 or time.thread_time() > _ends_at_s.get():
        raise _TooCostly
    _steps_left.set(left)


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _count_step()
        depth = _depth.get() + 1
        if depth > MAX_DEPTH:
            raise _TooCostly
        _depth.set(depth)
        try:
            yield from keyword(validator, value, instance, schema) or ()
        finally:
            _depth.set(depth - 1)

    return counted


def _no_verdict(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> None:
    return None


def _unless_by_pattern(keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        return None if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return checked


def _unless_many(keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        many = validator.is_type(instance, "array") and len(instance) > MAX_UNIQUE_ITEMS
        return None if many else keyword(validator, value, instance, schema)

    return checked


def _field(error: Any) -> str:
    """Return the path of the offending or missing value below `parameters`."""
    path = ["parameters", *(quoted_name(str(part)) for part in error.absolute_path)]
    if error.validator == "required":
        path += map(quoted_name, missing(error)[:1])
    elif error.validator == "additionalProperties":
        path += map(quoted_name, _unknown(error)[:1])
    return _shown(".".join(path))


def _reason(error: Any) -> str:
    match error.validator:
        case "required":
            expected = [error.schema.get("properties", {}).get(name) for name in missing(error)][:1]
            return f"is required; its schema: {_shown(json_text(*expected))}" if any(expected) else "is required"
        case "additionalProperties":
            known = ", ".join(map(quoted_name, error.schema.get("properties", ()))) or "none"
            return f"is no parameter of this tool; it has {_shown(known)}"
        case "type":
            return f"expected {_one_of(error.validator_value)}"
        case "enum":
            return f"expected {_one_of(error.validator_value)}"
        case _:
            return f"does not satisfy {error.validator} of the input schema: {_shown(json_text(error.validator_value))}"


def _unknown(error: Any) -> list[str]:
    return [str(name) for name in error.instance if name not in error.schema.get("properties", {})]


def _one_of(expected: list[Any] | str) -> str:
    values = [expected] if isinstance(expected, str) else expected
    return _shown(" or ".join(quoted_name(value) if isinstance(value, str) else json_text(value) for value in values))


def _shown(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return encodable(shown)
