"""How an intent changes: pure functions, the same for every store.

event ──▶ recorded ──▶ begun ──▶ committed ──(resync interval)──▶ claimed ──▶ begun …
                         │└─────▶ failed ────(backoff)───────────▶ claimed ──▶ begun …
                         └ killed: no transition; the schedule made by `begun` holds

A worker that dies ends all its reconciliations, and one of the servers may be the cause. Those servers return at
random times, so that an innocent server is soon reconciled without the guilty one in the same worker.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from shared.catalog import DOCKER_SOURCE, KUBERNETES_SOURCE, OPERATOR_SOURCE, TOOLHIVE_SOURCE, Transport, owner_of
from shared.errors import EventInvalid
from shared.events import ServerChanged, ServerDown, ServerEvent, ServerUp
from shared.intents.intent import Intent

# A resync comes after at least this share of its interval, so that servers announced together drift apart.
EARLIEST_SHARE = 0.75

# Reconciliations that died together are spread over this part of their wait, so that they do not die together again.
APART_FROM_SHARE = 0.5

_NOT_SUSPECT = {"attempts": 0, "parked": False, "early_retry_used": False}
_WATCHERS = (DOCKER_SOURCE, KUBERNETES_SOURCE, TOOLHIVE_SOURCE)

_KEPT_ON_REPEAT = {"conflict", "attempts", "parked", "early_retry_used", "failures", "internal_failures", "last_error"}

# A parked server is retried after one to this many times the longest wait.
PARKED_UNTIL_SHARE = 1.25

# Another process may give its messages more time than this one: release 0.2 had a setting with this bound.
LONGEST_MESSAGE_S = 3_600.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between reconciliations of one server.

    `first_s` after one failure, doubling up to `longest_s`. `resync_s` after a success, for a stdio server
    `stdio_resync_s`; 0 disables the resync.
    `min_interval_s` between reconciliations of a running server without a new announcement; two may follow at once.
    """

    first_s: float
    longest_s: float
    resync_s: float = 0.0
    stdio_resync_s: float = 0.0
    min_interval_s: float = 0.0

    @property
    def longest_wait_s(self) -> float:
        """Return the longest time from now for which any transition schedules a reconciliation."""
        retries_s = max(self.first_s, PARKED_UNTIL_SHARE * self.longest_s, LONGEST_MESSAGE_S)
        return max(retries_s, self.resync_s, self.stdio_resync_s, self.min_interval_s)

    def after_failures(self, failures: int) -> float:
        """Return the wait after this many failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 30))

    def after_deaths(self, attempts: int) -> float:
        """Return the jittered wait after this many attempts without success, of which the last may never end."""
        return self.after_failures(attempts) * random.uniform(APART_FROM_SHARE, 1.0)  # noqa: S311

    def after_parking(self) -> float:
        """Return the wait before a parked server is retried: the longest, plus up to a quarter."""
        return self.longest_s * random.uniform(1.0, PARKED_UNTIL_SHARE)  # noqa: S311

    def resync_at(self, now: float, transport: Transport) -> float | None:
        """Return the jittered time of the next resync of a server that was just listed; None: never."""
        interval_s = self.stdio_resync_s if transport == "stdio" else self.resync_s
        return now + interval_s * random.uniform(EARLIEST_SHARE, 1.0) if interval_s else None  # noqa: S311


def recorded(before: Intent | None, event: ServerEvent, now: float, due_at: float) -> Intent:
    """Return the intent after an event; the latest recorded event wins.

    Attempts start over when a server stops or its announcement changes. Otherwise a suspect keeps its scheduled time:
    every restarting worker announces it again, which must not reset the backoff. A `changed` event triggers one
    immediate reconciliation of a suspect; later ones wait until it ends.

    Raises:
        EventInvalid: the event refers to a server that was never announced, or that belongs to another sender.
    """
    check_owner(before, event)
    if isinstance(event, ServerUp):
        after = _on_announcement(before, event, now)
    elif before is None:
        raise EventInvalid("data.server_id", f"no server {event.data.server_id!r} was ever announced")
    else:
        after = _on_reference(before, event)
    if after.is_suspect and after.due_at is not None:
        if isinstance(event, ServerUp) or after.early_retry_used:
            return after
        after = after.model_copy(update={"early_retry_used": True})
    return _schedule_message(after, before, due_at)


def check_owner(before: Intent | None, event: ServerEvent) -> None:
    """Reject an event that may not change this server; a `changed` event only requests a reconciliation.

    A running server belongs to the sender that announced it, until a `down` event: the operator's file, a watcher, a
    producer with a token of its own, or all other senders together. The file may change every server, and senders
    without a token of their own may take down every server but those of the file.

    The source of a recorded event names its sender: `Emitter.accept` rejects events from outside with a reserved
    source. The intent keeps the source, so every process that accepts events knows the owner.

    Raises:
        EventInvalid: the server belongs to another sender.
    """
    if before is None or before.status == "stopped" or isinstance(event, ServerChanged):
        return
    owner, sender = _namespace(before.source), _namespace(event.source)
    if sender in (owner, OPERATOR_SOURCE):
        return
    if owner == OPERATOR_SOURCE:
        reason = f"the operator's mcp.json names the server {before.server_id!r}, so only that file changes it"
        raise EventInvalid("data.server_id", reason)
    if sender is not None or not isinstance(event, ServerDown):
        reason = f"the server {before.server_id!r} belongs to another producer until its `down` event"
        raise EventInvalid("data.server_id", reason)


def _namespace(source: str) -> str | None:
    """Return the owner that events of this source come from; None: a sender without a token of its own."""
    return source if owner_of(source) or source.startswith(_WATCHERS) else None


def refused(before: Intent, event: ServerUp) -> Intent:
    """Return the intent with a note of another owner's announcement; the same one changes nothing again."""
    return before.model_copy(
        update={"conflict": f"an announcement by {event.source} was refused: another owner has it"}
    )


