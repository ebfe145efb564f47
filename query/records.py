"""The records of servers, kept in memory, as what all tools of a scope cost: the baseline of what an answer saves.

The index's exact sum over the tools defines a baseline; the records are a cache of it, which the workers audit.

Every reconcile writes a server's sums to its record together with a revision, in microseconds since the
epoch, which only grows. A refresh reads the records above the highest known revision: mostly none.
A read that begins after several requests serves all of them: under load, most requests read nothing.
A periodic comparison of revisions finds the records that this misses, at a fraction of the cost of reading them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from operator import not_
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from query.kept import Recent
from query.named import ServerNames
from query.replicas import ReplicaSets, replica_sets
from query.turns import began_at_s
from shared.catalog import DEFAULT_ENCODING, Encoding, IndexedTool, Scope, ServerRecord, Status
from shared.errors import IndexUnavailable
from shared.index.tools import ToolCounts, ToolIndex
from shared.text.tokens import is_estimate

# A revision is assigned before its record is written, so a lower one may become visible after a higher one.
OVERLAP_US = 60_000_000
# Comparing the overlap costs as much as there were reconciles in it: too much for each call.
OVERLAP_EVERY_S = 1.0
# Finds what was written later than the overlap reaches back.
EVERYTHING_EVERY_S = 60.0
# Reading all records at once is faster than reading more than these one by one.
FEW = 100
# Callers share a few scopes; a caller with many private scopes only evicts others from the cache.
CACHED_SCOPES = 256
# Each has an entry for each server.
CACHED_POLICIES = 32
UNCOUNTED_SHOWN = 20


Run = Callable[[Callable[[], None]], None]


def run_now(compare: Callable[[], None]) -> None:
    """Compare before the answer."""
    compare()


def run_behind(compare: Callable[[], None]) -> None:
    """Compare in a thread; a comparison that fails is repeated by a later request."""

    def suppressed() -> None:
        with suppress(IndexUnavailable):
            compare()

    threading.Thread(target=suppressed, name="toolscale ledger", daemon=True).start()


class Ledger:
    """The server records of an index, as sums for any scope. Safe to call from several threads.

    A baseline includes every record that was written before its request began, unless a higher revision overtook it.
    An overtaken record follows with a comparison: of the overlap, OVERLAP_EVERY_S after the one before. A record that
    is later than the overlap, or has a lower revision than before, follows with that of all, each EVERYTHING_EVERY_S.
    Requests start the comparisons; with `run_behind` they do not wait for them, and read the earlier sums.
    """

    def __init__(self, index: ToolIndex, clock_s: Callable[[], float] = time.monotonic, run: Run = run_now) -> None:
        self._index, self._clock_s, self._run = index, clock_s, run
        self._refreshing, self._comparing, self._renewing = threading.Lock(), threading.Lock(), threading.Lock()
        self._records = Records({})
        self._sums: Recent[Baseline] = Recent(clock_s)
        self._policy_sums = PolicySums()
        self._highest = 0
        self._read_at_s = -math.inf
        self._news_at_s = self._overlap_compared_at_s = self._all_compared_at_s = self._renewed_at_s = clock_s()

    def refresh(self) -> None:
        """Read the records that changed, unless a read has begun since the request did; each baseline does so too.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        asked_at_s = began_at_s() or self._clock_s()
        with self._refreshing:
            if self._read_at_s > asked_at_s:
                return
            now_s = self._clock_s()
            self._read_news(now_s)
            self._read_at_s = now_s
        newer_than = self._compared_next(now_s)
        if newer_than is not None and not self._comparing.locked():
            self._run(partial(self._compare, newer_than, now_s))

    def state(self) -> object:
        """Return an object that is the same one until a server's record changes.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self.refresh()
        return self._records

    def baseline(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return the cost of all tools in the scope.

        A scope that divides a server's tools is summed by the index, exactly, which takes longer; that sum is kept
        until a server changes.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self.refresh()
        if scope.is_of_whole_servers:
            return self._records.within(scope).cost(encoding)
        return self._sums.get_or_read((scope, encoding), self._records, partial(self._summed, scope, encoding))

    def by_server(self, scope: Scope, encoding: Encoding) -> dict[str, Baseline]:
        """Return the cost of each server's tools in the scope, by id; together they are the scope's baseline.

        Raises:
            IndexUnavailable: the records, or the sums over a part of a server's tools, could not be read.
        """
        self.refresh()
        return self._by_server(scope, encoding)

    def _by_server(self, scope: Scope, encoding: Encoding) -> dict[str, Baseline]:
        records, whole = self._records, self._records.costs(encoding)
        admitted = [server_id for server_id, record in records.by_id.items() if scope.admits(record)]
        divided = frozenset(server_id for server_id in admitted if scope.divides(server_id))
        if scope.is_of_some_tools:
            costs = self._divided(divided, scope, encoding)
        else:  # the policy alone divides servers, so a sum holds for as long as its server's tools
            revisions = {server_id: records.by_id[server_id].revision for server_id in divided}
            read = partial(self._divided, scope=scope, encoding=encoding)
            costs = self._policy_sums.of((scope.policy, encoding), revisions, read)
        return {server_id: costs[server_id] if server_id in divided else whole[server_id] for server_id in admitted}

    def of_servers(self, server_ids: Collection[str], scope: Scope, encoding: Encoding) -> Baseline:
        """Return the cost of these servers' tools in the scope, as of the last refresh.

        Raises:
            IndexUnavailable: the sums over a part of a server's tools could not be read.
        """
        known = (self._records.by_id.get(server_id) for server_id in server_ids)
        return self._of_records([record for record in known if record and scope.admits(record)], scope, encoding)

    def known(self, scope: Scope) -> list[ServerRecord]:
        """Return the records of all servers in the scope, of every status, sorted by id.

        A reconcile without changes writes its time under the previous revision, so such times lag by up to
        EVERYTHING_EVERY_S. Reading all records again takes most of a second with ten thousand servers.

        Raises:
            IndexUnavailable: the records could not be read.
        """
        self.refresh()
        self._renew()
        return self.records(scope)

    def absent(self, scope: Scope) -> list[ServerRecord]:
        """Return the servers in the scope whose tools cannot be found now, sorted by id, as of the last refresh."""
        absent = self._records.absent  # mostly none
        return [record for record in absent if replace(scope, status=record.status).admits(record)]

    def stale(self, scope: Scope) -> list[ServerRecord]:
        """Return the running servers in the scope whose tools are those of an earlier listing, sorted by id.

        As of the last refresh.
        """
        return [record for record in self._records.stale if scope.admits(record)]

    def records(self, scope: Scope) -> list[ServerRecord]:
        """Return the records of all servers in the scope, of every status, sorted by id, as of the last refresh."""
        scopes = {status: replace(scope, status=status) for status in get_args(Status)}
        admitted = (record for record in self._records.by_id.values() if scopes[record.status].admits(record))
        return sorted(admitted, key=lambda record: record.server_id)

    def being_listed(self, scope: Scope) -> tuple[int, int]:
        """Return how many servers of the scope are not listed yet, and of how many, as of the last refresh."""
        return self._records.within(scope).being_listed

    def corpus(self, scope: Scope) -> Scope:
        """Return a scope of the same tools, without any condition if it has all tools of the index.

        As of the last refresh.
        """
        is_whole = scope == Scope() and self._records.are_running
        return Scope(status=None) if is_whole else scope

    def names(self) -> ServerNames:
        """Return the names of all servers, as of the last refresh."""
        return self._records.names

    def revisions(self, scope: Scope) -> tuple[int, ...]:
        """Return the revisions of the scope's servers, as of the last refresh: equal ones have the same tools."""
        return self._records.within(scope).revisions

    def record(self, server_id: str) -> ServerRecord | None:
        """Return the record of a server, as of the last refresh; None: it is not known."""
        return self._records.by_id.get(server_id)

    def replica_sets(self, scope: Scope, until: int | None = None) -> ReplicaSets:
        """Return the replica sets of the scope's servers, as of the last refresh.

        Servers that changed after the revision `until` are in no set with others.
        """
        is_current = until is None or max(self.revisions(scope), default=0) <= until
        return self._records.replica_sets(scope, None if is_current else until)

    def stale_since(self, server_id: str) -> float | None:
        """Return since when a server's list could not be renewed, in seconds since the epoch; None: it is fresh.

        As of the last refresh.
        """
        record = self._records.by_id.get(server_id)
        return record.stale_since if record else None

    def _divided(self, server_ids: frozenset[str], scope: Scope, encoding: Encoding) -> dict[str, Baseline]:
        """Return the cost of those tools of each of these servers that the scope contains, read tool by tool."""
        by_server: dict[str, list[ToolCounts]] = {server_id: [] for server_id in server_ids}
        for tool in self._index.counts(replace(scope, servers=server_ids), encoding):
            by_server[tool.server_id].append(tool)
        return {server_id: summed_tools(tools) for server_id, tools in by_server.items()}

    def _of_records(self, records: Collection[ServerRecord], scope: Scope, encoding: Encoding) -> Baseline:
        if not any(scope.divides(record.server_id) for record in records):
            return added(cost_of(record, encoding) for record in records)
        return self._summed(replace(scope, servers=frozenset(record.server_id for record in records)), encoding)

    def _summed(self, scope: Scope, encoding: Encoding) -> Baseline:
        """Return the exact sum over the tools of a scope that divides some servers' tools."""
        if scope.policy is not None and not scope.is_of_some_tools:
            return added(self._by_server(scope, encoding).values())
        summed = self._index.token_sum(scope, encoding)
        model_tokens = self._index.token_sum(scope, encoding, "model").tokens
        names = self._index.uncounted(scope, encoding, UNCOUNTED_SHOWN) if summed.uncounted else []
        return Baseline(summed.tokens, summed.counted + summed.uncounted, tuple(names), summed.uncounted, model_tokens)

    def _read_news(self, now_s: float) -> None:
        is_first, records = not self._highest, self._index.servers(newer_than=self._highest)
        if records:
            self._records = self._records.updated(records)
            self._highest, self._news_at_s = max(record.revision for record in records), now_s
        if is_first:
            self._all_compared_at_s = self._overlap_compared_at_s = self._renewed_at_s = now_s

    def _compared_next(self, now_s: float) -> int | None:
        """Return the revision above which revisions are to be compared now; 0: all; None: none."""
        if now_s - self._all_compared_at_s >= EVERYTHING_EVERY_S:
            return 0
        is_settled = self._overlap_compared_at_s - self._news_at_s > OVERLAP_US / 1e6
        is_due = now_s - self._overlap_compared_at_s >= OVERLAP_EVERY_S and not is_settled
        return max(self._highest - OVERLAP_US, 0) if is_due else None

    def _compare(self, newer_than: int, now_s: float) -> None:
        """Read the records with another revision; a comparison of all also removes those that are gone."""
        with self._comparing:
            before = self._records.by_id
            revisions = self._index.revisions(newer_than=newer_than)
            differing = [
                server
                for server, revision in revisions.items()
                if server not in before or before[server].revision != revision
            ]
            gone = [] if newer_than else [server for server in before if server not in revisions]
            self._replace(before, self._read(differing, newer_than), gone)
            self._overlap_compared_at_s = now_s
            self._all_compared_at_s = self._all_compared_at_s if newer_than else now_s

    def _replace(self, before: Mapping[str, ServerRecord], read: Iterable[ServerRecord], gone: Iterable[str]) -> None:
        """Replace the records, except those that a refresh replaced since `before`, which are newer."""
        with self._refreshing:
            now = self._records.by_id
            records = [record for record in read if now.get(record.server_id) is before.get(record.server_id)]
            removed = [server for server in gone if now.get(server) is before[server]]
            self._records = self._records.updated(records, removed)

    def _read(self, servers: list[str], newer_than: int) -> list[ServerRecord]:
        if len(servers) > FEW:
            return self._index.servers(newer_than=newer_than)
        return [record for server in servers if (record := self._index.server(server))]

    def _renew(self) -> None:
        """Read all records again once they are old; a record that a refresh replaced during the read stays."""
        with self._renewing:
            begun_s, before = self._clock_s(), self._records.by_id
            if begun_s - self._renewed_at_s < EVERYTHING_EVERY_S:
                return
            self._replace(before, self._index.servers(), ())
            self._renewed_at_s = begun_s


