from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult

from query.calling.masking import CredentialMask

SECRET = 'sk-"quoted"-12345'


def result(**fields: Any) -> CallToolResult:
    return CallToolResult.model_validate(fields)


def test_a_credential_is_masked_in_texts_structured_content_keys_and_metadata() -> None:
    echoed = result(
        content=[
            {"type": "text", "text": f"a {SECRET} b {SECRET}"},
            {"type": "resource", "resource": {"uri": "file:///env", "text": f"KEY={SECRET}"}},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        ],
        structuredContent={"headers": [{SECRET: SECRET}], "count": 1, "exact": 1.5, "none": None},
        isError=True,
        _meta={"example.org/header": SECRET},
    )

    masked = CredentialMask([SECRET]).masked(echoed)

    assert SECRET.replace('"', '\\"') not in masked.model_dump_json(by_alias=True)
    assert masked.structured_content == {"headers": [{"***": "***"}], "count": 1, "exact": 1.5, "none": None}
    assert masked.content[0].text == "a *** b ***"  # type: ignore[union-attr]
    assert masked.is_error


def test_a_number_that_looks_like_a_credential_stays_a_number() -> None:
    numbered = result(content=[], structuredContent={"id": 12345678, "text": "12345678"})

    assert CredentialMask(["12345678"]).masked(numbered).structured_content == {"id": 12345678, "text": "***"}


def test_a_result_without_a_credential_is_the_same_object() -> None:
    plain = result(content=[{"type": "text", "text": "fine"}])

    assert CredentialMask([SECRET]).masked(plain) is plain
    assert CredentialMask([]).masked(plain) is plain


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), VALUES))
def test_everything_but_the_credential_stays(content: dict[str, Any]) -> None:
    marked = result(content=[{"type": "text", "text": SECRET}], structuredContent=content)

    assert CredentialMask([SECRET]).masked(marked).structured_content == content
