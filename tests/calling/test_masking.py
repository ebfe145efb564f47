from __future__ import annotations

from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, JSONRPCResponse

from shared.upstream.masking import Mask

SECRET = 'sk-"quoted"-12345'


def response(**fields: Any) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result=fields)


def masked(message: JSONRPCResponse, credential: str | None = SECRET) -> JSONRPCResponse:
    return anyio.run(Mask([credential] if credential else []).message, message)


def test_a_credential_is_masked_in_texts_structured_content_keys_and_metadata() -> None:
    echoed = response(
        content=[
            {"type": "text", "text": f"a {SECRET} b {SECRET}"},
            {"type": "resource", "resource": {"uri": "file:///env", "text": f"KEY={SECRET}"}},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        ],
        structuredContent={"headers": [{SECRET: SECRET}], "count": 1, "exact": 1.5, "none": None},
        isError=True,
        _meta={"example.org/header": SECRET},
    )

    shown = masked(echoed)

    assert SECRET.replace('"', '\\"') not in shown.model_dump_json(by_alias=True)
    result = CallToolResult.model_validate(shown.result)
    assert result.structured_content == {"headers": [{"***": "***"}], "count": 1, "exact": 1.5, "none": None}
    assert result.content[0].text == "a *** b ***"  # type: ignore[union-attr]
    assert result.is_error


def test_a_number_that_looks_like_a_credential_stays_a_number() -> None:
    numbered = response(id=12345678, text="12345678")

    assert masked(numbered, "12345678").result == {"id": 12345678, "text": "***"}


def test_a_message_without_a_credential_is_the_same_object() -> None:
    plain = response(content=[{"type": "text", "text": "fine"}])

    assert masked(plain) is plain
    assert masked(plain, None) is plain


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_everything_but_the_credential_stays(content: dict[str, Any]) -> None:
    marked = response(text=SECRET, structuredContent=content)

    assert masked(marked).result == {"text": "***", "structuredContent": content}
