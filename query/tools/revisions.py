"""Results of servers in the form that a revision of the protocol allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog
from mcp.types import (
    SERVER_INFO_META_KEY,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, is_version_at_least

from shared.quoting import quoted_name
from shared.text.invisible import marked

AUDIO_SINCE = "2025-03-26"
RESOURCE_LINKS_SINCE = "2025-06-18"
# A server may not write the keys of Toolscale.
_OUR_PREFIX = "dev.toolscale/"
SERVER_KEY = f"{_OUR_PREFIX}server"
WARNINGS_KEY = f"{_OUR_PREFIX}warnings"
INVISIBLE = "This result had invisible characters; each run of them is shown as \ufffd."

_log = structlog.get_logger()


def for_protocol(result: CallToolResult, protocol_version: str, server_id: str) -> CallToolResult:
    """Return a server's result for a client of this revision, with a text for each content that it cannot read.

    Its invisible characters are marked. Its `_meta` names the server, and warns of the marks.
    """
    shown = marked(result)
    ours: dict[str, Any] = {SERVER_KEY: server_id}
    if shown is not result:
        _log.warning("invisible_result", server=server_id)
        ours[WARNINGS_KEY] = [INVISIBLE]
    content = [_readable(_without_our_keys(block), protocol_version) for block in shown.content]
    update: dict[str, Any] = {"meta": {**foreign_meta(shown.meta), **ours}, "content": content}
    structured = shown.structured_content
    if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and not isinstance(structured, dict | None):
        # these revisions allow only objects as structured content; the text repeats it
        update |= {
            "structured_content": None,
            "content": content or [_text(json.dumps(structured, ensure_ascii=False))],
        }
    return shown.model_copy(update=update)


def _without_our_keys(block: ContentBlock) -> ContentBlock:
    update: dict[str, Any] = {"meta": foreign_meta(block.meta)} if block.meta else {}
    if isinstance(block, EmbeddedResource) and block.resource.meta:
        update["resource"] = block.resource.model_copy(update={"meta": foreign_meta(block.resource.meta)})
    return block.model_copy(update=update) if update else block


def foreign_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the keys of a server's `_meta` that it may write."""
    return {key: value for key, value in (meta or {}).items() if not _is_ours(key)}


def _is_ours(key: str) -> bool:
    """Return whether this service writes the key, not the server that it calls."""
    return key == SERVER_INFO_META_KEY or key.startswith(_OUR_PREFIX)


def _readable(block: ContentBlock, protocol_version: str) -> ContentBlock:
    match block:
        case AudioContent() if not is_version_at_least(protocol_version, AUDIO_SINCE):
            return _text(f"[audio of type {quoted_name(block.mime_type)}: this client's revision of MCP has no audio]")
        case ResourceLink() if not is_version_at_least(protocol_version, RESOURCE_LINKS_SINCE):
            return _text(f"[resource {quoted_name(block.name)}: {quoted_name(block.uri)}]")
        case _:
            return block


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
