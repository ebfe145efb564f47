from __future__ import annotations

import pytest
from mcp.types import AudioContent, CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from query.tools.revisions import SERVER_KEY, for_protocol

TEXT = TextContent(type="text", text="words")
IMAGE = ImageContent(type="image", data="AAAA", mime_type="image/png")
AUDIO = AudioContent(type="audio", data="AAAA", mime_type="audio/wav")
LINK = ResourceLink(type="resource_link", name="notes", uri="file:///notes.txt")
CONTENT: list[ContentBlock] = [TEXT, IMAGE, AUDIO, LINK]
READABLE = {
    "2024-11-05": {"text", "image"},
    "2025-03-26": {"text", "image", "audio"},
    "2025-06-18": {"text", "image", "audio", "resource_link"},
    "2025-11-25": {"text", "image", "audio", "resource_link"},
    "2026-07-28": {"text", "image", "audio", "resource_link"},
}


@pytest.mark.parametrize("revision", KNOWN_PROTOCOL_VERSIONS)
def test_content_that_a_revision_has_is_unchanged_and_other_content_becomes_text(revision: str) -> None:
    content = for_protocol(CallToolResult(content=CONTENT), revision, "s").content

    for before, after in zip(CONTENT, content, strict=True):
        assert after == before if before.type in READABLE[revision] else after.type == "text"


def test_the_text_in_place_of_content_names_it() -> None:
    content = for_protocol(CallToolResult(content=[AUDIO, LINK]), "2024-11-05", "s").content

    assert [block.text for block in content if isinstance(block, TextContent)] == [
        "[audio of type audio/wav: this client's revision of MCP has no audio]",
        "[resource notes: file:///notes.txt]",
    ]


def test_the_metadata_names_the_server_which_cannot_write_the_keys_of_toolscale() -> None:
    meta = {"example.org/trace": "abc", SERVER_KEY: "forged", "dev.toolscale/other": 1}

    shown = for_protocol(CallToolResult(content=[], _meta=meta), "2025-11-25", "s")

    assert shown.meta == {"example.org/trace": "abc", SERVER_KEY: "s"}
