"""The table of Redis's keys in `docs/scaling.md`: the largest size of each family, from the constants of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from query.kept import MAX_BYTES
from query.usage.usage import MAX_COUNTERS_A_DAY
from shared.intents.definitions import MAX_TEXT_BYTES
from shared.intents.intent import DEAD_LETTER_LIMIT
from shared.settings import Settings
from shared.upstream.followed_config import STATE_BYTES
from workers.work import QUEUE_LIMIT

SERVERS, TOOLS, WORKERS = 1_000, 20_000, 10
"""The fleet of the table."""

KIB, MIB = 1 << 10, 1 << 20
# A family that takes more has a row of its own.
SHOWN_BYTES = 2 * MIB
# Redis allocates up to a quarter more than a value needs.
ALLOCATED = 1.25
# Measured by tests/intents/test_redis_bounds.py, with the longest names.
INTENT_BYTES, INDEX_BYTES, COUNTER_BYTES, MESSAGE_BYTES, LETTER_BYTES, LEASE_BYTES = (
    *(81 * KIB, 400, 320),
    *(2 * KIB, 16 * KIB + 64, 300),
)
# Of a tool with the longest name and an unaccepted change, without its definitions.
DEFINITION_BYTES = 1_600
# Measured by tests/sign_in/test_sign_ins.py, with the metadata of an authorization server.
SIGN_IN_BYTES, SIGNED_IN = 4 * KIB, 2
INDEXES = ("servers", "due", "changes")
_TABLE = re.compile(r"(<!-- bounds: make docs -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest size of a family of keys, for the fleet of the table."""

    keys: str
    reason: str
    size_bytes: float


def bounds() -> list[Bound]:
    """Return the bound of every family."""
    settings = Settings.model_construct()
    days, threads = settings.savings_keep_days, settings.worker_concurrency
    index_keys = ", ".join(f"`toolscale:{name}`" for name in INDEXES)
    return [
        Bound("`toolscale:checked`", "a byte, for a millisecond", INDEX_BYTES),
        Bound("`toolscale:intent:…`", f"{INTENT_BYTES // KIB} KiB a server; 2 KiB as a rule", SERVERS * INTENT_BYTES),
        Bound(index_keys, f"{INDEX_BYTES} bytes a server, each", len(INDEXES) * SERVERS * INDEX_BYTES),
        Bound(
            "`toolscale:definitions:…`",
            f"{MAX_TEXT_BYTES // KIB} KiB a server, and {DEFINITION_BYTES:,} bytes for each of {TOOLS:,} tools; "
            "60 bytes a tool as a rule",
            SERVERS * MAX_TEXT_BYTES * ALLOCATED + TOOLS * DEFINITION_BYTES,
        ),
        Bound(
            "`toolscale:kept:…`",
            "64 MiB a query process, allocated with a quarter more; they expire",
            MAX_BYTES * ALLOCATED,
        ),
        Bound(
            "`toolscale:sign-in:…`",
            f"{SIGN_IN_BYTES // KIB} KiB a sign-in, of two callers a server",
            SERVERS * SIGNED_IN * SIGN_IN_BYTES,
        ),
        Bound(
            "`toolscale:savings:…`",
            f"{MAX_COUNTERS_A_DAY:,} counters a day of {COUNTER_BYTES} bytes, for `TOOLSCALE_SAVINGS_KEEP_DAYS`; "
            "150 bytes as a rule",
            days * MAX_COUNTERS_A_DAY * COUNTER_BYTES,
        ),
        Bound("`toolscale`, `unacked…` (Celery)", f"{QUEUE_LIMIT:,} messages of 2 KiB", QUEUE_LIMIT * MESSAGE_BYTES),
        Bound("`toolscale:dead-letters`", f"{DEAD_LETTER_LIMIT:,} of 16 KiB", DEAD_LETTER_LIMIT * LETTER_BYTES),
        Bound(
            "`toolscale:lease:…`",
            f"one for each thread of {WORKERS} workers; they expire",
            WORKERS * threads * LEASE_BYTES,
        ),
        Bound("`toolscale:mcp-json`", f"{STATE_BYTES // KIB} KiB; it expires", STATE_BYTES * ALLOCATED),
        Bound(
            "`toolscale:catalogue-size:…`, `toolscale:sign-in-lease:…`, `toolscale:revision`, `toolscale:complete`, "
            "`toolscale:migration`, `_kombu.binding…`",
            "a number or a line each",
            MIB,
        ),
    ]


def render(document: str) -> str:
    """Return the document with the table as the code has it now."""
    return _TABLE.sub(lambda found: found[1] + "\n".join(_rows()) + "\n" + found[2], document)


def _rows() -> Iterator[str]:
    yield f"| keys | at most | MiB for {SERVERS:,} servers |\n|---|---|--:|"
    for bound in bounds():
        if bound.size_bytes > SHOWN_BYTES:
            yield f"| {bound.keys} | {bound.reason} | {bound.size_bytes / MIB:.1f} |"
    others = sum(bound.size_bytes for bound in bounds() if bound.size_bytes <= SHOWN_BYTES)
    yield f"| all others | | {others / MIB:.1f} |"
    yield f"| all | | {sum(bound.size_bytes for bound in bounds()) / MIB:.0f} |"
