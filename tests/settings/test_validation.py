"""Reasons of invalid values are in plain words, never in those of pydantic."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, Field, HttpUrl, Json, TypeAdapter, ValidationError

from shared.errors import ConfigInvalid
from shared.settings import load_settings
from shared.upstream.mcp_json import Entry
from shared.validation import first_problem


class Colour(StrEnum):
    RED = "red"


def reject(_value: object) -> object:
    raise ValueError("expected something else")


REASONS: list[tuple[Any, object, str]] = [
    (tuple[str, ...], "text", "expected a list"),
    (list[str], {}, "expected a list"),
    (dict[str, str], [], "expected an object"),
    (str, 1, "expected a string"),
    (bool, "perhaps", "expected true or false"),
    (int, "many", "expected a whole number"),
    (int, 1.5, "expected a whole number"),
    (float, "many", "expected a number"),
    (Annotated[int, Field(ge=1)], 0, "expected 1 or more"),
    (Annotated[int, Field(le=9)], 10, "expected 9 or less"),
    (Annotated[float, Field(gt=0)], 0, "expected more than 0.0"),
    (Annotated[list[str], Field(min_length=2)], [], "expected 2 or more elements"),
    (Annotated[str, Field(max_length=2)], "abc", "expected 2 or fewer characters"),
    (Annotated[str, Field(pattern="^a$")], "b", "expected a string that matches ^a$"),
    (Literal["a", "b"], "c", "expected 'a' or 'b'"),
    (Colour, "blue", "expected 'red'"),
    (AwareDatetime, datetime(2026, 1, 1), "expected a time with a time zone"),
    (HttpUrl, "ftp://h", "expected a URL with 'http' or 'https'"),
    (Json[int], "{", "expected JSON"),
    (Annotated[object, AfterValidator(reject)], 1, "expected something else"),
    (bytes, 1, "expected another value (bytes type)"),
]


@pytest.mark.parametrize(("kind", "value", "reason"), REASONS)
def test_the_reason_states_the_expectation(kind: Any, value: object, reason: str) -> None:
    with pytest.raises(ValidationError) as invalid:
        TypeAdapter(kind).validate_python(value)

    assert first_problem(invalid.value) == reason


@given(
    st.dictionaries(
        st.sampled_from(sorted(Entry.model_fields)),
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    )
)  # fmt: skip
def test_no_invalid_entry_has_a_sentence_of_pydantic(raw: dict[str, object]) -> None:
    try:
        Entry.model_validate(raw)
    except ValidationError as error:
        reason = first_problem(error)
        assert "expected" in reason or "unknown" in reason
        assert "Input" not in reason


def test_each_invalid_setting_is_named_with_its_expectation() -> None:
    with pytest.raises(ConfigInvalid) as invalid:
        load_settings(port=99_999, subscribe="all of them")

    assert "setting port (TOOLSCALE_PORT): expected 65535 or less" in str(invalid.value)
    assert "setting subscribe (TOOLSCALE_SUBSCRIBE): expected 'http', 'all' or 'none'" in str(invalid.value)
