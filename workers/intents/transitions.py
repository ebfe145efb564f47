"""How an intent changes: pure functions, the same for every store.

event ──▶ recorded ──▶ begun ──▶ committed ──(resync interval)──▶ claimed ──▶ begun …
                         │└─────▶ failed ────(backoff)───────────▶ claimed ──▶ begun …
                         └ killed: nothing is noted, the plan made at its beginning holds

A worker that dies takes all its looks with it, and one of the servers may be the cause. So those that were looked at
come back at times of chance: whoever is innocent soon gets a look without the guilty one beside it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from shared.errors import EventInvalid
from shared.events import ServerDown, ServerEvent, ServerUp
from workers.intents.store import Intent

# A resync comes after this share of its interval at the earliest, so that servers announced together drift apart.
EARLIEST_SHARE = 0.75

# Looks that died together are planned over this part of their wait, so that they do not die together again.
APART_FROM_SHARE = 0.5

_NOT_SUSPECT = {"attempts": 0, "parked": False, "early_retry_used": False}
_KEPT_ON_REPEAT = {"attempts", "parked", "early_retry_used", "failures", "internal_failures", "last_error"}

# A parked server is tried after the longest wait, and up to this much later.
PARKED_UNTIL_SHARE = 1.25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between looks.

    `first_s` after one failure, doubling up to `longest_s`. `resync_s` after a success; 0 means never again unasked.
    `spacing_s` between looks at a running server of which events say nothing new, after two that followed at once.
    """

    first_s: float
    longest_s: float
    resync_s: float = 0.0
    min_interval_s: float = 0.0

    def after_failures(self, failures: int) -> float:
        """Return the wait after this many looks in a row without success."""
        return min(self.longest_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 30))

    def after_deaths(self, looks: int) -> float:
        """Return the wait after this many looks in a row without success, of which the last may not end; jittered."""
        return self.after_failures(looks) * random.uniform(APART_FROM_SHARE, 1.0)  # noqa: S311

    def after_parking(self) -> float:
        """Return the wait before a parked server is tried: the longest, or up to a quarter more."""
        return self.longest_s * random.uniform(1.0, PARKED_UNTIL_SHARE)  # noqa: S311

    def resync_at(self, now: float) -> float | None:
        """Return when a server that was just listed is listed again, jittered; None: never."""
        return now + self.resync_s * random.uniform(EARLIEST_SHARE, 1.0) if self.resync_s else None  # noqa: S311


def recorded(before: Intent | None, event: ServerEvent, now: float, due_at: float) -> Intent:
    """Return the intent after an event; the latest recorded one decides.

    Attempts start over when a server goes down or is announced differently. Else a suspect keeps its time and needs
    no message: one that kills every worker is announced again by each that starts. Word of a change brings a suspect
    one look at once, and the next word none until a look ends.

    Raises:
        EventInvalid: it speaks of a server that was never announced.
    """
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


def _on_reference(before: Intent, event: ServerEvent) -> Intent:
    after = before.model_copy(update={"desired": before.desired + 1, "traceparent": event.traceparent})
    if isinstance(event, ServerDown):
        return after.model_copy(update={"status": "stopped", "not_before": 0.0, **_NOT_SUSPECT})
    return after


def _schedule_message(after: Intent, before: Intent | None, due_at: float) -> Intent:
    # a message that is under way keeps its time: a storm of events must not put the sweep off for ever
    if before and before.message_pending and before.due_at is not None:
        due_at = min(due_at, before.due_at)
    return after.model_copy(update={"message_pending": True, "due_at": due_at})


def is_due(intent: Intent) -> bool:
    """Return whether a look may begin: an event is not reflected yet, and a suspect's time has come."""
    return intent.is_lagging and (intent.message_pending or not intent.is_suspect)


def is_throttled_at(intent: Intent, now: float) -> bool:
    """Return whether a look is asked for and has to wait for its distance from the one before."""
    return is_due(intent) and intent.status == "running" and now < intent.not_before


