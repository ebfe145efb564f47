"""Items that no worker can decode, for the list that is Celery's queue in Redis, each with how its refusal begins."""

from __future__ import annotations

GARBAGE: dict[str, tuple[str | bytes, str]] = {
    "text": ("not JSON", "expected JSON"),
    "no UTF-8": (b"\xff\xfe", "expected UTF-8"),
    "a list": ("[]", "expected a Celery message"),
    "a number": ("42", "expected a Celery message"),
    "nested deeply": ("[" * 200_000, "expected JSON: it is nested too deeply"),
    "a typed value that is none": ('{"__type__": "uuid", "__value__": 5}', "expected JSON"),
    "no properties": ('{"body": "", "headers": {}}', "expected a Celery message"),
    "no delivery tag": ('{"body": "", "headers": {}, "properties": {}}', "expected a Celery message"),
}
