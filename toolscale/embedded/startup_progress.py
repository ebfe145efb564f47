"""How the first looks of `toolscale serve` go, for whoever started it: a cold start of many servers takes a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

from query.catalogue import Catalogue
from shared.catalog import Scope
from shared.errors import IndexUnavailable, IntentsUnavailable
from toolscale.client.emit import Emitted, emitted_of
from toolscale.client.wait import Settled, ended, patience_s
from toolscale.embedded.composition import Embedded
from workers.intents.store import Intent

EVERY_S = 5.0

Say = Callable[[str], None]
"""Show people a line."""


@contextmanager
def telling_first_looks(embedded: Embedded, catalogue: Catalogue, say: Say) -> Generator[None]:
    """Say, from a thread, how many servers are listed: at most every EVERY_S seconds, and once all were looked at."""
    stopped = threading.Event()
    arguments = (embedded, catalogue, say, stopped)
    thread = threading.Thread(target=_tell, args=arguments, name="toolscale first looks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=10)


def _tell(embedded: Embedded, catalogue: Catalogue, say: Say, stopped: threading.Event) -> None:
    try:
        looks = _looks(embedded, say, stopped)
        if looks and not stopped.is_set():
            for line in summary(looks, *_size(catalogue)):
                say(line)
    except (IntentsUnavailable, IndexUnavailable):
        return  # the log says so, and `toolscale ls` tells the rest


def _looks(embedded: Embedded, say: Say, stopped: threading.Event) -> list[Settled]:
    intents = embedded.deps.intents
    asked = _asked(embedded.asked, intents.intents())
    looks: list[Settled] = []
    said_at = time.monotonic()
    for look in ended(intents, asked, patience_s(embedded.settings), stopped):
        looks.append(look)
        if time.monotonic() - said_at >= EVERY_S and len(looks) < len(asked):
            say(f"Looked at {len(looks):,} of {len(asked):,} servers ...")
            said_at = time.monotonic()
    return looks


def _asked(announced: Mapping[str, Emitted], intents: Iterable[Intent]) -> list[Emitted]:
    """Return the looks at servers that should run; those that have ended since they were announced included."""
    running = [each for each in intents if each.status == "running"]
    return [
        announced.get(each.server_id) or emitted_of(each, woken=True)
        for each in running
        if each.is_lagging or each.server_id in announced
    ]


def _size(catalogue: Catalogue) -> tuple[int, int]:
    baseline = catalogue.ledger.baseline(Scope(), catalogue.encoding)
    return baseline.tools, baseline.tokens


def summary(looks: Sequence[Settled], tools: int, tokens: int) -> list[str]:
    """Return the outcome for people, in lines; `tools` and `tokens` are those of the whole catalogue."""
    bad = [look for look in looks if not look.is_good]
    listed = f"Listed {len(looks) - len(bad):,} of {len(looks):,} servers"
    found = f"{listed}: {tools:,} tools, of {tokens:,} tokens, can be found."
    return [found, *(f"  {look.sentence}" for look in bad)]
