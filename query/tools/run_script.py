"""The MCP tool `run_script`; `query.scripts` runs the script, and `call_tool` makes its calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread
import structlog
from mcp import MCPError
from mcp.types import CallToolResult, ContentBlock, TextContent, Tool, ToolAnnotations
from mcp_types import ClientCapabilities
from mcp_types.version import LATEST_PROTOCOL_VERSION
from pydantic import ValidationError
from pydantic_core import from_json

from query.answers.budget import ToolRequest, counting
from query.answers.pages import OwnText, shown_texts
from query.calling.arguments import named_arguments, no_such_argument
from query.calling.call import CallRequest
from query.calling.tool_lookup import ResolvedName, resolve_tool_names
from query.find import FindTool, find_tool
from query.search.request import FindRequest
from query.tool import ALWAYS_LOADED, ToolCallContext, ToolHandler, error_result, input_schema
from query.tools.audit import CallAudit
from query.turns import run_in_thread
from query.usage.record import is_command, script_rows
from query.usage.usage import today
from shared.errors import ArgumentsInvalid, BudgetTooSmall, CallsExhausted, IndexUnavailable, InputRequired
from shared.quoting import encodable, quoted_name
from shared.text.tokens import json_text
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

    from query.answers.answer import FindResponse
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.find import Timings
    from query.scripts.script import Outcome, Returned, SpelledOut
    from query.tools.call_tool import CallTool

# Each may take some hundred MiB.
SCRIPTS_OF_A_CALLER, SCRIPTS = 2, 6
ERROR_CHARACTERS = 2_000
# Of a tool that is none.
NAME_CHARACTERS = 200
# Outcomes of calls that only the client's user can bring further, with the reason in place of a text that says that
# the client cannot be asked; a sign-in has its own.
_SERVER_ASKS = "the server asks for an input"
_NEED_USER = {
    "CallNotConfirmed": "the operator's policy asks the user before this call",
    "ClientNotAsked": _SERVER_ASKS,
    "SignInRequired": None,
}

_log = structlog.get_logger()


class ScriptRequest(ToolRequest):
    """A script."""

    source: str
    """Only its last expression and prints come back."""


RUN_SCRIPT = Tool(
    name="run_script",
    description=(
        "Run Python that calls many tools and keeps their results out of this conversation. "
        '`await call("server:tool", {...})` returns structured content or text, or raises ToolError; '
        '`find("what it does")` lists signatures; asyncio.gather works. No files, network, classes with bases, yield.'
    ),
    input_schema=input_schema(ScriptRequest),
    annotations=ToolAnnotations(
        title="Run a script", read_only_hint=False, destructive_hint=True, open_world_hint=True
    ),
    _meta=ALWAYS_LOADED,
)


def missing_sandbox() -> str | None:
    """Return why no script can run here; None if one can. Imports nothing."""
    if find_spec("pydantic_monty") is None:
        return "the package pydantic-monty is not installed; it has wheels for Linux, macOS and Windows only"
    if find_spec("resource") is None:
        return "scripts need the limits of processes, which this system lacks"
    return None


class RunScript(ToolHandler):
    """Runs scripts, whose calls take the path of `call_tool`."""

    tool = RUN_SCRIPT
    permission = "tools:call"

    def __init__(self, catalogue: Catalogue, call_tool: CallTool, at_once: int) -> None:
        """`at_once` calls of a caller may be in flight."""
        self._catalogue = catalogue
        self._call_tool = call_tool
        self._at_once = at_once
        self._running = Counter[str]()

    def is_for(self, caller: Caller) -> bool:
        """Return whether the caller may call tools, and the policy lets it run scripts."""
        return super().is_for(caller) and self._catalogue.read_policy().allows_scripts(caller)

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the script's calls, log and result; log and count the run.

        Raises:
            CallsExhausted: as many scripts run as the limits allow.
        """
        from query.scripts.script import SOURCE_BYTES, Script  # noqa: PLC0415  # few processes run a script

        try:
            source = ScriptRequest.model_validate(context.arguments).source.rstrip("\n")
        except ValidationError as error:
            return error_result(first_invalid_argument(error))
        if len(encodable(source).encode()) > SOURCE_BYTES:
            return error_result(f"source: expected at most {SOURCE_BYTES:,} bytes")
        calls, started_s = _Calls(context, self._catalogue, self._call_tool), time.perf_counter()
        with self._admitted(context.caller.name):
            outcome = await Script(encodable(source), calls, self._at_once).run()
        answer = await anyio.to_thread.run_sync(_answer_of, outcome, counting(self._catalogue.encoding))
        tokens = sum(made.tokens for made in outcome.calls), answer.result_tokens
        # a script without calls kept nothing out
        if outcome.calls and not is_command(context.mcp_context):
            self._catalogue.record(script_rows(today(), context.caller.name, *tokens))
        _log.info(
            "script_run",
            caller=context.caller.name,
            outcome="error" if outcome.error else "ok",
            calls=len(outcome.calls),
            inner_tokens=tokens[0],
            result_tokens=tokens[1],
            took_ms=round((time.perf_counter() - started_s) * 1e3, 2),
        )
        return answer.result

    @contextmanager
    def _admitted(self, caller: str) -> Generator[None]:
        if self._running[caller] >= SCRIPTS_OF_A_CALLER or self._running.total() >= SCRIPTS:
            limit = f"{SCRIPTS_OF_A_CALLER} scripts of {caller}, or {SCRIPTS} in all"
            raise CallsExhausted(f"{limit}, run already, as many as may; run it again when one has ended")
        self._running[caller] += 1
        try:
            yield
        finally:
            self._running[caller] -= 1