class Records:
    """The records of one moment by server id, with what they add up to in each scope. Safe to use from several threads.

    They never change: `updated` returns others, so each sum is computed once.
    """

    def __init__(self, by_id: Mapping[str, ServerRecord]) -> None:
        self.by_id = by_id
        self._costs: dict[Encoding, Mapping[str, Baseline]] = {}
        self._within = lru_cache(CACHED_SCOPES)(partial(ScopeRecords, by_id.values()))
        self._replica_sets = lru_cache(CACHED_SCOPES)(partial(replica_sets, by_id.values()))

    def updated(self, records: Iterable[ServerRecord], gone: Collection[str] = ()) -> Records:
        """Return these records with `records` replaced and `gone` removed; itself, if nothing differs."""
        changed = {record.server_id: record for record in records if record != self.by_id.get(record.server_id)}
        if not changed and not gone:
            return self
        kept = {server: record for server, record in self.by_id.items() if server not in gone} if gone else self.by_id
        return Records({**kept, **changed})

    @cached_property
    def are_running(self) -> bool:
        """Whether there are servers, and all run."""
        return bool(self.by_id) and all(record.status == "running" for record in self.by_id.values())

    @cached_property
    def absent(self) -> Sequence[ServerRecord]:
        """The servers whose tools cannot be found: not listed yet, not reached, or not running."""
        absent = (record for record in self.by_id.values() if record.status != "running" or not record.is_listed)
        return sorted(absent, key=lambda record: record.server_id)

    @cached_property
    def stale(self) -> Sequence[ServerRecord]:
        """The running servers whose last listing failed, with the tools of an earlier one."""
        listed = (record for record in self.by_id.values() if record.status == "running" and record.is_listed)
        return sorted((each for each in listed if each.stale_since is not None), key=lambda record: record.server_id)

    @cached_property
    def names(self) -> ServerNames:
        """The names of all servers."""
        return ServerNames(self.by_id.values())

    def costs(self, encoding: Encoding) -> Mapping[str, Baseline]:
        """Return the cost of each server's tools."""
        if encoding not in self._costs:
            self._costs[encoding] = {server: cost_of(record, encoding) for server, record in self.by_id.items()}
        return self._costs[encoding]

    def within(self, scope: Scope) -> ScopeRecords:
        """Return the records that a scope admits."""
        return self._within(scope)

    def replica_sets(self, scope: Scope, until: int | None) -> ReplicaSets:
        """Return the replica sets of a scope, without servers that changed after a revision."""
        return self._replica_sets(scope, until)


