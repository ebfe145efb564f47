"""Validation of arguments against a tool's input schema, before anything is sent.

The schema comes from a server and is not trusted: references outside it are not followed, its size is limited, and
its regular expressions have a limit on backtracking. Where a schema exceeds the limits or is broken, only the names
of required and unknown parameters are checked; the server validates in any case.

Frameworks fill in defaults and convert values in different ways. Such values are sent, and the server decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from jsonschema_rs import FancyRegexOptions, ValidationError, ValidationErrorKind, Validator, validator_for

from shared.catalog import ToolDefinition, object_of
from shared.errors import ArgumentsInvalid
from shared.quoting import encodable, quoted_name
from shared.text.tokens import json_text
from shared.validation import did_you_mean, nearest_names

# Values of a schema in which each reference is replaced by its target; the schemas of real tools have hundreds.
MAX_SCHEMA_VALUES = 5_000
MAX_DEPTH = 64
MAX_DEFINITION_CHARACTERS = 64 << 10
# Values of the schema times those of the arguments.
MAX_STEPS = 2_000_000
# Regular expressions read texts, so a text counts as a value for each of these many characters.
CHARACTERS_OF_A_VALUE = 64
MAX_ERRORS = 1_000
# Names that are compared, and names of the tool that they are compared with.
MAX_UNKNOWN, MAX_KNOWN = 8, 200
# Longer texts are not parsed.
MAX_TEXT_CHARACTERS = 10_000
_SHOWN_CHARACTERS = 200

# The engine runs plain expressions in linear time; only look-around and back-references need to backtrack.
_PATTERNS = FancyRegexOptions(backtrack_limit=1_000, size_limit=1 << 20, dfa_size_limit=1 << 20)

# With these, a reference can lead elsewhere than its JSON pointer does.
_RELOCATING = ("$id", "$schema", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")
# Where a schema has one of these, more arguments may be allowed than its properties.
_MORE_NAMES = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "not", "if")
# Each level of these may validate all levels below it again.
_REPEATING = ("unevaluatedProperties", "unevaluatedItems")

_BOOLEAN_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"])

Path = Sequence[str | int]


def check_arguments(definition: ToolDefinition, arguments: dict[str, Any]) -> None:
    """Return if the tool's server may accept these arguments by its input schema.

    Raises:
        ArgumentsInvalid: the server surely rejects them; the reason never repeats a value of the caller.
    """
    if len(definition.wire) > MAX_DEFINITION_CHARACTERS:
        return
    for schema, validator, values in _validators(definition.wire):
        if _has_more_values(arguments, MAX_STEPS // values):
            continue
        try:
            errors = list(islice(validator.iter_errors(arguments), MAX_ERRORS))
        except ValueError:  # a lone surrogate, which the validator cannot read
            continue
        if certain := [error for error in errors if not _may_be_accepted(error, schema)]:
            raise _invalid(_innermost(_best(certain), schema), schema)
        return


def named_arguments(definition: ToolDefinition) -> Mapping[str, Any] | None:
    """Return the arguments that the input schema names; None where it allows others too, or names none.

    Stricter than `check_arguments`: a schema that says nothing of further arguments allows none here.
    """
    declared = object_of(definition.as_object().get("inputSchema"))
    known = declared.get("properties")
    is_open = any(declared.get(key) not in (None, False) for key in _MORE_NAMES)
    # a tool that names no argument may take any
    if not isinstance(known, dict) or is_open or not (known or declared.get("additionalProperties") is False):
        return None
    return cast("dict[str, Any]", known)


def no_such_argument(name: str, known: Mapping[str, Any]) -> ArgumentsInvalid:
    """Return the error of an argument that is none of those the tool has."""
    return ArgumentsInvalid(_shown(quoted_name(name)), _no_parameter(name, known))


@lru_cache(maxsize=256)
def _validators(wire: str) -> tuple[tuple[dict[str, Any], Validator, int], ...]:
    """Return the schemas to try in this order, with their numbers of values: the whole one, and that of its names."""
    schema = ToolDefinition.from_wire(wire).as_object().get("inputSchema")
    if not isinstance(schema, dict):
        return ()
    whole = {key: value for key, value in cast("dict[str, Any]", schema).items() if key != "$id"}
    found: list[tuple[dict[str, Any], Validator, int]] = []
    for candidate in (whole, _of_names(whole)):
        values = _expanded_values(candidate)
        if values is None:
            continue
        try:
            validator = validator_for(candidate, validate_formats=False, pattern_options=_PATTERNS, offline=True)
        except ValueError:  # an invalid schema, an unknown dialect, or a reference to nothing
            continue
        found.append((candidate, validator, values))
    return tuple(found)


def _of_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that names required and allowed parameters."""
    properties = schema.get("properties")
    named: dict[str, Any] = {"properties": {}}
    if isinstance(properties, dict):
        for name, of_name in cast("dict[str, Any]", properties).items():
            named["properties"][name] = {"default": None} if _has_default(of_name) else {}
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            named["additionalProperties"] = False
    return named | {"required": schema["required"]} if "required" in schema else named


