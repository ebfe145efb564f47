"""A client's requests that need the service and have no answer yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp.types import (
    INTERNAL_ERROR,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    TextContent,
)

CALL = "tools/call"


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request, and whether a service received it."""

    request: JSONRPCRequest
    is_sent: bool = False


class OpenRequests:
    """Requests by id, in their order of arrival; calls of `repeatable` tools can be repeated."""

    def __init__(self, repeatable: frozenset[str]) -> None:
        self._repeatable = repeatable
        self._by_id: dict[int | str, OpenRequest] = {}

    def add(self, request: JSONRPCRequest) -> OpenRequest:
        """Return the request as an open one."""
        added = self._by_id[request.id] = OpenRequest(request)
        return added

    def remove(self, request_id: object) -> OpenRequest | None:
        """Return the request of this id, which is answered or cancelled; None if there is none."""
        return self._by_id.pop(request_id, None) if isinstance(request_id, int | str) else None

    def waiting(self) -> list[OpenRequest]:
        """Return the requests that no service has received."""
        return [entry for entry in self._by_id.values() if not entry.is_sent]

    def is_waiting(self, entry: OpenRequest) -> bool:
        """Return whether this request is open and no service has received it."""
        return self._by_id.get(entry.request.id) is entry and not entry.is_sent

    def lost(self) -> Iterator[OpenRequest]:
        """Yield the requests whose service has ended: as waiting if they can be repeated, else as removed."""
        for entry in [entry for entry in self._by_id.values() if entry.is_sent]:
            entry.is_sent = not self._is_repeatable(entry.request)
            if entry.is_sent:
                self.remove(entry.request.id)
            yield entry

    def _is_repeatable(self, request: JSONRPCRequest) -> bool:
        return request.method != CALL or (request.params or {}).get("name") in self._repeatable


def error_answer(request: JSONRPCRequest, reason: str, *, is_modern: bool) -> JSONRPCResponse | JSONRPCError:
    """Return the reason as the result of a call, which a model reads, or as the error of another request."""
    if request.method != CALL:
        return JSONRPCError(jsonrpc="2.0", id=request.id, error=ErrorData(code=INTERNAL_ERROR, message=reason))
    result = CallToolResult(content=[TextContent(type="text", text=reason)], is_error=True)
    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not is_modern:
        dumped.pop("resultType", None)  # revisions with a handshake have no such field
    return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=dumped)
