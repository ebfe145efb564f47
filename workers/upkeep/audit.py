"""The audit: compare the sums in a server's record with the exact sums over its tools.

The sum of the counts of all tools in a scope, as the index returns it, defines every total. The sums in the server
records are a cache of it. A digest decides on each write, so no reconciliation repairs a wrong count of an unchanged
tool. If a server differs, the audit clears the digests of its tools; the next reconciliation counts them again.
Until then search finds them. A replica may have copied a wrong count, so its digests are cleared too.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import structlog

from shared.catalog import ENCODINGS, FORMS, Encoding, Form, Scope, TokenSum
from shared.errors import EventInvalid, LeaseHeld
from shared.index.tools import ToolIndex
from shared.intents.intents import Intents
from workers.indexing.records import invalidate_record

SOURCE = "toolscale/audit"
# A sweep starts no comparison after this time, so that an index that answers slowly does not delay its other work.
SLICE_S = 1.0

AuditResult = Literal["equal", "differs", "skipped"]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Difference:
    """A sum in a server's record, and the other sum that the tools in the index have."""

    server_id: str
    encoding: Encoding
    form: Form
    stated: TokenSum
    counted: TokenSum


def differences(server_id: str, index: ToolIndex) -> list[Difference] | None:
    """Return the differences between a server's record and its tools; None while its tools are being written.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    record = index.server(server_id)
    if record is None or not record.is_listed or not record.catalog_digest:
        return None
    scope, found = Scope(servers=frozenset({server_id}), status=record.status), list[Difference]()
    for encoding, form in itertools.product(ENCODINGS, FORMS):
        tokens = record.model_tokens if form == "model" else record.tokens
        uncounted = len(record.uncounted.get(encoding, ()))
        stated = TokenSum(tokens.get(encoding, 0), record.tool_count - uncounted, uncounted)
        counted = index.token_sum(scope, encoding, form)
        if stated != counted:
            found.append(Difference(server_id, encoding, form, stated, counted))
    return found if index.server(server_id) == record else None


def audit(server_id: str, index: ToolIndex, intents: Intents) -> AuditResult:
    """Compare a server; if it differs, log the differences and request that its tools are counted again.

    A server with a held lease or a due reconciliation is skipped. Safe to repeat and to interrupt.

    Raises:
        IndexUnavailable: the index does not answer.
        IntentsUnavailable: the intent store does not answer.
    """
    found = differences(server_id, index)
    if not found:
        return "skipped" if found is None else "equal"
    try:
        with intents.held(server_id):  # compared again, while no other run can write its tools
            intent = intents.intent(server_id)
            # after a model change, tools may be older than their record until their reconciliation
            found = None if intent and intent.is_lagging else differences(server_id, index)
            if not found:
                return "skipped" if found is None else "equal"
            for difference in found:
                _log.warning(
                    "counts_differ",
                    server=server_id,
                    encoding=difference.encoding,
                    form=difference.form,
                    stated=difference.stated.tokens,
                    counted=difference.counted.tokens,
                    tools_stated=difference.stated.tools,
                    tools_counted=difference.counted.tools,
                )
            # first: from then on, every reconciliation counts the tools again, also without the rest
            index.clear_digests({state.digest for state in index.tool_states(server_id).values()})
            with suppress(EventInvalid):  # the store has no such server; its next announcement counts the tools
                intents.request(server_id, SOURCE)
            invalidate_record(index.server(server_id), index)
            return "differs"
    except LeaseHeld:
        return "skipped"


class AuditRounds:
    """Audits all servers in rounds: at most one server a second of sweeps.

    `interval_s` are the seconds between two sweeps. For one thread at a time.
    """

    def __init__(self, interval_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._waiting: list[str] = []
        self._allowed = 0.0

    def continue_round(self, index: ToolIndex, intents: Intents) -> None:
        """Audit the servers of one sweep.

        Raises:
            IndexUnavailable: the index does not answer.
            IntentsUnavailable: the intent store does not answer.
        """
        deadline_s = self._clock_s() + SLICE_S
        self._allowed += self._interval_s
        most = int(self._allowed)
        self._allowed -= most
        if most and not self._waiting:
            self._waiting = list(index.revisions())
            random.shuffle(self._waiting)  # processes that start together audit different servers
        for _ in range(min(most, len(self._waiting))):
            audit(self._waiting.pop(), index, intents)
            if self._clock_s() > deadline_s:
                return
