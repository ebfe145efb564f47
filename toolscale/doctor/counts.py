"""The check of `toolscale doctor --audit`: stored token counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from shared.catalog import TokenSum
from shared.errors import ConfigInvalid, IndexHeld, IndexUnavailable, IntentsUnavailable
from shared.index import open_store
from shared.index.tools import ToolIndex
from shared.intents.intents import open_intents
from shared.settings import Settings
from toolscale.doctor.finding import Finding, ok, problem, warning
from workers.upkeep.audit import Difference, differences


def check_counts(settings: Settings) -> Iterator[Finding]:
    """Compare the token counts in every server's record with those of its tools."""
    if not settings.qdrant_url and not (settings.data_dir / "index").exists():
        return
    try:
        with closing(open_store(settings)) as store, closing(open_intents(settings)) as intents:
            active = store.versions().active
            lagging = {intent.server_id for intent in intents.intents() if intent.is_lagging}
            if active:
                yield from _compared(store.index(active), lagging)
    except IndexHeld:
        advice = "look for counts_differ in its log, or stop it and run `toolscale doctor --audit` again"
        yield warning("counts", "not compared: a Toolscale process uses the index and audits it itself", advice)
    except (ConfigInvalid, IndexUnavailable, IntentsUnavailable) as error:
        yield problem("counts", f"not compared: {error}", "see the findings about index and servers")


def _compared(index: ToolIndex, lagging: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each difference; a lagging server's tools may be older than its record."""
    equal = skipped = 0
    for server_id in sorted(index.revisions()):
        found = None if server_id in lagging else differences(server_id, index)
        equal, skipped = equal + (found == []), skipped + (found is None)
        yield from map(_finding, found or [])
    waiting = f"; {skipped} not compared, since they wait for a reconciliation" if skipped else ""
    yield ok("counts", f"{equal} records equal the sums over their tools{waiting}")


def _finding(difference: Difference) -> Finding:
    found = (
        f"{difference.server_id}: its record states {_text(difference.stated)}, the index counts "
        f"{_text(difference.counted)} ({difference.encoding}, {difference.form} form)"
    )
    return problem("counts", found, "keep a worker or `toolscale serve` running: its audit counts the tools again")


def _text(total: TokenSum) -> str:
    return f"{total.tokens:,} tokens of {total.tools:,} tools"
