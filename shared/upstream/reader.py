"""The lenient reader of what servers send: JSON that is nearly right is repaired, an answer that is not is refused.

No call waits for an answer that cannot be read: an error takes its place, which names the wrong field and repeats the
server's words.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import structlog
from mcp_types import INTERNAL_ERROR, PARSE_ERROR, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from pydantic_core import from_json

from shared.errors import ProtocolViolation
from shared.json_rpc import LENIENT, Json, Unreadable, decoded, plain
from shared.upstream.messages import REFUSED

if TYPE_CHECKING:
    from shared.upstream.session import SessionState

RequestId = int | str

_WORDS = 200
# Requests of which a late answer is known as such.
_REMEMBERED = 1_000
_OURS = {REFUSED: True}

_BEGIN = re.compile(r'\{\s*"(?:jsonrpc|id|result|error|method)"\s*:')
_HEAD = re.compile(r'\{\s*(?:"jsonrpc"\s*:\s*"[^"]*"\s*,\s*)?"id"\s*:\s*("[^"]*"|-?\d+)\s*,')
_FRAME = re.compile(rb"content-length\s*:\s*\d+\s*$", re.IGNORECASE)
_INNER_LINE = re.compile(rb'\s*"jsonrpc"\s*:\s*"[^"]*"\s*,?\s*$')

_log = structlog.get_logger()


def parse(text: bytes) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether it was well-formed.

    Otherwise invalid UTF-8 and lone surrogates are U+FFFD, and what no number of JSON can be is null. Of a log line or
    of several messages, those parts are returned as a list that look like messages of JSON-RPC.

    Raises:
        Unreadable: there is no value.
    """
    try:
        return from_json(text, allow_inf_nan=False), True
    except ValueError:
        plain_text = decoded(text)
    try:
        return plain(LENIENT.decode(plain_text), cuts=True), False
    except (ValueError, RecursionError):
        if found := [plain(message, cuts=True) for message in _messages_within(plain_text)]:
            return found, False
    is_cut = plain_text[:1] in ("{", "[") and plain_text[-1:] not in ("}", "]")
    how = "is cut off, or is not in one line" if is_cut else "is not JSON"
    raise Unreadable(how if plain_text else "is empty")


def _messages_within(text: str) -> Iterator[object]:
    """Yield the messages of JSON-RPC in a text, until one is broken; behind other text, answers alone.

    A server may log the requests that it receives.
    """
    end = 0
    while begin := _BEGIN.search(text, end):
        is_behind = bool(text[end : begin.start()].strip())
        try:
            value, end = LENIENT.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            return
        if not (is_behind and "method" in value):
            yield value


