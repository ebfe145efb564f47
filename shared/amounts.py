"""Ages, waits and sizes in words, the same on the page and in the terminal."""

from __future__ import annotations

import math
import time

_KIB = 1024


def span(span_s: float) -> str:
    """Return a time in whole parts of its largest unit: 90 minutes are `1 h`."""
    whole_s = max(0, int(span_s))
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if whole_s >= seconds:
            return f"{whole_s // seconds} {unit}"
    return f"{whole_s} s"


def ago(at_s: float | None) -> str:
    """Return the age of a time in seconds since the epoch, such as `1 h ago`; `never` for None."""
    return "never" if at_s is None else f"{span(time.time() - at_s)} ago"


def ahead(at_s: float) -> str:
    """Return the wait until a time in seconds since the epoch, such as `in 1 h`, or `now`."""
    wait_s = at_s - time.time()
    return f"in {span(wait_s)}" if wait_s >= 1 else "now"


def size(size_bytes: int) -> str:
    """Return bytes as `1.2 MiB`."""
    if size_bytes < _KIB:
        return f"{size_bytes} B"
    power = min(int(math.log(size_bytes, _KIB)), 4)
    return f"{size_bytes / _KIB**power:.1f} {'KMGT'[power - 1]}iB"
