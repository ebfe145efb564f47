from __future__ import annotations

from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCResponse

from shared.upstream.masking import Mask

SECRET = 'sk-"quoted"-12345'


def response(**fields: Any) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result=fields)


def masked(message: JSONRPCResponse, credential: str | None = SECRET) -> JSONRPCResponse:
    return anyio.run(Mask([credential] if credential else []).message, message)


def test_a_number_that_looks_like_a_credential_stays_a_number() -> None:
    numbered = response(id=12345678, text="12345678")

    assert masked(numbered, "12345678").result == {"id": 12345678, "text": "***"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_everything_but_the_credential_stays(content: dict[str, Any]) -> None:
    marked = response(text=SECRET, structuredContent=content)

    assert masked(marked).result == {"text": "***", "structuredContent": content}
