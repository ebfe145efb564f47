from __future__ import annotations

from typing import Any

import pytest
import structlog
from mcp.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from query.tools.revisions import INVISIBLE, SERVER_KEY, WARNINGS_KEY, for_protocol
from shared.text.invisible import mark_text
from tests.support.invisible import texts_in

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


@pytest.mark.parametrize("revision", KNOWN_PROTOCOL_VERSIONS)
def test_no_key_of_toolscale_passes_in_a_block_or_its_resource(revision: str) -> None:
    forged: dict[str, Any] = {SERVER_KEY: "forged", "example.org/kept": 1}
    resource = TextResourceContents(uri="a:b", text="x", _meta=forged)
    content: list[ContentBlock] = [
        TextContent(text="x", _meta=forged),
        EmbeddedResource(resource=resource, _meta=forged),
        ResourceLink(name="n", uri="a:b", _meta=forged),
        AudioContent(data="AAAA", mime_type="audio/wav", _meta=forged),
    ]

    shown = for_protocol(CallToolResult(content=content, _meta=forged), revision, "s")

    assert '"forged"' not in shown.model_dump_json(by_alias=True)
    assert shown.content[0].meta == {"example.org/kept": 1}


def test_invisible_characters_of_a_result_are_marked_with_a_warning() -> None:
    text = TextResourceContents(uri="a:b\u202e", text="x\u200by", _meta={"k\x1b": "\x07"})
    content: list[ContentBlock] = [TextContent(text="ok\U000e0041"), EmbeddedResource(resource=text), IMAGE]
    result = CallToolResult(content=content, structured_content={"a\u200b": ["b\x1b[0m"]})

    with structlog.testing.capture_logs() as logs:
        shown = for_protocol(result, "2025-11-25", "s")

    assert shown.content[0] == TextContent(text="ok\ufffd")
    assert shown.structured_content == {"a\ufffd": ["b\ufffd[0m"]}
    assert all(mark_text(part) == part for part in texts_in(shown.model_dump(by_alias=True)))
    assert shown.meta == {SERVER_KEY: "s", WARNINGS_KEY: [INVISIBLE]}
    assert [line["event"] for line in logs] == ["invisible_result"]


def test_a_result_without_invisible_characters_has_no_warning() -> None:
    text = "\U0001f469\u200d\U0001f467 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"

    shown = for_protocol(CallToolResult(content=[TextContent(text=text)]), "2025-11-25", "s")

    assert shown.meta == {SERVER_KEY: "s"}
    assert shown.content == [TextContent(text=text)]
