"""The resources of a toolset's servers: `resources/list` and `resources/templates/list`.

Their URIs are links, which `query.tools.read_resource` reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread
from mcp.types import ListResourcesResult, ListResourceTemplatesResult

from query.answers.links import Links
from query.answers.pages import Reader
from query.tools.revisions import foreign_meta
from query.toolset_servers import MAX_TTL_MS, Gathered, ToolsetServers, all_pages, page_of
from shared.text.invisible import mark_text

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import Resource, ResourceTemplate

    from query.caller import Caller
    from shared.upstream.auth import Requester

LIST_RESOURCES, LIST_TEMPLATES = "resources/list", "resources/templates/list"


class Resources:
    """The resources and templates that callers see.

    The methods raise CallsExhausted and IndexUnavailable as `ToolsetServers.gather` does, and CursorInvalid and
    CursorsUnavailable as `page_of` does.
    """

    def __init__(self, servers: ToolsetServers) -> None:
        self._servers = servers
        self._policy = servers.catalogue.response_policy

    async def list(self, caller: Caller, requester: Requester, cursor: str | None) -> ListResourcesResult:
        """Return a page of the resources of the caller's servers."""
        gathered = await self._servers.gather(caller, requester, _list_resources)
        return await anyio.to_thread.run_sync(self._page, gathered, caller, cursor)

    async def list_templates(
        self, caller: Caller, requester: Requester, cursor: str | None
    ) -> ListResourceTemplatesResult:
        """Return a page of the templates of the caller's servers."""
        gathered = await self._servers.gather(caller, requester, _list_templates)
        return await anyio.to_thread.run_sync(self._page_of_templates, gathered, caller, cursor)

    def _page(self, gathered: Gathered[ListResourcesResult], caller: Caller, cursor: str | None) -> ListResourcesResult:
        resources: dict[str, Resource] = {}
        for each in gathered.lists:
            listed = each.listed.resources
            links = Links(caller.name, self._policy.kept).to_listed([resource.uri for resource in listed], each.tool)
            for resource in listed:
                shown = {"uri": links[resource.uri], "meta": foreign_meta(resource.meta) or None}
                resources[f"{each.server_id}:{resource.uri}"] = resource.model_copy(update=shown)
        page, fields = page_of(resources, gathered, Reader(caller.name, LIST_RESOURCES), cursor, self._policy)
        return ListResourcesResult(resources=page, **fields)

    def _page_of_templates(
        self, gathered: Gathered[ListResourceTemplatesResult], caller: Caller, cursor: str | None
    ) -> ListResourceTemplatesResult:
        templates: dict[str, ResourceTemplate] = {}
        for each in gathered.lists:
            # one with invisible characters could not be shown as it is, nor be opened again otherwise
            listed = [one for one in each.listed.resource_templates if mark_text(one.uri_template) == one.uri_template]
            links = Links(caller.name, self._policy.kept).to_templates([one.uri_template for one in listed], each.tool)
            for template in listed:
                shown = {"uri_template": links[template.uri_template], "meta": foreign_meta(template.meta) or None}
                templates[f"{each.server_id}:{template.uri_template}"] = template.model_copy(update=shown)
        page, fields = page_of(templates, gathered, Reader(caller.name, LIST_TEMPLATES), cursor, self._policy)
        return ListResourceTemplatesResult(resource_templates=page, **fields)


async def _list_resources(client: Client, _: ProgressFnT) -> ListResourcesResult:
    empty = ListResourcesResult(resources=[], ttl_ms=MAX_TTL_MS)
    return await all_pages(client.list_resources, client.server_capabilities.resources, empty)


async def _list_templates(client: Client, _: ProgressFnT) -> ListResourceTemplatesResult:
    empty = ListResourceTemplatesResult(resource_templates=[], ttl_ms=MAX_TTL_MS)
    return await all_pages(client.list_resource_templates, client.server_capabilities.resources, empty)