def _expanded_values(schema: dict[str, Any]) -> int | None:
    """Return the number of values of a schema whose references are replaced by their targets.

    Return None if it is too large, refers to itself, or refers to anything but a JSON pointer within it.
    """
    relocating = {*_RELOCATING, "id"} if "draft-04" in str(schema.get("$schema")) else _RELOCATING
    values = 0
    root = {key: value for key, value in schema.items() if key != "$schema"}
    left: list[tuple[object, int, frozenset[str]]] = [(root, 0, frozenset())]
    while left:
        value, depth, within = left.pop()
        values += 1
        if values > MAX_SCHEMA_VALUES or depth > MAX_DEPTH:
            return None
        if isinstance(value, list):
            left += [(inner, depth + 1, within) for inner in cast("list[object]", value)]
        elif isinstance(value, dict):
            keywords = cast("dict[str, object]", value)
            is_relocated = any(isinstance(keywords.get(key), str | bool) for key in relocating)
            if is_relocated or not keywords.keys().isdisjoint(_REPEATING):
                return None
            left += [(inner, depth + 1, within) for inner in keywords.values()]
            reference = keywords.get("$ref")
            if isinstance(reference, str):
                is_pointer = reference == "#" or (reference.startswith("#/") and "%" not in reference)
                if reference in within or not is_pointer:
                    return None
                parts = [part.replace("~1", "/").replace("~0", "~") for part in reference.split("/")[1:]]
                left.append((_at(root, parts), depth + 1, within | {reference}))
    return values


def _at(root: object, path: Path) -> object:
    """Return the value at this path, None if there is none."""
    value = root
    for part in path:
        try:
            if isinstance(value, list):
                value = cast("list[object]", value)[int(part)]
            else:
                value = cast("dict[str | int, object]", value)[part]
        except (LookupError, TypeError, ValueError):
            return None
    return value


def _has_more_values(arguments: dict[str, Any], most: int) -> bool:
    values, left = 0, list[Any]([arguments])
    while left and values <= most:
        value = left.pop()
        values += 1
        if isinstance(value, str):
            values += len(value) // CHARACTERS_OF_A_VALUE
        elif isinstance(value, list | dict):
            left += cast("Iterable[Any]", value)  # the names of an object, or the items of an array
            left += cast("dict[str, Any]", value).values() if isinstance(value, dict) else ()
    return values > most


def _may_be_accepted(error: ValidationError, schema: dict[str, Any]) -> bool:
    """Return whether a server may convert the value, or fill it in."""
    match error.kind:
        case ValidationErrorKind.Type(types=types):
            return _is_convertible(error.instance, types)
        case ValidationErrorKind.Enum(options=options):
            return _text(error.instance) in map(_text, options)
        case ValidationErrorKind.Constant(expected_value=expected):
            return _text(error.instance) == _text(expected)
        case ValidationErrorKind.Required(property=name):
            return _has_default(_properties(error, schema).get(name))
        case ValidationErrorKind.AnyOf(context=branches) | ValidationErrorKind.OneOfNotValid(context=branches):
            return any(all(_may_be_accepted(inner, schema) for inner in branch) for branch in branches)
        case ValidationErrorKind.BacktrackLimitExceeded() | ValidationErrorKind.RegexEngineFailure():
            return True
        case _:
            return False