class Reader:
    """Reads the messages of one connection to a server.

    Over a stream that requests share, `sent` notes them, and an answer belongs to one that is `pending`. The answer to
    an HTTP request comes as its response, so that request is given to `messages`.
    """

    def __init__(self, state: SessionState) -> None:
        self.pending: set[RequestId] = set()
        self._state = state
        self._sent: deque[RequestId] = deque(maxlen=_REMEMBERED)
        self._has_warned = False

    def sent(self, message: JSONRPCMessage) -> None:
        """Note a request, or that one is cancelled."""
        match message:
            case JSONRPCRequest(id=number):
                self.pending.add(number)
                self._sent.append(number)
            case JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": int() | str() as cancelled}
            ):
                self.pending.discard(cancelled)
            case _:
                pass

    def messages(self, text: bytes, request_id: RequestId | None = None) -> list[Json]:
        """Return the messages of JSON-RPC in a line, an event or a body; `request_id` is that of its HTTP request.

        What is no message is described in the session's `protocol_violation`.

        Raises:
            ServerError: the messages are too many, or no later one can be read either.
        """
        return self._read(text, request_id)[0]

    def rewritten(self, text: bytes, request_id: RequestId | None = None) -> list[bytes]:
        """Return the messages as texts that any parser reads; the same text where there is nothing to repair."""
        found, is_unchanged = self._read(text, request_id)
        return [text] if is_unchanged else [json.dumps(message).encode() for message in found]

    def _read(self, text: bytes, request_id: RequestId | None) -> tuple[list[Json], bool]:
        try:
            value, is_unchanged = parse(text)
        except Unreadable as error:
            return self._refused(text, str(error), request_id), False
        if isinstance(value, list):
            is_unchanged = False
            self._state.count(max(len(cast("list[object]", value)) - 1, 0), 0)  # a batch
        found: list[Json] = []
        for raw in cast("list[object]", value) if isinstance(value, list) else [value]:
            message = self._message(cast("Json", raw), request_id) if isinstance(raw, dict) else None
            is_unchanged = is_unchanged and message is not None and message is raw
            found += [message] if message else []
        if request_id is not None and not found:
            found = self._refused(text, "is no answer of JSON-RPC", request_id)
        elif not found and not (isinstance(value, dict) and "jsonrpc" in value):
            self._note(text)
        elif found and not is_unchanged:
            self._warn()
        found.sort(key=lambda message: "method" not in message)  # a body of HTTP ends with its answer
        return found, is_unchanged

    def _message(self, raw: Json, request_id: RequestId | None) -> Json | None:
        """Return the message with the form that JSON-RPC demands, the same one if it has that, None for no message."""
        if isinstance(raw.get("method"), str):
            return _repaired_request(raw)
        result, error = raw.get("result"), raw.get("error")
        if isinstance(result, dict) and not error:
            error = None
        if result is None and error is None and "jsonrpc" not in raw:
            return None  # a line of a log, perhaps
        number, own = self._answered(raw.get("id"), request_id), _request_id(raw.get("id"))
        stray = f"answered a request that was never sent (id {self._quote(raw.get('id'))})"
        if number is None:
            self._state.protocol_violation = self._state.protocol_violation if own in self._sent else stray  # or late
            return None
        self.pending.discard(number)
        self._state.protocol_violation = None
        if own is not None and own != number:
            return self._error(number, stray)
        is_right = raw.get("jsonrpc") == "2.0" and type(raw.get("id")) is type(number)
        if error is not None:
            is_right = is_right and _is_error(error)
            return raw if is_right else {"jsonrpc": "2.0", "id": number, "error": self._repaired_error(error)}
        if not isinstance(result, dict):
            wrong = "result: expected an object" if "result" in raw else "result: missing"
            return self._error(number, f"its answer is no JSON-RPC: {wrong}, in {self._quote(raw)}")
        return raw if is_right and "error" not in raw else {"jsonrpc": "2.0", "id": number, "result": result}

    def _answered(self, number: object, request_id: RequestId | None) -> RequestId | None:
        """Return the request that an answer with this id is for, None for none; an id that fits none is the only one's.

        The late answer to a cancelled request is for none.
        """
        if request_id is not None:
            return request_id
        known = _request_id(number)
        if known in self.pending:
            return known
        is_late = known in self._sent
        return next(iter(self.pending)) if len(self.pending) == 1 and not is_late else None

    def _refused(self, text: bytes, reason: str, request_id: RequestId | None) -> list[Json]:
        """Return an error in place of an answer that cannot be read, or nothing for another text."""
        state, line = self._state, text.strip()
        if request_id is None:
            if _FRAME.match(line):
                framed = "frames its messages with Content-Length; over stdio, MCP sends each message as one line"
                raise state.fail(ProtocolViolation(state.server_id, framed))
            if _INNER_LINE.match(line):
                several = "writes a message over several lines; over stdio, MCP sends each message as one line"
                raise state.fail(ProtocolViolation(state.server_id, several))
            self._note(text)
            if not line.startswith((b'{"', b'[{"')):
                return []  # many servers print a banner, or a log
            head = _HEAD.match(line.decode("utf-8", "replace"))
            number = json.loads(head[1]) if head else None
            request_id = self._answered(number, None)
            if request_id is None and number is None and self.pending:
                broken = f"sent an answer that {reason}: {self._begin(text)}"
                raise state.fail(ProtocolViolation(state.server_id, broken))
            if request_id is None:
                return []
        self.pending.discard(request_id)
        return [self._error(request_id, f"its answer {reason}: {self._begin(text)}")]

    def _error(self, number: RequestId, reason: str) -> Json:
        return {"jsonrpc": "2.0", "id": number, "error": {"code": PARSE_ERROR, "message": reason, "data": _OURS}}

    def _repaired_error(self, raw: object) -> Json:
        """Return the error with a code and a message, and in its data what has another form."""
        error: Json = cast("Json", raw) if isinstance(raw, dict) else {}
        code, message = _request_id(error.get("code")), error.get("message")
        if isinstance(code, int) and isinstance(message, str):
            return {**error, "code": code}
        wrong = "error.message: expected a text"
        if not error:
            wrong = "error: expected an object"
        elif not isinstance(code, int):
            wrong = f"error.code: expected a whole number, got {self._quote(error.get('code'))}"
        whole = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
        said = message if isinstance(message, str) else whole
        reason = f"answers with an error: {self._state.quote(said)} ({wrong})"
        data = {key: error[key] for key in ("code", "data") if key in error}
        return {"code": code if isinstance(code, int) else INTERNAL_ERROR, "message": reason, "data": data | _OURS}

    def _note(self, text: bytes) -> None:
        self._state.protocol_violation = f"wrote what is not a JSON-RPC message: {self._begin(text)}"

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("server_message_repaired", server=self._state.server_id)

    def _begin(self, text: bytes) -> str:
        return self._state.quote(text[:1000])

    def _quote(self, value: object) -> str:
        return self._state.line(json.dumps(value, ensure_ascii=False), _WORDS)


def is_refused(message: JSONRPCMessage) -> bool:
    """Return whether a message is the reader's own, in place of an answer that it could not accept."""
    data = message.error.data if isinstance(message, JSONRPCError) else None
    return isinstance(data, dict) and REFUSED in data


def _request_id(value: object) -> RequestId | None:
    """Return the id as our requests have it: a text or a float of a whole number is that number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}(?:\.0+)?", value):
        return int(float(value)) if "." in value else int(value)
    return value if isinstance(value, int | str) else None


def _repaired_request(raw: Json) -> Json:
    """Return a request or notification of the server with the form that JSON-RPC demands."""
    parts = {"jsonrpc": "2.0", "method": raw["method"]}
    number, params = raw.get("id"), raw.get("params")
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if type(number) in (int, str):  # else nothing can be answered
        parts["id"] = number
    if isinstance(params, dict):
        parts["params"] = params
    return raw if parts == raw and type(raw.get("id")) is type(parts.get("id")) else parts


def _is_error(error: object) -> bool:
    parts = cast("Json", error) if isinstance(error, dict) else {}
    return type(parts.get("code")) is int and isinstance(parts.get("message"), str)
