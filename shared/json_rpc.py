"""Texts of JSON-RPC from outside, read leniently, and the requests of clients. Standard library only: it loads fast."""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

Json = dict[str, Any]

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
MAX_DIGITS = 4_300
"""Digits of an integer; Python converts no longer one."""

# The SDK reads no deeper ones; a definition that is nested as deep is left out of a listing anyway.
_MAX_DEPTH = 150
_BOM = b"\xef\xbb\xbf"
_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d{1,18}(?=\s*[,}]))')


class Unreadable(ValueError):
    """A text is no JSON; the message says how."""


class RequestRefused(ValueError):
    """The message of a client is none of JSON-RPC, or cannot be read; `answer` is the error for the client."""

    def __init__(self, code: int, reason: str, request_id: object = None) -> None:
        super().__init__(reason)
        known = request_id if type(request_id) in (int, str) else None
        self.answer: Json = {"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": reason}}


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_DIGITS else None


LENIENT = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_int=_integer)


def decoded(text: bytes) -> str:
    """Return the text, with U+FFFD for what is not of its encoding, which is UTF-8 unless it looks like another."""
    return text.removeprefix(_BOM).decode(json.detect_encoding(text.removeprefix(_BOM)), "replace").strip()


def plain(value: object, depth: int = 0, *, cuts: bool = False) -> object:
    """Return the value as any parser can read it: U+FFFD for lone surrogates, null for what JSON has no number for.

    With `cuts`, what is nested too deeply is U+FFFD.

    Raises:
        Unreadable: it is nested too deeply.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, list | dict):
        return value
    if depth == _MAX_DEPTH:
        if cuts:
            return "\ufffd"
        raise Unreadable(f"is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [plain(item, depth + 1, cuts=cuts) for item in cast("list[object]", value)]
    parts = cast("dict[str, object]", value)
    return {str(plain(key)): plain(item, depth + 1, cuts=cuts) for key, item in parts.items()}


def read_request(text: bytes) -> Json:
    """Return a message of a client: a request, a notification, or an answer.

    Raises:
        RequestRefused: it is none.
    """
    plain_text = decoded(text)
    try:
        value = plain(LENIENT.decode(plain_text))
    except (ValueError, RecursionError) as error:
        head = _ID.search(plain_text.partition('"params"')[0])
        reason = str(error) if isinstance(error, Unreadable) else "is not valid JSON"
        number = plain(LENIENT.decode(head[1])) if head else None
        raise RequestRefused(PARSE_ERROR, f"the message {reason}", number) from None
    return checked_request(value)


def checked_request(value: object) -> Json:
    """Return the message if it is one of JSON-RPC; an id as a float of a whole number is that number.

    Raises:
        RequestRefused: it is none.
    """
    if not isinstance(value, dict):
        got = "a batch; send each message by itself" if isinstance(value, list) else "something else"
        raise RequestRefused(INVALID_REQUEST, f"expected a message of JSON-RPC, which is an object, got {got}")
    message = cast("Json", value)
    number = message.get("id")
    if isinstance(number, float) and number.is_integer():
        message["id"] = number = int(number)
    is_answer = "method" not in message and ("result" in message or "error" in message)
    wrong = ""
    if message.get("jsonrpc") != "2.0":
        wrong = 'jsonrpc: expected "2.0"'
    elif "id" in message and type(number) not in (int, str):
        wrong = "id: expected a whole number or a text"
    elif not is_answer and not isinstance(message.get("method"), str):
        wrong = "method: expected a text"
    elif not is_answer and not isinstance(message.get("params"), dict | None):
        wrong = "params: expected an object"
    if wrong:
        raise RequestRefused(INVALID_REQUEST, f"expected a message of JSON-RPC; {wrong}", number)
    return message
