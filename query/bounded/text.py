"""JSON as answers carry it: no blank, no escape that a model would have to read past."""

from __future__ import annotations

import json


def json_text(value: object) -> str:
    """Return a JSON value as the shortest text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
