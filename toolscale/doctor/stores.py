"""Checks of the intents, the index with its token counts, and the query service."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import httpx2

from shared.errors import (
    NEEDS_SIGN_IN,
    ConfigInvalid,
    IndexHeld,
    IndexUnavailable,
    InstanceMismatch,
    IntentsUnavailable,
    ServiceUnreachable,
)
from shared.index import open_store
from shared.index.tools import EMBEDDED_MAX_ADVISED_TOOLS
from shared.intents.intents import open_intents
from shared.settings import Settings
from toolscale.client.background import service_url
from toolscale.console import FIRST_SERVERS
from toolscale.doctor.installation import Finding, ok, problem, warning
from workers.upkeep.audit import differences

if TYPE_CHECKING:
    from shared.catalog import TokenSum
    from shared.index.versions import IndexVersion

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
    failed = {intent.server_id: intent.last_error for intent in known if intent.last_error}
    waiting = [server_id for server_id, error in failed.items() if f": {NEEDS_SIGN_IN}" in error]
    wrong = [server_id for server_id in failed if server_id not in waiting]
    overdue = [intent for intent in known if intent.due_at is not None and intent.due_at < time.time() - OVERDUE_S]
    installing = [intent.server_id for intent in known if intent.is_installing]
    yield ok("servers", f"{len(known)} announced", "" if known else FIRST_SERVERS)
    if installing:
        yield ok("servers", f"{len(installing)} installing: {', '.join(installing[:5])}")
    if waiting:
        needs = "needs" if len(waiting) == 1 else "need"
        found = f"{len(waiting)} {needs} a sign-in: {', '.join(waiting[:5])}"
        yield warning("servers", found, f"run `toolscale login {waiting[0]}`")
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
            tools = 0
            if active and not settings.qdrant_url:
                tools = sum(server.tool_count for server in store.index(active).servers())
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
    # a version such as 1.19.0-dev
    if server and tuple(map(int, re.findall(r"\d+", server)[:2])) < MIN_QDRANT:
        found = f"Qdrant {server}, older than {'.'.join(map(str, MIN_QDRANT))}"
        yield warning("index", found, "upgrade Qdrant: this one weighs words by the tools of all callers")
    if tools > EMBEDDED_MAX_ADVISED_TOOLS:
        found = f"{tools:,} tools in an embedded index, above {EMBEDDED_MAX_ADVISED_TOOLS:,}"
        yield warning("index", found, "run a Qdrant server and set QDRANT_URL: embedded search compares every tool")


def _version(settings: Settings, active: IndexVersion | None) -> Finding:
    if active is None:
        return ok("index", "holds no tools yet")
    if active.model != settings.embedding_model:
        found = f"made with {active.model}; the settings name {settings.embedding_model}"
        return warning("index", found, "the next worker that starts embeds all tools again")
    return ok("index", f"{settings.qdrant_url or settings.data_dir}: {active.name}")


def check_counts(settings: Settings) -> Iterator[Finding]:
    """Compare the token counts in every server's record with those of its tools, for `--audit`."""
    if not settings.qdrant_url and not (settings.data_dir / "index").exists():
        return
    equal = skipped = 0
    try:
        with closing(open_store(settings)) as store, closing(open_intents(settings)) as intents:
            if (active := store.versions().active) is None:
                return
            index = store.index(active)
            # the tools of a lagging server may be older than its record
            lagging = {intent.server_id for intent in intents.intents() if intent.is_lagging}
            for server_id in sorted(index.revisions()):
                found = None if server_id in lagging else differences(server_id, index)
                equal, skipped = equal + (found == []), skipped + (found is None)
                for each in found or []:
                    yield problem(
                        "counts",
                        f"{server_id}: its record states {_text(each.stated)}, the index counts "
                        f"{_text(each.counted)} ({each.encoding}, {each.form} form)",
                        "keep a worker or `toolscale serve` running: its audit counts the tools again",
                    )
    except IndexHeld:
        advice = "look for counts_differ in its log, or stop it and run `toolscale doctor --audit` again"
        yield warning("counts", "not compared: a Toolscale process uses the index and audits it itself", advice)
    except (ConfigInvalid, IndexUnavailable, IntentsUnavailable) as error:
        yield problem("counts", f"not compared: {error}", "see the findings about index and servers")
    else:
        waiting = f"; {skipped} not compared, since they wait for a reconciliation" if skipped else ""
        yield ok("counts", f"{equal} records equal the sums over their tools{waiting}")


def _text(total: TokenSum) -> str:
    return f"{total.tokens:,} tokens of {total.tools:,} tools"


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
