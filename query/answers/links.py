"""Links: the URIs of servers' resources, as callers see and read them.

A link is `toolscale://link/{name}/{uri}`: the name of the entry of its result, and the server's own URI. The entry has
the tool that returned the result and the URIs in it, so a result with many links writes one entry. The entry of a
server's list has a tool of that server, and a name that depends on these two, so that the links of a list stay.
A template is `toolscale://template/{name}/{template}`: clients expand it as they would expand the server's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import structlog
from mcp.types import CallToolResult, ContentBlock, EmbeddedResource, ResourceContents, ResourceLink

from query.kept import Kept, name_of, new_name
from shared.errors import CursorInvalid, CursorsUnavailable, ResourceNotFound

PREFIX, TEMPLATE_PREFIX = "toolscale://link/", "toolscale://template/"
UNKNOWN = (
    "unknown resource: expected a link that a tool or a list returned to you, unchanged and not expired; "
    "call the tool or list the resources again"
)

_OURS = (PREFIX, TEMPLATE_PREFIX)
_PURPOSE, _TEMPLATES = "resources/read", "resources/templates/list"
# By MCP, a client reads these from the web and not from the server.
_WEB = ("https://", "http://")
# Clients normalize URIs: they drop fragments and encode other characters than these.
_UNCHANGED = "/:@!$&'()*+,;=?"
_EXPRESSION = re.compile(r"\{[^{}]*\}")

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

    def to(self, uris: Collection[str], tool: str, name: str | None = None) -> Mapping[str, str]:
        """Return the URI that the caller sees for each URI of a tool's result; one of the web stays as it is.

        If the store does not answer, the links are as unknown as after their expiry.
        """
        own = sorted({uri for uri in uris if not uri.lower().startswith(_WEB)})
        name = name or new_name()
        self._put(name, _PURPOSE, tool, own)
        # encoded, `..` is no segment of the path, which clients would resolve
        links = {uri: f"{PREFIX}{name}/{quote(uri, safe=_UNCHANGED).replace('/.', '%2F.')}" for uri in own}
        return {uri: links.get(uri, uri) for uri in uris}

    def to_listed(self, uris: Collection[str], tool: str) -> Mapping[str, str]:
        """Return the URI that the caller sees for each URI that the server of `tool` lists; the same one each time."""
        return self.to(uris, tool, name_of(self.caller, tool, _PURPOSE))

    def to_templates(self, templates: Collection[str], tool: str) -> Mapping[str, str]:
        """Return the template that the caller sees for each one that the server of `tool` lists, as `to_listed`."""
        own = sorted({template for template in templates if not template.lower().startswith(_WEB)})
        name = name_of(self.caller, tool, _TEMPLATES)
        self._put(name, _TEMPLATES, tool, own)
        # not encoded: an expansion is a URI, with its own escapes
        links = {template: f"{TEMPLATE_PREFIX}{name}/{template}" for template in own}
        return {template: links.get(template, template) for template in templates}

    def open(self, uri: str) -> Link:
        """Return the link of a URI that this class returned, or that expands a template of it.

        Raises:
            ResourceNotFound: it was changed, is another caller's, or has expired.
            CursorsUnavailable: the store does not answer.
        """
        match uri.split("/", 4):
            case ["toolscale:", "", "link", name, rest]:
                tool, uris = self._get(name, _PURPOSE)
                own, is_known = unquote(rest), unquote(rest) in uris
            case ["toolscale:", "", "template", name, own]:
                tool, templates = self._get(name, _TEMPLATES)
                is_known = any(may_expand_to(template, own) for template in templates)
            case _:
                raise ResourceNotFound(UNKNOWN)
        if not is_known:
            raise ResourceNotFound(UNKNOWN)
        return Link(tool, own)

    def _put(self, name: str, purpose: str, tool: str, uris: Sequence[str]) -> None:
        if not uris:
            return
        try:
            self.kept.put(json.dumps([tool, *uris]).encode(), self.caller, purpose, name=name)
        except CursorsUnavailable as error:
            _log.warning("cursor_store_unavailable", reason=str(error))

    def _get(self, name: str, purpose: str) -> tuple[str, list[str]]:
        try:
            tool, *uris = json.loads(self.kept.get(name, self.caller, purpose))
        except CursorInvalid as error:
            raise ResourceNotFound(UNKNOWN) from error
        return tool, uris

    def in_result(self, result: CallToolResult, tool: str) -> CallToolResult:
        """Return the result of a tool with links in place of its server's URIs."""
        links = self.to([block.uri for block in result.content if isinstance(block, ResourceLink)], tool)
        content = [
            block.model_copy(update={"uri": links[block.uri]}) if isinstance(block, ResourceLink) else block
            for block in result.content
        ]
        return result.model_copy(update={"content": content})


def may_expand_to(template: str, uri: str) -> bool:
    """Return whether a URI has the literal parts of a template (RFC 6570) in their order; a template is one itself.

    The server matches the URI exactly: this only keeps a caller from URIs that the template does not reach.
    """
    first, *others = _EXPRESSION.split(template)
    if not others:
        return uri == template
    *between, last = others
    at = len(first) if uri.startswith(first) else -1
    for literal in between:
        if at >= 0 and (at := uri.find(literal, at)) >= 0:
            at += len(literal)
    return 0 <= at <= len(uri) - len(last) and uri.endswith(last)


def added_text(block: ContentBlock) -> str:
    """Return the part of a block's link that Toolscale wrote; empty without a link."""
    match block:
        case ResourceLink(uri=uri) | EmbeddedResource(resource=ResourceContents(uri=uri)) if uri.startswith(_OURS):
            return uri.removesuffix(uri.split("/", 4)[-1])
        case _:
            return ""
