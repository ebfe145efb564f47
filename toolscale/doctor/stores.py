"""Checks of the intents, the index and the query service."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import httpx2

from shared.errors import (
    ConfigInvalid,
    IndexHeld,
    IndexUnavailable,
    InstanceMismatch,
    IntentsUnavailable,
    ServiceUnreachable,
)
from shared.index import open_store
from shared.index.tools import EMBEDDED_MAX_ADVISED_TOOLS
from shared.index.versions import IndexStore, IndexVersion
from shared.intents.intents import open_intents
from shared.settings import Settings
from toolscale.client.background import service_url
from toolscale.doctor.finding import Finding, ok, problem, warning

OVERDUE_S = 60.0
LETTERS, DAY_S = 1_000, 86_400.0
ANSWER_S = 5.0
# The first release that computes the IDF of words over the tools of a scope.
MIN_QDRANT = (1, 19)


def check_intents(settings: Settings) -> Iterator[Finding]:
    """Check for failed and overdue servers and for new dead letters; old ones stay until others replace them."""
    if settings.is_embedded and not settings.data_dir.exists():
        return
    try:
        with closing(open_intents(settings)) as intents:
            known = list(intents.intents())
            letters = [letter for letter in intents.dead_letters(LETTERS) if letter.at > time.time() - DAY_S]
    except IntentsUnavailable as error:
        yield problem("servers", f"cannot be read: {error}", "see the findings about Redis or the data directory")
        return
    wrong = [intent.server_id for intent in known if intent.last_error]
    overdue = [intent for intent in known if intent.due_at is not None and intent.due_at < time.time() - OVERDUE_S]
    installing = [intent.server_id for intent in known if intent.is_installing]
    yield ok("servers", f"{len(known)} announced")
    if installing:
        yield ok("servers", f"{len(installing)} installing: {', '.join(installing[:5])}")
    if wrong:
        yield warning("servers", f"{len(wrong)} failed: {', '.join(wrong[:5])}", "see `toolscale ls`")
    if overdue:
        report = warning if settings.is_embedded else problem
        advice = "start `toolscale serve`" if settings.is_embedded else "make sure that a worker and beat are running"
        yield report("servers", f"{len(overdue)} overdue for a reconciliation", advice)
    if letters:
        yield warning("events", f"{len(letters)} rejected in the last day", "see `toolscale dead-letters`")


def check_index(settings: Settings) -> Iterator[Finding]:
    """Check that the index answers or is in use, and that an embedded index is not too large."""
    if not settings.qdrant_url and not (settings.data_dir / "index").exists():
        yield ok("index", "none yet; `toolscale serve` creates it")
        return
    try:
        with closing(open_store(settings)) as store:
            active, is_filled = store.versions().active, store.is_filled()
            tools = 0 if settings.qdrant_url else _tool_count(store, active)
            server = store.server_version()
    except IndexHeld:
        yield ok("index", f"in {settings.data_dir}, in use by a Toolscale process")
        return
    except (ConfigInvalid, IndexUnavailable) as error:
        yield problem("index", str(error), "start Qdrant, or correct QDRANT_URL and QDRANT_API_KEY")
        return
    yield _version(settings, active)
    if active and not is_filled:
        found = "workers list every server again: the index is new, or this release cannot read that of another one"
        yield warning("index", found, "wait until this warning is gone; the answers have one too")
    if server and _release(server) < MIN_QDRANT:
        found = f"Qdrant {server}, older than {'.'.join(map(str, MIN_QDRANT))}"
        yield warning("index", found, "upgrade Qdrant: this one weighs words by the tools of all callers")
    if tools > EMBEDDED_MAX_ADVISED_TOOLS:
        found = f"{tools:,} tools in an embedded index, above {EMBEDDED_MAX_ADVISED_TOOLS:,}"
        yield warning("index", found, "run a Qdrant server and set QDRANT_URL: embedded search compares every tool")


def _tool_count(store: IndexStore, active: IndexVersion | None) -> int:
    return sum(server.tool_count for server in store.index(active).servers()) if active else 0


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version such as 1.19.0-dev."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _version(settings: Settings, active: IndexVersion | None) -> Finding:
    if active is None:
        return ok("index", "holds no tools yet")
    if active.model != settings.embedding_model:
        found = f"made with {active.model}; the settings name {settings.embedding_model}"
        return warning("index", found, "the next worker that starts embeds all tools again")
    return ok("index", f"{settings.qdrant_url or settings.data_dir}: {active.name}")


def check_service(settings: Settings) -> Iterator[Finding]:
    """Check whether the query service of this catalogue answers; with Redis it may run on another machine."""
    advice = "start `toolscale serve` or `python -m query` if agents need it"
    try:
        url = service_url(settings)
        response = httpx2.get(f"{url}/readyz", timeout=ANSWER_S, trust_env=False)
    except ServiceUnreachable as error:
        yield warning("query service", str(error), advice)
        return
    except httpx2.HTTPError:
        if settings.is_embedded:
            yield warning("query service", f"none at {settings.own_url}", advice)
        return
    except (InstanceMismatch, ConfigInvalid) as error:
        yield problem("query service", str(error), advice)
        return
    if response.is_success:
        yield ok("query service", f"ready at {url}")
    else:
        yield problem("query service", f"{url} is not ready: {response.status_code}", "see its log")
