"""Results without the credentials of their server, which a server may repeat by mistake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from query.calling.upstream_request import ResultT

MASK = "***"


class CredentialMask:
    """Replaces the credentials of one server in its results; without credentials, a result costs nothing."""

    def __init__(self, credentials: Iterable[str]) -> None:
        """The longest credential comes first."""
        self._credentials = tuple(credentials)
        self._escaped = tuple(_json(credential)[1:-1] for credential in self._credentials)

    def masked(self, result: ResultT) -> ResultT:
        """Return the result with `***` in place of each credential in its texts, also those of structured content."""
        if not self._credentials:
            return result
        text = result.model_dump_json(by_alias=True, exclude_unset=True)
        if not any(escaped in text for escaped in self._escaped):
            return result
        return type(result).model_validate_json(_json(self._replaced(json.loads(text))))

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            for credential in self._credentials:
                value = value.replace(credential, MASK)
            return value
        if isinstance(value, list):
            return [self._replaced(item) for item in cast("Iterable[Any]", value)]
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value).items()
            return {self._replaced(key): self._replaced(item) for key, item in entries}
        return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