class ScopeRecords:
    """The records that a scope admits."""

    def __init__(self, records: Iterable[ServerRecord], scope: Scope) -> None:
        self.records = tuple(filter(scope.admits, records))
        self._costs: dict[Encoding, Baseline] = {}

    def cost(self, encoding: Encoding) -> Baseline:
        """Return the cost of all tools of these servers."""
        if encoding not in self._costs:
            self._costs[encoding] = added(cost_of(record, encoding) for record in self.records)
        return self._costs[encoding]

    @cached_property
    def revisions(self) -> tuple[int, ...]:
        """The revisions of these servers, sorted."""
        return tuple(sorted(record.revision for record in self.records))

    @cached_property
    def being_listed(self) -> tuple[int, int]:
        """How many of these servers are not listed yet, and of how many."""
        awaited = sum(not record.is_listed and record.stale_since is None for record in self.records)
        return awaited, len(self.records)


def cost_of(record: ServerRecord, encoding: Encoding) -> Baseline:
    """Return the cost of a server's tools; one that was never listed costs nothing."""
    if not record.is_listed:
        return Baseline(0, 0)
    uncounted = record.uncounted.get(encoding, ())
    return Baseline(
        tokens=record.tokens.get(encoding, 0),
        tools=record.tool_count,
        uncounted=tuple(f"{record.server_id}:{name}" for name in uncounted[:UNCOUNTED_SHOWN]),
        model_tokens=record.model_tokens.get(encoding, 0),
        uncounted_total=len(uncounted),
    )


