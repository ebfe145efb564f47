"""How the first looks of `toolscale serve` go, for whoever started it: a cold start of many servers takes a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

from query.catalogue import Catalogue
from shared.catalog import Scope
from shared.errors import IndexUnavailable, IntentsUnavailable
from toolscale.client.emit import EmitResult, emit_result
from toolscale.client.wait import ReconcileResult, patience_s, wait_for
from toolscale.embedded.composition import Embedded
from workers.intents.store import Intent

EVERY_S = 5.0

Print = Callable[[str], None]
"""Show people a line."""


@contextmanager
def report_startup(embedded: Embedded, catalogue: Catalogue, print_line: Print) -> Generator[None]:
    """Say, from a thread, how many servers are listed: at most every EVERY_S seconds, and once all were looked at."""
    stopped = threading.Event()
    arguments = (embedded, catalogue, print_line, stopped)
    thread = threading.Thread(target=_report, args=arguments, name="toolscale startup report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=10)


def _report(embedded: Embedded, catalogue: Catalogue, print_line: Print, stopped: threading.Event) -> None:
    try:
        looks = _wait_for_first_listings(embedded, print_line, stopped)
        if looks and not stopped.is_set():
            baseline = catalogue.ledger.baseline(Scope(), catalogue.encoding)
            for line in summary(looks, baseline.tools, baseline.tokens):
                print_line(line)
    except (IntentsUnavailable, IndexUnavailable):
        return  # the log says so, and `toolscale ls` tells the rest


def _wait_for_first_listings(embedded: Embedded, print_line: Print, stopped: threading.Event) -> list[ReconcileResult]:
    intents = embedded.deps.intents
    emitted = _emitted(embedded.emitted, intents.intents())
    results: list[ReconcileResult] = []
    said_at = time.monotonic()
    for look in wait_for(intents, emitted, patience_s(embedded.settings), stopped):
        results.append(look)
        if time.monotonic() - said_at >= EVERY_S and len(results) < len(emitted):
            print_line(f"Looked at {len(results):,} of {len(emitted):,} servers ...")
            said_at = time.monotonic()
    return results


def _emitted(announced: Mapping[str, EmitResult], intents: Iterable[Intent]) -> list[EmitResult]:
    """Return the looks at servers that should run; those that have ended since they were announced included."""
    running = [intent for intent in intents if intent.status == "running"]
    return [
        announced.get(intent.server_id) or emit_result(intent, message_sent=True)
        for intent in running
        if intent.is_lagging or intent.server_id in announced
    ]


def summary(results: Sequence[ReconcileResult], tools: int, tokens: int) -> list[str]:
    """Return the outcome for people, in lines; `tools` and `tokens` are those of the whole catalogue."""
    bad = [look for look in results if not look.is_good]
    listed = f"Listed {len(results) - len(bad):,} of {len(results):,} servers"
    totals = f"{listed}: {tools:,} tools, of {tokens:,} tokens, can be found."
    return [totals, *(f"  {look.sentence}" for look in bad)]
