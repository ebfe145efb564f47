"""A call that a person tries on the page: it goes to this service's own `/mcp`, as that of any client.

So the permission, the policy with its questions, the limits, the log and the history are those of every call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import httpx2
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from query.answers.budget import counting
from query.auth.authentication import bearer_or_basic_token
from query.calling.call import CALL_TOOL_NAME
from query.listener import MCP_PATH
from query.web.form import PREFIX, Parameter, ParameterInvalid, parameters_of, values_of
from query.web.writes import field as field_of
from shared.amounts import size
from shared.service.command_line import COMMAND_LINE

if TYPE_CHECKING:
    from starlette.requests import Request

    from query.web.writes import Form
    from shared.catalog import Encoding

Json = dict[str, Any]

_REVISION = MODERN_PROTOCOL_VERSIONS[-1]
_META: Json = {
    PROTOCOL_VERSION_META_KEY: _REVISION,
    # as a command: a call of a person costs no agent tokens
    CLIENT_INFO_META_KEY: {"name": COMMAND_LINE, "version": "page"},
    CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}, "url": {}}},
}
_HEADERS = {
    "accept": "application/json",
    "mcp-protocol-version": _REVISION,
    "mcp-method": "tools/call",
    "mcp-name": CALL_TOOL_NAME,
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the policy or of the server: a form, or an address to visit."""

    key: str
    message: str
    schema: str
    url: str = ""
    parameters: Sequence[Parameter] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a call: a result, questions to answer first, or the reason why nothing was sent.

    `texts` are the blocks of the result. `arguments` and `state` repeat the call with answers.
    """

    texts: Sequence[str] = ()
    is_error: bool = False
    questions: Sequence[Question] = ()
    arguments: str = ""
    state: str = ""
    took_ms: int = 0
    tokens: int = 0
    parameters: Sequence[Parameter] = field(default_factory=tuple[Parameter, ...])


async def trial(request: Request, form: Form, name: str, schema: object, encoding: Encoding) -> Trial:
    """Call a tool by its name for calls, with the parameters of a form for its schema."""
    filled: Sequence[Parameter] = parameters_of(schema, form)
    repeated, state = field_of(form, "arguments"), field_of(form, "state")
    try:
        arguments = json.loads(repeated) if state else values_of(filled)
        answers = _answers(form) if state else None
    except (ParameterInvalid, ValueError) as error:
        return Trial([f"{error}."], is_error=True, parameters=filled)
    params: Json = {"name": CALL_TOOL_NAME, "arguments": {"tool_name": name, "parameters": arguments}, "_meta": _META}
    if state:
        filled = _refilled(schema, arguments)
        params |= {"requestState": state, "inputResponses": answers}
    started_s = time.perf_counter()
    answer = await _sent(request, params)
    took_ms = round((time.perf_counter() - started_s) * 1e3)
    result = cast("Json", answer.get("result") or {})
    if "error" in answer:
        message = str(cast("Json", answer["error"]).get("message", answer["error"]))
        return Trial([message], is_error=True, took_ms=took_ms, parameters=filled)
    if result.get("resultType") == "input_required":
        requests = cast("dict[str, Json]", result.get("inputRequests") or {})
        questions = [_question(number, *each) for number, each in enumerate(requests.items())]
        return Trial((), False, questions, json.dumps(arguments), result.get("requestState") or "", took_ms, 0, filled)
    texts = _texts(result)
    tokens = counting(encoding)("\n".join(texts))
    return Trial(texts, bool(result.get("isError")), took_ms=took_ms, tokens=tokens, parameters=filled)


async def _sent(request: Request, params: Json) -> Json:
    """Return the answer of `/mcp` to a request of the same caller."""
    headers = dict(_HEADERS)
    if token := bearer_or_basic_token(request.headers.get("authorization", "")):
        headers["authorization"] = f"Bearer {token}"
    transport = httpx2.ASGITransport(app=request.app)
    address = f"http://{request.headers['host']}"
    async with httpx2.AsyncClient(transport=transport, base_url=address, timeout=None) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await client.post(MCP_PATH, json=body, headers=headers)
    try:
        document: object = answer.json()
    except ValueError:
        document = None
    return cast("Json", document) if isinstance(document, dict) else {"error": {"message": answer.text[:1_000]}}


def _question(number: int, key: str, asked: Json) -> Question:
    params = cast("Json", asked.get("params") or {})
    schema = params.get("requestedSchema")
    message, url = str(params.get("message", "")), str(params.get("url") or "")
    return Question(key, message, json.dumps(schema), url, _asked(number, schema))


def _asked(number: int, schema: object, form: Form | None = None) -> Sequence[Parameter]:
    return parameters_of(schema, form, f"{PREFIX}{number}.")


def _answers(form: Form) -> Json:
    """Return the answers to the questions of a form, all accepted or all declined."""
    if field_of(form, "answer") != "accept":
        return {key: {"action": "decline"} for key in form.get("question", [])}
    answers: Json = {}
    for number, (key, text) in enumerate(zip(form.get("question", []), form.get("schema", []), strict=False)):
        schema: object = json.loads(text)  # null: a visit has no content
        content = {"content": values_of(_asked(number, schema, form))} if schema else {}
        answers[key] = {"action": "accept"} | content
    return answers


def _refilled(schema: object, arguments: Mapping[str, Any]) -> Sequence[Parameter]:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return parameters_of(schema, {PREFIX + key: [text] for key, text in texts.items()})


def _texts(result: Json) -> list[str]:
    """Return the blocks of a result as texts; a picture or a sound is named, since the policy shows none."""
    texts: list[str] = []
    for block in cast("list[Json]", result.get("content") or []):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text", "")))
            case "image" | "audio":
                texts.append(f"{block.get('mimeType')}, {size(len(str(block.get('data', ''))) * 3 // 4)}")
            case _:
                texts.append(json.dumps(block, ensure_ascii=False, indent=2))
    if not texts and result.get("structuredContent") is not None:
        texts.append(json.dumps(result["structuredContent"], ensure_ascii=False, indent=2))
    return texts