def _properties(error: ValidationError, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of the nearest schema around the keyword of an error."""
    path = error.schema_path
    for end in reversed(range(len(path))):
        around = _at(schema, path[:end])
        if isinstance(around, dict) and isinstance(properties := cast("Any", around).get("properties"), dict):
            return cast("dict[str, Any]", properties)
    return {}


def _has_default(schema: object) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _is_convertible(value: object, types: Sequence[str]) -> bool:
    if isinstance(value, str):
        return any(_reads_as(value, name) for name in types)
    is_scalar_expected = not {"array", "object"}.issuperset(types)
    return value is None or (not isinstance(value, list | dict) and is_scalar_expected)


def _reads_as(text: str, name: str) -> bool:
    """Return whether a text reads as a value of this type."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return True
    match name:
        case "boolean":
            return text.strip().lower() in _BOOLEAN_WORDS
        case "integer" | "number":
            try:
                float(text)
            except ValueError:
                return False
            return True
        case "null":
            return text in ("", "null")
        case _:
            try:
                return isinstance(json.loads(text), list if name == "array" else dict)
            except (ValueError, RecursionError):
                return False


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _best(errors: Sequence[ValidationError]) -> ValidationError:
    """Return the error that is nearest to the root."""
    return min(errors, key=lambda error: len(error.instance_path))


def _innermost(error: ValidationError, schema: dict[str, Any]) -> ValidationError:
    """Return the error within the only branch of `anyOf` or `oneOf` that allows a value of this type."""
    match error.kind:
        case ValidationErrorKind.AnyOf(context=branches) | ValidationErrorKind.OneOfNotValid(context=branches):
            of_type = [branch for branch in branches if not any(_is_other_type(inner, error) for inner in branch)]
            if len(of_type) == 1:
                certain = [inner for inner in of_type[0] if not _may_be_accepted(inner, schema)]
                return _innermost(_best(certain), schema)
            return error
        case _:
            return error


def _is_other_type(inner: ValidationError, error: ValidationError) -> bool:
    """Return whether the branch of the inner error does not allow the type of the value."""
    is_of_type = isinstance(inner.kind, ValidationErrorKind.Type | ValidationErrorKind.FalseSchema)
    return is_of_type and inner.instance_path == error.instance_path


def _invalid(error: ValidationError, schema: dict[str, Any]) -> ArgumentsInvalid:
    """Return our error, with the path of the offending or missing value below `parameters`."""
    path = ["parameters", *(quoted_name(str(part)) for part in error.instance_path)]
    expected = _at(schema, error.schema_path)
    match error.kind:
        case ValidationErrorKind.Required(property=name):
            path.append(quoted_name(name))
            known = _properties(error, schema)
            given_names = cast("dict[str, Any]", error.instance)
            unknown = islice((given for given in given_names if given not in known), MAX_UNKNOWN)
            meant = next(
                (given for given in unknown if nearest_names(given, islice(known, MAX_KNOWN), 1) == [name]), None
            )
            instead = f"; you gave {_shown(quoted_name(meant))}: did you mean {quoted_name(name)}?" if meant else ""
            its_schema = f"; its schema: {_shown(json_text(known[name]))}" if known.get(name) else ""
            reason = f"is required{instead}{its_schema}"
        case ValidationErrorKind.AdditionalProperties(unexpected=unexpected):
            path += map(quoted_name, unexpected[:1])
            reason = _no_parameter(unexpected[0], _properties(error, schema))
        case ValidationErrorKind.Type() | ValidationErrorKind.Enum():
            values = cast("list[object]", expected) if isinstance(expected, list) else [expected]
            texts = (quoted_name(value) if isinstance(value, str) else json_text(value) for value in values)
            reason = f"expected {_shown(' or '.join(texts))}"
        case kind:
            reason = f"does not satisfy {kind.name} of the input schema: {_shown(json_text(expected))}"
    return ArgumentsInvalid(_shown(".".join(path)), reason)


def _no_parameter(name: str, known: Mapping[str, Any]) -> str:
    names = ", ".join(map(quoted_name, known)) or "none"
    meant = did_you_mean(name, islice(known, MAX_KNOWN))
    return f"is no parameter of this tool{meant}{' It' if meant else '; it'} has {_shown(names)}"


def _shown(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return encodable(shown)