def begun(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent at the beginning of a look, with a plan for the case that it never ends.

    One that would follow too soon upon the others waits: in a storm, each look answers many events.
    """
    if is_throttled_at(before, now):
        return before.model_copy(update={"message_pending": True, "due_at": before.not_before})
    if not is_due(before):
        return before.model_copy(
            update={"message_pending": False}
        )  # a message that came late: there is nothing to look for
    attempts = before.attempts + 1
    wait_s = policy.after_parking() if before.parked else policy.after_deaths(attempts + before.failures)
    # counted from when this look could have begun, not from when it did: so that two may follow at once
    not_before = max(now, before.not_before + policy.min_interval_s) if before.status == "running" else 0.0
    return before.model_copy(
        update={"message_pending": False, "attempts": attempts, "due_at": now + wait_s, "not_before": not_before}
    )


def committed(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a look that succeeded; an older one never lowers the generation."""
    clean: dict[str, object] = {"failures": 0, "internal_failures": 0, "last_error": None}
    clean |= {"listed_at": now} if before.status == "running" else {}
    after = _commit(before, generation).model_copy(update=clean)
    if after.is_lagging:
        return _retry_soon(after, now, policy)
    # the next look is a resync, and no part of what came of the event
    return _schedule(after.model_copy(update={"traceparent": None}), _next_resync(after, now, policy))


def failed(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a look at this generation that ended in an error.

    An event that came meanwhile does not wait for the backoff: it may be the one that mends the server.
    """
    after = before.model_copy(update={"failures": before.failures + 1, **_NOT_SUSPECT})
    if before.desired > generation:
        return _retry_soon(after, now, policy)
    return _schedule(after, now + policy.after_failures(after.failures))


def retries_stopped(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent of a server that is not looked at until an event asks for it; one may have done so already."""
    after = _commit(before, generation)
    return _retry_soon(after, now, policy) if after.is_lagging else _schedule(after, None)


def parked(before: Intent, generation: int, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent of a server whose looks never end, unless an event had something new to say meanwhile."""
    if not before.is_suspect:
        return _retry_soon(before, now, policy)
    after = _commit(before, generation).model_copy(update={"attempts": before.attempts, "parked": True})
    return _schedule(after, now + policy.after_parking())


def retried_later(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a look that ended for a reason of our own: as if it had not begun, but for the wait."""
    internal_failures = before.internal_failures + 1
    after = before.model_copy(update={"attempts": max(0, before.attempts - 1), "internal_failures": internal_failures})
    return _schedule(after, now + policy.after_deaths(internal_failures))


def message_lost(before: Intent) -> Intent:
    """Return the intent after its message was lost."""
    return before.model_copy(update={"message_pending": False})


def claimed(before: Intent, now: float, policy: RetryPolicy) -> Intent:
    """Return the intent after a sweep asked for its look, which waits no longer: a resync is an event of our own."""
    desired = before.desired if before.is_lagging else before.desired + 1
    wait_s = policy.first_s if before.is_suspect else policy.after_failures(before.failures + before.attempts)
    not_before = min(before.not_before, now)
    return before.model_copy(
        update={"desired": desired, "message_pending": True, "due_at": now + wait_s, "not_before": not_before}
    )


def _commit(before: Intent, generation: int) -> Intent:
    # a run from before the store was lost may come with a generation that nobody has asked for yet
    committed = max(before.committed, min(generation, before.desired))
    return before.model_copy(update={"committed": committed, **_NOT_SUSPECT})


def _retry_soon(intent: Intent, now: float, policy: RetryPolicy) -> Intent:
    return intent.model_copy(update={"due_at": now + policy.first_s})


def _schedule(intent: Intent, due_at: float | None) -> Intent:
    # a message that came during the look found the lease held and is gone: the next event must send one
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
        not_before=before.not_before if before and repeats else 0.0,
        traceparent=event.traceparent,
    )
    if before is None or not repeats:
        return announced
    return announced.model_copy(update=before.model_dump(include=_KEPT_ON_REPEAT))


def _next_resync(intent: Intent, now: float, policy: RetryPolicy) -> float | None:
    return policy.resync_at(now) if intent.status == "running" else None