def added(costs: Iterable[Baseline]) -> Baseline:
    """Return these costs together."""
    costs = list(costs)
    return Baseline(
        tokens=sum(cost.tokens for cost in costs),
        tools=sum(cost.tools for cost in costs),
        uncounted=tuple(islice((name for cost in costs for name in cost.uncounted), UNCOUNTED_SHOWN)),
        model_tokens=sum(cost.model_tokens for cost in costs),
        uncounted_total=sum(cost.uncounted_total for cost in costs),
    )


class PolicySums:
    """The costs of servers' permitted tools, by policy and encoding. Safe to use from several threads.

    To read the tools of all servers takes a second or two for 100,000 of them, so those of a server are read again only
    when its revision changes.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Mapping[str, tuple[int, Baseline]]] = OrderedDict()
        self._lock = threading.Lock()

    def of(
        self,
        key: Hashable,
        revisions: Mapping[str, int],
        read: Callable[[frozenset[str]], Mapping[str, Baseline]],
    ) -> dict[str, Baseline]:
        """Return the cost of each of these servers; `read` returns those of other revisions than before."""
        known = dict(self._known.get(key, {}))
        changed = frozenset(
            server for server, revision in revisions.items() if server not in known or known[server][0] != revision
        )
        if changed:
            known |= {server: (revisions[server], cost) for server, cost in read(changed).items()}
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            if len(self._known) > CACHED_POLICIES:
                self._known.popitem(last=False)
        return {server: known[server][1] for server in revisions}


def summed_tools(tools: Sequence[ToolCounts]) -> Baseline:
    """Return the cost of these tools."""
    uncounted = [f"{tool.server_id}:{tool.tool_name}" for tool in tools if tool.tokens is None]
    return Baseline(
        tokens=sum(tool.tokens or 0 for tool in tools),
        tools=len(tools),
        uncounted=tuple(uncounted[:UNCOUNTED_SHOWN]),
        model_tokens=sum(tool.model_tokens or 0 for tool in tools),
        uncounted_total=len(uncounted),
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """The cost of all tools of a scope.

    `tokens` is the sum of the wire form and `model_tokens` that of the model form. `tools` is how many there are,
    counted or not. `uncounted` names at most UNCOUNTED_SHOWN of the `uncounted_total` tools that have no count and so
    are no part of `tokens`.
    """

    tokens: int
    tools: int
    uncounted: tuple[str, ...] = ()
    uncounted_total: int = 0
    model_tokens: int = 0

    def without(self, offered: Baseline) -> Baseline:
        """Return the cost of the tools of this scope that are not among the offered ones."""
        return replace(
            self,
            tokens=max(0, self.tokens - offered.tokens),
            tools=max(0, self.tools - offered.tools),
            model_tokens=max(0, self.model_tokens - offered.model_tokens),
        )

    def stated_before(self) -> Baseline:
        """Return the baseline of a further page: the first page has stated the net of all tools."""
        return replace(self, model_tokens=0)


Count = Annotated[int, Field(ge=0)]
StatedEncoding = Annotated[Encoding, Field(exclude_if=lambda encoding: encoding == DEFAULT_ENCODING)]
"""What the counts of an answer are in: not said of the default."""


def stated_encoding(encoding: Encoding) -> dict[str, Any]:
    """Return the fields of an answer whose counts are in this encoding: none for the default, which is exact."""
    said: dict[str, Any] = {} if encoding == DEFAULT_ENCODING else {"encoding": encoding}
    return said | ({"estimated": True} if is_estimate(encoding) else {})


class TokenMetrics(BaseModel):
    """The tokens of the tools that a caller would carry, of those returned, and of the answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    baseline_tokens: Count
    """Definitions of all tools that you may see, without those in your tools/list; at least returned_tokens."""
    returned_tokens: Count
    """Definitions of the returned tools, or the summaries or names in their place."""
    tokens_saved: Count
    """baseline_tokens - returned_tokens."""
    savings_percentage: Annotated[float, Field(ge=0, le=100)]
    answer_tokens: Count
    """This answer's text."""
    net_tokens_saved: int
    """Name, description and input schema of the baseline's tools, on the first page, less answer_tokens."""
    encoding: StatedEncoding = DEFAULT_ENCODING
    estimated: bool = Field(default=False, exclude_if=not_)
    """True: the counts are estimates."""
    uncounted: list[str] = Field(default=[], exclude_if=not_)
    """Some of the tools that could not be counted and are in no sum, as server:tool."""
    uncounted_total: int = Field(default=0, ge=0, exclude_if=not_)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.tokens_saved != self.baseline_tokens - self.returned_tokens:
            raise ValueError("tokens_saved: expected baseline_tokens - returned_tokens")
        return self

    def net_of(self, answer_tokens: int) -> int:
        """Return the net tokens saved by an answer of this many tokens."""
        return self.net_tokens_saved + self.answer_tokens - answer_tokens

    def with_answer_tokens(self, answer_tokens: int) -> TokenMetrics:
        """Return the metrics of an answer of this many tokens."""
        update = {"answer_tokens": answer_tokens, "net_tokens_saved": self.net_of(answer_tokens)}
        return self.model_copy(update=update)