class _Calls:
    """What one script of a caller reaches: the tools and the search that the caller itself has."""

    def __init__(self, context: ToolCallContext, catalogue: Catalogue, call_tool: CallTool) -> None:
        """The calls have the request of the script, of a client that answers no questions and gets no progress."""
        session = cast("ServerSession", _SilentSession())
        # in the newest revision, so that no content is left out for an older client
        inner = replace(context.mcp_context, session=session, protocol_version=LATEST_PROTOCOL_VERSION)
        self._context, self._inner = context, inner
        self._catalogue, self._call_tool = catalogue, call_tool
        self._count = counting(catalogue.encoding)

    async def refusal(self, calls: Sequence[SpelledOut]) -> tuple[str, int] | None:
        """Return the first argument that its tool does not name, with its line; tools are those the caller sees."""
        try:
            return await run_in_thread(self._context.caller.name, self._refusal, calls)
        except CallsExhausted:
            return None  # as each call will say

    def _refusal(self, calls: Sequence[SpelledOut]) -> tuple[str, int] | None:
        from query.scripts.script import CALLS  # noqa: PLC0415  # few processes run a script

        names = list(dict.fromkeys(call.tool for call in calls if ":" in call.tool))[:CALLS]
        try:
            found = resolve_tool_names(names, self._catalogue.scope(self._context.caller), self._catalogue.pinned())
        except IndexUnavailable:
            return None  # as each call will say
        tools = ((name, each.tool) for name, each in found.items() if isinstance(each, ResolvedName))
        known = {name: has for name, tool in tools if (has := named_arguments(tool.definition)) is not None}
        wrong = (
            (call, no_such_argument(name, known[call.tool]))
            for call in calls
            for name in call.names
            if call.tool in known and name not in known[call.tool]
        )
        for call, error in wrong:
            return f"{quoted_name(call.tool)}: {error}. Nothing was called", call.line
        return None

    async def make(self, tool: str, arguments: dict[str, Any]) -> Returned:
        """Return the result of one call."""
        from query.scripts.script import Returned  # noqa: PLC0415  # few processes run a script

        given = {"tool_name": tool, "parameters": arguments}
        try:
            request = CallRequest.model_validate(given)
        except ValidationError as error:
            reason = first_invalid_argument(error)
            return Returned(None, tool[:NAME_CHARACTERS], ArgumentsInvalid.__name__, None, reason, self._count(reason))
        with ExitStack() as exit_stack:
            context = ToolCallContext(self._context.caller, given, self._inner, exit_stack)
            audit = CallAudit(context.caller.name, request.name)
            try:
                result = await self._call_tool.audited(request, context, audit)
                return await anyio.to_thread.run_sync(self._returned, result, audit)
            except (InputRequired, MCPError) as error:
                needed = str(error) if isinstance(error, MCPError) else _SERVER_ASKS
                return Returned(audit.server, audit.tool, audit.outcome, error=needed, needs_user=True)
            except Exception:  # noqa: BLE001  # the answer has the calls before this one, whatever happens in it
                _log.exception("script_call_failed", caller=context.caller.name, tool=request.name)
                return Returned(audit.server, audit.tool, "failed", error="internal error")

    def _returned(self, result: CallToolResult, audit: CallAudit) -> Returned:
        from query.scripts.script import Returned  # noqa: PLC0415  # as above

        structured = result.structured_content
        texts = shown_texts(result.content) or ([json_text(structured)] if structured is not None else [])
        text, tokens = "\n".join(texts), sum(map(self._count, texts))
        needs_user = audit.outcome in _NEED_USER or audit.has_asked
        if result.is_error:
            needed = _SERVER_ASKS if audit.has_asked else _NEED_USER.get(audit.outcome)
            error = (needed or text)[:ERROR_CHARACTERS]
            return Returned(audit.server, audit.tool, audit.outcome, None, error, tokens, needs_user)
        value = structured if structured is not None else _parsed(text)
        return Returned(audit.server, audit.tool, audit.outcome, value, None, tokens)

    async def find(self, query: str) -> list[str]:
        """Return the signatures of the tools that fit.

        Raises:
            SearchFailed: the caller may not search, the query is invalid, or the search failed.
        """
        from query.scripts.script import SearchFailed  # noqa: PLC0415  # as above

        caller = self._context.caller
        if FindTool.permission not in caller.permissions:
            raise SearchFailed(f"find needs the permission {FindTool.permission}")
        try:
            request = FindRequest.model_validate({"tool_description": query, "detail": "summary"})
            found, _ = await run_in_thread(caller.name, self._found, request, caller)
        except ValidationError as error:
            raise SearchFailed(first_invalid_argument(error)) from None
        except (BudgetTooSmall, CallsExhausted, IndexUnavailable) as error:
            raise SearchFailed(str(error)) from error
        except Exception as error:
            _log.exception("script_search_failed", caller=caller.name)
            raise SearchFailed("internal error") from error
        return [f"{tool.name}({(tool.summary or '').partition('(')[2]}" for tool in found.tools]

    def _found(self, request: FindRequest, caller: Caller) -> tuple[FindResponse, Timings]:
        return find_tool(request, self._catalogue.scope(caller), self._catalogue, caller)

    async def report(self, ended: int, last: str) -> None:
        """Report a call that has ended; the session drops reports to a caller that did not ask for progress."""
        await self._context.mcp_context.session.report_progress(ended, None, last)


