"""Servers whose tools cannot be listed now: which of them concern a request, and what an answer says of each.

A model that does not hear of them concludes that there is no such tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from query.named import is_named, terms_of
from shared.errors import NEEDS_SIGN_IN
from shared.upstream.session import LAST_WORDS

if TYPE_CHECKING:
    from shared.catalog import ServerRecord, ServerState

# More would crowd out the tools of a short answer.
SHOWN = 3
REASON_CHARACTERS = 160
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')
_UNREACHED: tuple[ServerState, ...] = ("failing", "quarantined", "sign-in")


def absence(record: ServerRecord) -> str:
    """Return why no tool of a server can be called, as the rest of a sentence: its state, the reason, what helps."""
    server_id = record.server_id
    match record.state:
        case "sign-in":
            return f"{NEEDS_SIGN_IN}; ask the user to run `toolscale login {server_id}`"
        case "installing" | "waiting":
            return "is still being listed; ask again in a few seconds"
        case "stopped":
            return "is stopped, so its tools cannot be called now"
        case _:
            # without the server's own words, which would be read as Toolscale's
            reason = _QUOTED.sub('"…"', (record.last_error or "").partition(LAST_WORDS)[0])
            reason = " ".join(reason.removeprefix(f"{server_id}: ").split()).rstrip(".")
            shown = f" ({reason[:REASON_CHARACTERS]})" if reason else ""
            state = "is quarantined" if record.state == "quarantined" else "cannot be listed"
            return f"{state}{shown} and is retried by itself; `toolscale show {server_id}` says more"


def absences(absent: Sequence[ServerRecord], texts: Iterable[str], *, all_unreached: bool) -> list[str]:
    """Return sentences on those of these servers that the texts name, by all words of the id or the declared name.

    With `all_unreached`, also on the others that should be there: not those that are stopped or being listed.
    """
    asked = terms_of(" ".join(texts))
    named = [record for record in absent if is_named(record, asked)]
    unreached = [record for record in absent if record.state in _UNREACHED and record not in named]
    found = [*named, *(unreached if all_unreached else ())]
    rest = len(found) - SHOWN
    more = [f"{rest} more servers have no tools now; `toolscale ls` shows them."] if rest > 0 else []
    return [*(f"{record.server_id} {absence(record)}." for record in found[:SHOWN]), *more]