def token_metrics(
    baseline: Baseline, returned: Sequence[IndexedTool], encoding: Encoding, shown_tokens: int | None = None
) -> TokenMetrics:
    """Return the savings of an answer whose own tokens are not counted yet.

    `shown_tokens` is what the tools cost as they are shown; None: they are shown with their definitions.
    The returned tokens bound the baseline from below. They exceed it where the returned tools are offered directly.
    They also do between a server's two writes, of its tools and of its record. The savings are then 0.
    """
    definitions = sum(tool.token_counts.get(encoding, 0) for tool in returned)
    returned_tokens = definitions if shown_tokens is None else shown_tokens
    baseline_tokens = max(baseline.tokens, returned_tokens)
    saved = baseline_tokens - returned_tokens
    uncounted = _uncounted(baseline, returned, encoding)
    return TokenMetrics(
        baseline_tokens=baseline_tokens,
        returned_tokens=returned_tokens,
        tokens_saved=saved,
        savings_percentage=_percentage(saved, baseline_tokens),
        answer_tokens=0,
        net_tokens_saved=baseline.model_tokens,
        encoding=encoding,
        estimated=is_estimate(encoding),
        uncounted=uncounted[:UNCOUNTED_SHOWN],
        uncounted_total=max(baseline.uncounted_total, len(uncounted)),
    )


def _uncounted(baseline: Baseline, returned: Sequence[IndexedTool], encoding: Encoding) -> list[str]:
    """Return known names without a count, each once; returned tools first, since the caller is looking at them."""
    in_answer = [tool.qualified_name for tool in returned if encoding not in tool.token_counts]
    return list(dict.fromkeys([*in_answer, *baseline.uncounted]))


def _percentage(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
