"""What the index remembers of a server after each kind of look."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shared.catalog import ENCODINGS, FEATURES_VERSION, Encoding, Listing, Scope, ServerRecord, catalog_digest
from shared.index.contract import ToolIndex
from workers.dependencies import Dependencies
from workers.intents.store import Intent


def listed_record(
    listing: Listing, digests: Mapping[str, str], intent: Intent, before: ServerRecord | None, deps: Dependencies
) -> ServerRecord:
    """Return the record after a complete listing whose tools the index already holds.

    Sums are taken from the index again unless the record before was taken over this very set of definitions,
    so a run that was killed between writing tools and writing the record leaves no wrong sum behind.
    """
    now_held = catalog_digest(digests)
    known = before if before and before.is_listed and before.catalog_digest == now_held else None
    tokens, uncounted = (known.tokens, known.uncounted) if known else _sums(deps.index, intent.server_id)
    record = _new_record(intent, known.revision if known else 0).model_copy(
        update={
            "declared_name": listing.declared_name,
            "protocol_version": listing.protocol_version,
            "tool_count": len(digests),
            "tokens": tokens,
            "uncounted": uncounted,
            "rejected": listing.rejected,
            "features_version": FEATURES_VERSION,
            "catalog_digest": now_held,
            "last_listed_at": time.time(),
        }
    )
    if known and _visible_to_readers(record) == _visible_to_readers(known):
        return record  # with the revision before: no reader has to read it again
    return record.model_copy(update={"revision": deps.intents.next_revision()})


def unlisted_record(intent: Intent, deps: Dependencies) -> ServerRecord:
    """Return the record of a server that was announced and not listed yet."""
    return _new_record(intent, deps.intents.next_revision())


def stopped_record(intent: Intent, deps: Dependencies) -> ServerRecord:
    """Return the record of a server that is down: what was known, and that it is not counted."""
    return known_record(intent, deps).model_copy(
        update={
            "status": "stopped",
            "next_reconcile_at": None,
            "groups": intent.announcement.groups,
            "source": intent.source,
            "generation": intent.desired,
            "revision": deps.intents.next_revision(),
        }
    )


def is_current(record: ServerRecord | None, groups: frozenset[str], declared_name: str) -> bool:
    """Return whether all tools of the server are known to be running, in these groups and under this name."""
    return bool(
        record
        and record.catalog_digest
        and record.status == "running"
        and record.groups == groups
        and record.declared_name == declared_name
    )


def invalidate_record(record: ServerRecord | None, deps: Dependencies, declared_name: str | None = None) -> None:
    """Note, before status, groups or declared name of tools change, that the record no longer speaks for them.

    A run that is killed after some of its writes then leaves a record that the next look does not trust. Another
    `declared_name` is noted with it: tools that are embedded anew from the index are embedded under that one.
    """
    if record and (record.catalog_digest or record.declared_name != (declared_name or record.declared_name)):
        renamed = {} if declared_name is None else {"declared_name": declared_name}
        deps.index.put_server(record.model_copy(update={"catalog_digest": "", **renamed}))


def known_record(intent: Intent, deps: Dependencies) -> ServerRecord:
    """Return what the index remembers of the server, or what its announcement says of one never listed."""
    return deps.index.server(intent.server_id) or unlisted_record(intent, deps)


def _visible_to_readers(record: ServerRecord) -> ServerRecord:
    """Return what readers take from a record: all but when and at which generation it was confirmed."""
    return record.model_copy(update={"generation": 0, "last_listed_at": None})


def _new_record(intent: Intent, revision: int) -> ServerRecord:
    """Return a record of what the event said."""
    return ServerRecord(
        server_id=intent.server_id,
        endpoint=intent.announcement.endpoint,
        groups=intent.announcement.groups,
        labels=intent.announcement.labels,
        source=intent.source,
        generation=intent.desired,
        revision=revision,
    )


def _sums(index: ToolIndex, server_id: str) -> tuple[dict[Encoding, int], dict[Encoding, tuple[str, ...]]]:
    scope = Scope(servers=frozenset({server_id}))
    tokens: dict[Encoding, int] = {}
    uncounted: dict[Encoding, tuple[str, ...]] = {}
    for encoding in ENCODINGS:
        total = index.token_sum(scope, encoding)
        tokens[encoding] = total.tokens
        if total.uncounted:
            names = index.uncounted(scope, encoding, total.uncounted)
            uncounted[encoding] = tuple(name.removeprefix(f"{server_id}:") for name in names)
    return tokens, uncounted