class _SilentSession:
    """What `call_tool` uses of a client's session, for a client that can be asked nothing."""

    client_params = None
    client_capabilities = ClientCapabilities()

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report nothing: the progress of a script is its ended calls."""


@dataclass(frozen=True, slots=True)
class _Answer:
    result: CallToolResult
    result_tokens: int


def _answer_of(outcome: Outcome, count: Callable[[str], int]) -> _Answer:
    """Return the answer: what Toolscale knows of the script, its log, and its result, which may be long.

    An error is in one text with the rest, since some clients show only the first text of an error.
    """
    made = Counter((call.server or "", call.tool, call.outcome) for call in outcome.calls)
    calls = [
        {"server": server, "tool": tool, "outcome": kind, **({"count": number} if number > 1 else {})}
        for (server, tool, kind), number in made.items()
    ]
    log = {"log": outcome.log} if outcome.log else {}
    if outcome.error is not None:
        where = {"line": outcome.line} if outcome.line is not None else {}
        text = json_text({"error": outcome.error, **where, "calls": calls, **log})
        return _Answer(CallToolResult(content=[TextContent(text=text)], is_error=True), count(text))
    # these are of the script and its servers, as a result of `call_tool` is
    texts = [*([json_text(log)] if log else []), outcome.result or ""]
    result_tokens = sum(map(count, texts))
    facts: dict[str, Any] = {"calls": calls}
    if outcome.calls:
        facts["tokens_kept_out"] = sum(call.tokens for call in outcome.calls) - result_tokens
    content: list[ContentBlock] = [OwnText(text=json_text(facts)), *(TextContent(text=text) for text in texts)]
    return _Answer(CallToolResult(content=content), result_tokens)


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text