def _on_reference(before: Intent, event: ServerEvent) -> Intent:
    after = before.model_copy(update={"desired": before.desired + 1, "traceparent": event.traceparent})
    if isinstance(event, ServerDown):
        return after.model_copy(update={"status": "stopped", "not_before": 0.0, "conflict": None, **_NOT_SUSPECT})
    return after


def _schedule_message(after: Intent, before: Intent | None, due_at: float) -> Intent:
    # a pending message keeps its time: a storm of events must not postpone the sweep for ever
    if before and before.message_pending and before.due_at is not None:
        due_at = min(due_at, before.due_at)
    return after.model_copy(update={"message_pending": True, "due_at": due_at})


def within_policy(stored: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent with `now` for each time that is too far ahead: the clock went back since it was stored."""
    changes = dict[str, object]()
    if stored.not_before > now + policy.min_interval_s:
        changes = {"not_before": now}
    is_postponed_to_it = bool(changes) and stored.due_at == stored.not_before
    if stored.due_at is not None and (is_postponed_to_it or stored.due_at > now + policy.longest_wait_s):
        changes["due_at"] = now
    return stored.model_copy(update=changes) if changes else stored


def is_due(intent: Intent) -> bool:
    """Return whether a reconciliation may begin: the intent lags, and a suspect was claimed by a sweep."""
    return intent.is_lagging and (intent.message_pending or not intent.is_suspect)


def is_throttled_at(intent: Intent, now: float) -> bool:
    """Return whether a requested reconciliation must wait for the minimum interval."""
    return is_due(intent) and intent.status == "running" and now < intent.not_before


def begun(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent at the beginning of a reconciliation, scheduled for the case that it never ends.

    Within the minimum interval it is postponed instead: in a storm, each reconciliation covers many events.
    """
    if is_throttled_at(before, now):
        return before.model_copy(update={"message_pending": True, "due_at": before.not_before})
    if not is_due(before):
        return message_lost(before)  # a late message: the index is up to date
    attempts = before.attempts + 1
    wait_s = policy.after_parking() if before.parked else policy.after_deaths(attempts + before.failures)
    # counted from the earliest possible begin, not from the actual one, so that two may follow at once
    not_before = max(now, before.not_before + policy.min_interval_s) if before.status == "running" else 0.0
    return before.model_copy(
        update={"message_pending": False, "attempts": attempts, "due_at": now + wait_s, "not_before": not_before}
    )


def committed(before: Intent, generation: int, listed: Mapping[str, object], now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a successful reconciliation; an older one never lowers the generation.

    `listed` has the fields that follow from its listing; those with None stay.
    """
    clean: dict[str, object] = {"failures": 0, "internal_failures": 0, "last_error": None}
    clean |= {"listed_at": now} if before.status == "running" else {}
    clean |= {name: value for name, value in listed.items() if value is not None}
    after = _commit(before, generation).model_copy(update=clean)
    if after.is_lagging:
        return _retry_soon(after, now, policy)
    # the next reconciliation is a resync, and not part of the event's trace
    return _schedule(after.model_copy(update={"traceparent": None}), _next_resync(after, now, policy))


def failed(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a reconciliation of this generation that ended in an error.

    A newer event does not wait for the backoff: it may report that the server works again.
    """
    after = before.model_copy(update={"failures": before.failures + 1, **_NOT_SUSPECT})
    if before.desired > generation:
        return _retry_soon(after, now, policy)
    return _schedule(after, now + policy.after_failures(after.failures))


def retries_stopped(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent of a server that waits for the next event, which may already be recorded."""
    after = _commit(before, generation)
    return _retry_soon(after, now, policy) if after.is_lagging else _schedule(after, None)


def parked(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the parked intent of a suspect; a server that a newer event cleared is retried soon."""
    if not before.is_suspect:
        return _retry_soon(before, now, policy)
    after = _commit(before, generation).model_copy(update={"attempts": before.attempts, "parked": True})
    return _schedule(after, now + policy.after_parking())


def retried_later(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after an internal failure: the attempt does not count, and the next one waits."""
    internal_failures = before.internal_failures + 1
    after = before.model_copy(update={"attempts": max(0, before.attempts - 1), "internal_failures": internal_failures})
    return _schedule(after, now + policy.after_deaths(internal_failures))


def message_lost(before: Intent) -> Intent:
    """Return the intent without a pending message."""
    return before.model_copy(update={"message_pending": False})


def claimed(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a sweep requested its reconciliation; a resync raises the desired generation."""
    desired = before.desired if before.is_lagging else before.desired + 1
    wait_s = policy.first_s if before.is_suspect else policy.after_failures(before.failures + before.attempts)
    not_before = min(before.not_before, now)
    return before.model_copy(
        update={"desired": desired, "message_pending": True, "due_at": now + wait_s, "not_before": not_before}
    )


def restored(stored: Intent, now: float) -> Intent:
    """Return the intent of a backup as of now: with a due reconciliation, unless the server is stopped."""
    is_down = stored.status == "stopped"
    return Intent(
        server_id=stored.server_id,
        status=stored.status,
        announcement=stored.announcement,
        source=stored.source,
        desired=stored.desired if is_down else stored.desired + 1,
        committed=stored.desired,
        announced_at=now,
        due_at=None if is_down else 0.0,  # in the past by any clock
    )


def _commit(before: Intent, generation: int) -> Intent:
    # a run from before the store was lost may commit a generation that was not requested yet
    committed = max(before.committed, min(generation, before.desired))
    return before.model_copy(update={"committed": committed, **_NOT_SUSPECT})


def _retry_soon(intent: Intent, now: float, policy: RetryPolicy) -> Intent:
    return intent.model_copy(update={"due_at": now + policy.first_s})


def _schedule(intent: Intent, due_at: float | None) -> Intent:
    # a message during the run found the lease held and was dropped: the next event must send one
    return intent.model_copy(update={"message_pending": False, "due_at": due_at})


def _on_announcement(before: Intent | None, event: ServerUp, now: float) -> Intent:
    repeats = before is not None and before.status == "running" and before.announcement == event.data
    announced = Intent(
        server_id=event.data.server_id,
        status="running",
        announcement=event.data,
        source=event.source,
        desired=(before.desired if before else 0) + 1,
        committed=before.committed if before else 0,
        message_pending=before.message_pending if before else False,
        due_at=before.due_at if before else None,
        announced_at=now,
        listed_at=before.listed_at if before else None,
        catalogue_id=before.catalogue_id if before else "",
        unaccepted=before.unaccepted if before else 0,
        not_before=before.not_before if before and repeats else 0.0,
        traceparent=event.traceparent,
    )
    if before is None or not repeats:
        return announced
    return announced.model_copy(update=before.model_dump(include=_KEPT_ON_REPEAT))


def _next_resync(intent: Intent, now: float, policy: RetryPolicy) -> float | None:
    return policy.resync_at(now, intent.announcement.transport) if intent.status == "running" else None
