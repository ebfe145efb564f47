"""Links: the URIs of servers' resources, as callers see and read them.

A link is `toolscale://link/{name}/{uri}`: the name of the entry of its result, and the server's own URI. The entry has
the tool that returned the result and the URIs in it, so a result with many links writes one entry.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import structlog
from mcp.types import CallToolResult, ContentBlock, EmbeddedResource, ResourceContents, ResourceLink

from query.kept import Kept, new_name
from shared.errors import CursorInvalid, CursorsUnavailable, ResourceNotFound

PREFIX = "toolscale://link/"
UNKNOWN = (
    "unknown resource: expected a link that a tool returned to you, unchanged and not expired; call the tool again"
)

_PURPOSE = "resources/read"
# By MCP, a client reads these from the web and not from the server.
_WEB = ("https://", "http://")
# Clients normalize URIs: they drop fragments and encode other characters than these.
_UNCHANGED = "/:@!$&'()*+,;=?"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Link:
    """A server's URI, and the qualified name of the tool that returned it."""

    tool: str
    uri: str


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one caller."""

    caller: str
    kept: Kept

    def to(self, uris: Collection[str], tool: str) -> Mapping[str, str]:
        """Return the URI that the caller sees for each URI of a tool's result; one of the web stays as it is.

        If the store does not answer, the links are as unknown as after their expiry.
        """
        own = sorted({uri for uri in uris if not uri.lower().startswith(_WEB)})
        if not own:
            return {uri: uri for uri in uris}
        name = new_name()
        try:
            self.kept.put(json.dumps([tool, *own]).encode(), self.caller, _PURPOSE, name=name)
        except CursorsUnavailable as error:
            _log.warning("cursor_store_unavailable", reason=str(error))
        # encoded, `..` is no segment of the path, which clients would resolve
        links = {uri: f"{PREFIX}{name}/{quote(uri, safe=_UNCHANGED).replace('/.', '%2F.')}" for uri in own}
        return {uri: links.get(uri, uri) for uri in uris}

    def open(self, uri: str) -> Link:
        """Return the link of a URI that `to` returned.

        Raises:
            ResourceNotFound: it was changed, is another caller's, or has expired.
            CursorsUnavailable: the store does not answer.
        """
        match uri.split("/", 4):
            case ["toolscale:", "", "link", name, rest]:
                own = unquote(rest)
            case _:
                raise ResourceNotFound(UNKNOWN)
        try:
            tool, *uris = json.loads(self.kept.get(name, self.caller, _PURPOSE))
        except CursorInvalid as error:
            raise ResourceNotFound(UNKNOWN) from error
        if own not in uris:
            raise ResourceNotFound(UNKNOWN)
        return Link(tool, own)

    def in_result(self, result: CallToolResult, tool: str) -> CallToolResult:
        """Return the result of a tool with links in place of its server's URIs."""
        links = self.to([block.uri for block in result.content if isinstance(block, ResourceLink)], tool)
        content = [
            block.model_copy(update={"uri": links[block.uri]}) if isinstance(block, ResourceLink) else block
            for block in result.content
        ]
        return result.model_copy(update={"content": content})


def added_text(block: ContentBlock) -> str:
    """Return the part of a block's link that Toolscale wrote; empty without a link."""
    match block:
        case ResourceLink(uri=uri) | EmbeddedResource(resource=ResourceContents(uri=uri)) if uri.startswith(PREFIX):
            return uri.removesuffix(uri.split("/", 4)[-1])
        case _:
            return ""
