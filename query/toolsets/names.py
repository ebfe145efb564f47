"""The names of a toolset's tools in `tools/list`: each belongs to one tool of one server, whatever else is listed."""

from __future__ import annotations

import hashlib
import re

# The longest function name that every client's model interface accepts.
MAX_CHARACTERS = 64
SEPARATOR = "__"
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]+")
_REFUSED = re.compile(r"[^A-Za-z0-9-]+")
# 64 bits, so that a server cannot search for a name with the hash of another tool's.
_HASH = 16


def direct_name(server_id: str, tool_name: str) -> str:
    """Return `server__tool`, or `server_tool_hash` where this is too long, ambiguous or has other characters.

    The name has at most 64 letters, digits, `_` and `-`. It depends on this tool alone, and no other tool has it.
    """
    joined = f"{server_id}{SEPARATOR}{tool_name}"
    fits = len(joined) <= MAX_CHARACTERS and _ACCEPTED.fullmatch(joined)
    # the first separator ends the server, so a server with a separator of its own has the other form
    return joined if fits and joined.index(SEPARATOR) == len(server_id) else _hashed(server_id, tool_name)


def _hashed(server_id: str, tool_name: str) -> str:
    """Return a name without a separator, which the other form always has."""
    digest = hashlib.sha256(f"{server_id}:{tool_name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    readable = _REFUSED.sub("_", f"{server_id}_{tool_name}")
    return f"{readable[: MAX_CHARACTERS - _HASH - 1].strip('_')}_{digest}"
