"""Links: the URIs of servers' resources, as callers see and read them.

A link is `toolscale://link/{server:tool}/{seal}/{uri}`: the tool that returned it, and the server's own URI. The seal
is a cursor without a state, bound to all of it and to the caller, so that a link needs no store.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from mcp.types import CallToolResult, ContentBlock, EmbeddedResource, ResourceContents, ResourceLink

from query.cursors import Cursors
from shared.errors import CursorInvalid, ResourceNotFound

PREFIX = "toolscale://link/"
UNKNOWN = (
    "unknown resource: expected a link that a tool returned to you, unchanged and not expired; call the tool again"
)

_PURPOSE = "resources/read"
# By MCP, a client reads these from the web and not from the server.
_WEB = ("https://", "http://")
# Clients normalize URIs: they drop fragments and encode other characters than these.
_UNCHANGED = "/:@!$&'()*+,;=?"


@dataclass(frozen=True, slots=True)
class Link:
    """A server's URI, and the qualified name of the tool that returned it."""

    tool: str
    uri: str


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one caller."""

    caller: str
    cursors: Cursors

    def seal(self, link: Link) -> str:
        """Return the URI that the caller sees; one of the web stays as it is."""
        if link.uri.lower().startswith(_WEB):
            return link.uri
        seal = self.cursors.seal(b"", self.caller, _PURPOSE, link.tool, link.uri)
        # encoded, `..` is no segment of the path, which clients would resolve
        uri = quote(link.uri, safe=_UNCHANGED).replace("/.", "%2F.")
        return f"{PREFIX}{quote(link.tool, safe=':@')}/{seal}/{uri}"

    def open(self, uri: str) -> Link:
        """Return the link of a URI that `seal` returned.

        Raises:
            ResourceNotFound: it was changed, is another caller's, or has expired.
        """
        match uri.split("/", 5):
            case ["toolscale:", "", "link", tool, seal, rest]:
                link = Link(unquote(tool), unquote(rest))
            case _:
                raise ResourceNotFound(UNKNOWN)
        try:
            self.cursors.unseal(seal, self.caller, _PURPOSE, link.tool, link.uri)
        except CursorInvalid as error:
            raise ResourceNotFound(UNKNOWN) from error
        return link

    def seal_all(self, result: CallToolResult, tool: str) -> CallToolResult:
        """Return the result of a tool with its links sealed."""
        content = [
            block.model_copy(update={"uri": self.seal(Link(tool, block.uri))})
            if isinstance(block, ResourceLink)
            else block
            for block in result.content
        ]
        return result.model_copy(update={"content": content})


def added_text(block: ContentBlock) -> str:
    """Return the part of a block's link that Toolscale wrote; empty without a link."""
    match block:
        case ResourceLink(uri=uri) | EmbeddedResource(resource=ResourceContents(uri=uri)) if uri.startswith(PREFIX):
            return uri.removesuffix(uri.split("/", 5)[-1])
        case _:
            return ""
