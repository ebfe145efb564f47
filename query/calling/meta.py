"""What of a call's `_meta` goes on to the tool's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_types import RequestParamsMeta

# Progress has a token of its own on each side, as the SDK keeps it and as it is sent.
_OF_THIS_CONNECTION = frozenset({"progress_token", "progressToken"})
_PROTOCOL = frozenset({"modelcontextprotocol", "mcp"})


def forwarded(meta: Mapping[str, Any] | None) -> RequestParamsMeta:
    """Return trace context, baggage and keys of vendors, as the caller gave them.

    Left out is what is between the caller and us: the progress token, and the protocol's own keys.
    """
    kept = {
        key: value
        for key, value in (meta or {}).items()
        if key not in _OF_THIS_CONNECTION and not _is_of_the_protocol(key)
    }
    return cast("RequestParamsMeta", kept)


def _is_of_the_protocol(key: str) -> bool:
    """Return whether the key's prefix is reserved: its second label is the protocol's name."""
    prefix, slash, _ = key.rpartition("/")
    return bool(slash) and not _PROTOCOL.isdisjoint(prefix.split(".")[1:2])
