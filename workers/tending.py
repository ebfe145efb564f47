"""What the index needs from time to time, beside looks at servers."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from workers.dependencies import Dependencies
from workers.rebuild import rebuild_if_lost

# An edition that was in service is kept for this long: whoever still searches it has noticed by then.
RETIRED_AFTER_S = 600.0


def tend_index(deps: Dependencies, ask_migration: Callable[[], None]) -> None:
    """Rebuild what was lost, have the coming edition worked on, and remove editions that nobody searches any more.

    Raises:
        IndexUnavailable: the index does not answer.
        IntentsUnavailable: the intents do not.
    """
    if deps.editions is None:
        return
    if deps.own_model:
        deps.own_model.ask_once()
    rebuild_if_lost(deps)
    store = deps.editions.store
    if store.service().coming:
        ask_migration()
    elif deps.intents.migration():
        deps.intents.note_migration(None)  # it was given up, or the model in service is wanted again
    for name in store.drop_retired(RETIRED_AFTER_S):
        structlog.get_logger().info("edition_dropped", collection=name)
