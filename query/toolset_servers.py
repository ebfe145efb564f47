"""The servers of a toolset: their lists, fetched when a caller asks for them, in pages, and requests to one of them.

Nothing of these lists is stored: a server changes them without a notice that Toolscale follows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import structlog
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Result,
)
from pydantic import BaseModel

from query.answers.budget import ResponsePolicy, items_that_fit
from query.answers.links import UNKNOWN
from query.answers.pages import Reader
from query.calling.sessions import CallResources, Progress
from query.questions import check_capabilities
from query.tool import CATALOGUE_UNREACHABLE, Paging, ToolCallContext, ToolHandler, error_result
from query.tools.audit import CallAudit
from query.tools.revisions import INVISIBLE, WARNINGS_KEY
from query.tools.server_request import ServerRequest, at_servers_of, given_to, questions_of
from query.toolsets.offers import NAMED
from query.turns import run_in_thread
from query.usage.record import read_rows
from query.usage.usage import today
from shared.errors import CallDenied, CallsExhausted, IndexUnavailable, ResourceNotFound, ServerError, ServerFailed
from shared.text.invisible import marked

if TYPE_CHECKING:
    from query.caller import Caller
    from query.calling.call import ResolvedTool
    from query.calling.connection import Send
    from query.calling.upstreams import Upstreams
    from query.questions import ClientInput
    from query.tools.toolset_tools import Toolsets
    from shared.upstream.auth import Requester

LIST_WITHIN_S = 5.0
"""Seconds for the lists of all servers together: a client waits for the slowest of them."""
# More requests at a time would take most of the connections to servers.
AT_ONCE = 32
# Of one server; nobody reads a longer list.
MAX_PAGES, MAX_ITEMS = 10, 1_000
MAX_TTL_MS = 60_000
"""The longest time for which a client may keep a list, whatever its servers allow: a toolset may change."""

Lists = ListPromptsResult | ListResourcesResult | ListResourceTemplatesResult
ResultT = TypeVar("ResultT", bound=Result)
ListT = TypeVar("ListT", ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult)
EntryT = TypeVar("EntryT", bound=BaseModel)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerList(Generic[ListT]):
    """The list of a server; `server_id` names it, and `tool` is one of the replica that answered, `server:tool`."""

    server_id: str
    tool: str
    listed: ListT


@dataclass(frozen=True, slots=True)
class Gathered(Generic[ListT]):
    """The lists of servers, and why others are missing or cut."""

    lists: list[ServerList[ListT]]
    warnings: list[str]
    ttl_ms: int


class ToolsetServers:
    """The servers of which a caller may call a tool of its toolset; a caller without a toolset has none."""

    def __init__(self, toolsets: Toolsets, upstreams: Upstreams) -> None:
        self._toolsets = toolsets
        self.catalogue = toolsets.catalogue
        self.upstreams = upstreams

    async def of(self, caller: Caller) -> dict[str, ResolvedTool]:
        """Return the servers by id, each with a tool that the caller may call.

        Raises:
            CallsExhausted: too many requests of the caller wait.
            IndexUnavailable: the index did not answer.
        """
        return await run_in_thread(caller.name, self._toolsets.servers, caller)

    async def gather(self, caller: Caller, requester: Requester, send: Send[ListT]) -> Gathered[ListT]:
        """Return what the servers list, asked at the same time, without those that fail or take too long.

        Raises:
            CallsExhausted: the caller has as many calls in flight as the limit allows.
            IndexUnavailable: the index did not answer.
        """
        servers = await self.of(caller)
        answers: dict[str, tuple[ListT, str]] = {}
        failures = dict.fromkeys(servers, f"no answer within {LIST_WITHIN_S:g} s")
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def ask(server_id: str, server: ResolvedTool) -> None:
            async with limiter:
                slot = self.upstreams.admission.slot(caller.name)
                try:
                    resources = CallResources(Progress(_unreported), slot, requester)
                    sent = self.upstreams.call(send, server.replicas, resources, is_repeatable=True)
                    answers[server_id] = await sent
                except ServerError as error:
                    failures[server_id] = error.reason
                    if isinstance(error, ServerFailed) and error.code == METHOD_NOT_FOUND:
                        del failures[server_id]  # a server need not have all lists of a capability
                except CallsExhausted as error:
                    failures[server_id] = str(error)
                finally:
                    slot.close()

        with self.upstreams.admission.admitted(caller.name), anyio.move_on_after(LIST_WITHIN_S):
            async with anyio.create_task_group() as tasks:
                for server_id, server in servers.items():
                    tasks.start_soon(ask, server_id, server)
        lists = [
            ServerList(server_id, f"{answered}:{servers[server_id].tool.definition.name}", listed)
            for server_id, (listed, answered) in answers.items()
        ]
        left_out = {server_id: reason for server_id, reason in failures.items() if server_id not in answers}
        if left_out:
            _log.warning("lists_left_out", caller=caller.name, servers=left_out)
        return Gathered(lists, _warnings(left_out, lists), _ttl_ms(lists, is_complete=not left_out))


class RequestHandler(ToolHandler):
    """A request to a server of the toolset that is no call; a tool in form, with the permission and limits of one."""

    permission = "tools:call"
    paging: Paging = "foreign"

    def __init__(self, servers: ToolsetServers) -> None:
        self._servers = servers
        self._catalogue = servers.catalogue

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the result in the form of a tool's; log, count and record the request.

        Raises:
            MCPError: the caller or the server does not have what the request names.
        """
        try:
            with CallAudit(context.caller.name, self.tool.name) as audit:
                return await self.result(context, audit)
        except ResourceNotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except CallDenied as error:
            raise MCPError(INVALID_PARAMS, UNKNOWN) from error
        except (ServerError, CallsExhausted, IndexUnavailable) as error:
            check_capabilities(error, context.mcp_context.protocol_version)
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))

    @abstractmethod
    async def result(self, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        """Return the result in the form of a tool's.

        Raises:
            ResourceNotFound: the caller or the server does not have what the request names.
            ServerError, CallsExhausted, IndexUnavailable: it was not answered.
        """

    async def answered(
        self,
        request: Callable[[ClientInput], Send[ResultT | InputRequiredResult]],
        server: ResolvedTool,
        context: ToolCallContext,
        audit: CallAudit,
        *about: str,
    ) -> tuple[ResultT, str]:
        """Return the answer of the server or of one of its replicas, and which one answered; record the request.

        `request` gets the client's answers; `about` tells it from all other requests of the method.

        Raises:
            InputRequired: the server asks the caller's client.
            ResourceNotFound, ServerError, CallsExhausted: it was not answered.
        """
        server_ids = [record.server_id for record in server.replicas]
        audit.server, audit.policy = server_ids[0], server.action
        upstreams, kept = self._servers.upstreams, self._catalogue.response_policy.kept
        questions = questions_of(context, kept, self.tool.name, server_ids[0], *about)
        server_request = ServerRequest(context, upstreams, questions, audit, server_ids)
        asked = None if server_request.is_sent else await questions.asked()
        replicas, send = at_servers_of(asked, server).replicas, request(given_to(asked, questions))

        def sent(resources: CallResources) -> Awaitable[tuple[ResultT | InputRequiredResult, str]]:
            return upstreams.call(send, replicas, resources, is_repeatable=True, timeout_s=server.timeout_s)

        try:
            answer: ResultT
            answer, server_id = await server_request.result(sent)
        except ServerFailed as error:
            if error.code == INVALID_PARAMS:
                raise ResourceNotFound(str(error)) from error
            raise
        audit.set_result(answer, server_id)
        rows = read_rows(today(), context.caller.name, server_id, self.tool.name, audit.result_bytes)
        self._catalogue.record(rows)
        return answer, server_id


async def _unreported(_: float, __: float | None, ___: str | None) -> None: ...


def _warnings(left_out: Mapping[str, str], lists: Sequence[ServerList[Any]]) -> list[str]:
    named = [f"{server_id}: {reason}" for server_id, reason in sorted(left_out.items())]
    shown = [*named[:NAMED], *([f"and {len(named) - NAMED} more"] if len(named) > NAMED else [])]
    cut = [each.server_id for each in lists if each.listed.next_cursor]
    return [
        *([f"Left out, since their servers did not answer: {'; '.join(shown)}."] if shown else []),
        *([f"Cut after {MAX_ITEMS} entries or {MAX_PAGES} pages: {', '.join(sorted(cut)[:NAMED])}."] if cut else []),
    ]


def _ttl_ms(lists: Sequence[ServerList[Any]], *, is_complete: bool) -> int:
    return min((MAX_TTL_MS, *(each.listed.ttl_ms for each in lists))) if is_complete else 0


async def all_pages(list_page: Callable[..., Awaitable[ListT]], capability: object, empty: ListT) -> ListT:
    """Return the entries of all pages as one; with a `next_cursor` if there are more than the limits allow.

    `empty`: the list of a server without the capability, which is not asked.
    """
    if capability is None:
        return empty
    whole = page = await list_page()
    entries = entries_of(whole)
    for _ in range(MAX_PAGES - 1):
        if page.next_cursor and len(entries) < MAX_ITEMS:
            page = await list_page(cursor=page.next_cursor)
            entries.extend(entries_of(page))
    cut = page.next_cursor or ("more" if len(entries) > MAX_ITEMS else None)
    del entries[MAX_ITEMS:]
    return whole.model_copy(update={"next_cursor": cut})


def entries_of(listed: Lists) -> list[Any]:
    """Return the prompts, resources or templates of a list."""
    match listed:
        case ListPromptsResult():
            return listed.prompts
        case ListResourcesResult():
            return listed.resources
        case ListResourceTemplatesResult():
            return listed.resource_templates


def page_of(
    entries: Mapping[str, EntryT], gathered: Gathered[Any], reader: Reader, cursor: str | None, policy: ResponsePolicy
) -> tuple[list[EntryT], dict[str, Any]]:
    """Return the entries of a page in the order of their keys, as many as fit but at least one, and its other fields.

    If entries come and go between two pages, none is listed twice, and none that stays is missing.

    Raises:
        CursorInvalid: the cursor is not of this reader, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be read or stored now.
    """
    last = "" if cursor is None else policy.kept.get(cursor, *reader.binding).decode("utf-8", "surrogatepass")
    rest = sorted(key for key in entries if key > last)
    texts = [entries[key].model_dump_json(by_alias=True, exclude_none=True) for key in rest]
    count = max(items_that_fit(texts, policy.budget()), 1)
    shown = [marked(entries[key]) for key in rest[:count]]
    after = rest[count - 1].encode("utf-8", "surrogatepass") if count < len(rest) else None
    are_marked = any(entry is not entries[key] for entry, key in zip(shown, rest, strict=False))
    warnings = [*gathered.warnings, *([INVISIBLE] if are_marked else [])]
    return shown, {
        "next_cursor": policy.kept.put(after, *reader.binding) if after else None,
        "ttl_ms": gathered.ttl_ms,
        "_meta": {WARNINGS_KEY: warnings} if warnings else None,
    }
