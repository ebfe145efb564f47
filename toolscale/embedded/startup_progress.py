"""Progress of the first listings of `toolscale serve`: a cold start of many servers takes minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from query.catalogue import Catalogue
from shared.catalog import Scope
from shared.errors import IndexUnavailable, IntentsUnavailable
from shared.upstream.followed_config import FollowedConfig, repeated_keys
from shared.upstream.target import STDIO_START_TIMEOUT_S
from toolscale.client.wait import ReconcileResult, patience_s, wait_for
from toolscale.embedded.composition import Embedded

EVERY_S = 5.0

Print = Callable[[str], None]
"""Print one line."""


@contextmanager
def report_startup(embedded: Embedded, catalogue: Catalogue, print_line: Print) -> Generator[None]:
    """Print, from a thread, the number of listed servers at most every EVERY_S seconds, and a summary."""
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
    intents, patience = embedded.deps.intents, patience_s(embedded.settings)
    results: list[ReconcileResult] = []
    try:
        # of each server that should run, also those already completed since their announcement
        emitted = [
            embedded.emitted.get(intent.server_id, intent)
            for intent in intents.intents()
            if intent.status == "running" and (intent.is_lagging or intent.server_id in embedded.emitted)
        ]
        printed_at = time.monotonic()
        for result in wait_for(intents.existing, emitted, patience, stopped, install_s=STDIO_START_TIMEOUT_S):
            results.append(result)
            if time.monotonic() - printed_at >= EVERY_S and len(results) < len(emitted):
                print_line(f"Reconciled {len(results):,} of {len(emitted):,} servers ...")
                printed_at = time.monotonic()
        if results and not stopped.is_set():
            baseline = catalogue.ledger.baseline(Scope(), catalogue.encoding)
            for line in summary(results, baseline.tools, baseline.model_tokens, catalogue.followed_config()):
                print_line(line)
    except (IntentsUnavailable, IndexUnavailable):
        return  # the log has the error, and `toolscale ls` shows the servers


def summary(
    results: Sequence[ReconcileResult], tools: int, tokens: int, followed: FollowedConfig | None = None
) -> list[str]:
    """Return the outcome in lines, with the left-out entries of the followed file.

    `tools` and `tokens` count the whole catalogue, in the model form.
    """
    bad = [result for result in results if not result.is_good]
    listed = f"Listed {len(results) - len(bad):,} of {len(results):,} servers"
    totals = f"{listed}: {tools:,} tools, of {tokens:,} tokens, are searchable."
    lines = [totals, *(f"  {result.sentence}" for result in bad)]
    if followed:
        lines += [f"  left out: {entry}" for entry in followed.left_out]
        lines += [f"  switched off: {followed.switched_off}"] if followed.switched_off else []
        lines += [f"  {repeated_keys(followed.repeated)}"] if followed.repeated else []
    return lines
