"""The digest: what is behind `find_tool`, for an agent that has not searched yet.

It stands in the description of `find_tool` and in the instructions, which precede each conversation. So it is short,
and stays the same, word for word, for as long as it can: prompts are cached. It has no text of a server: an operator
chose the ids and the groups, and the subjects are of a fixed list.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from query.answers.budget import counting, most_that_fit
from shared.errors import ConfigInvalid, IndexUnavailable
from shared.text.subjects import MOST_SUBJECTS

if TYPE_CHECKING:
    from mcp.types import Tool

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.policy import CallerRules
    from shared.catalog import Scope, ServerRecord
    from shared.text.tokens import Counter as TokenCounter

MAX_TOKENS = 150
KEPT_S = 3_600.0
# As many scopes as the sums of a catalogue are kept for.
_SCOPES = 256

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Digest:
    """The sentences, and whether they will stay; those of a catalogue that is being filled will not."""

    text: str
    is_settled: bool = True


NO_DIGEST = Digest("", is_settled=False)
BEING_LISTED = Digest("Its servers are being listed; search again in a few seconds.", is_settled=False)
NO_SERVER = Digest("No server is connected yet.", is_settled=False)


def with_digest(tool: Tool, digest: Digest) -> Tool:
    """Return the tool; the description of `find_tool` ends with the digest."""
    if tool.name != "find_tool" or not digest.text:
        return tool
    return tool.model_copy(update={"description": f"{tool.description} {digest.text}"})


_Key = tuple["Scope", "CallerRules"]


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: Digest
    servers: frozenset[str]
    since_s: float


class Digests:
    """The digests of a catalogue by scope and rules of the policy.

    Each is read once an hour at most, and changes only with its servers.
    """

    def __init__(self, catalogue: Catalogue, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._catalogue, self._clock_s = catalogue, clock_s
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._lock = Lock()

    def kept(self, caller: Caller) -> Digest | None:
        """Return the digest of a caller's catalogue without a read of the index; None where one is due."""
        key = self._key(caller)
        with self._lock:
            kept = self._kept.get(key)
        return kept.digest if kept and self._clock_s() - kept.since_s < KEPT_S else None

    def of(self, caller: Caller) -> Digest:
        """Return the digest of a caller's catalogue; where the index does not answer, the last one."""
        if digest := self.kept(caller):
            return digest
        key, now_s = self._key(caller), self._clock_s()
        kept = self._kept.get(key)
        try:
            found = self._read(caller, kept, now_s)
        except (IndexUnavailable, ConfigInvalid) as error:
            _log.warning("digest_not_read", reason=str(error))
            return kept.digest if kept else NO_DIGEST
        if found.digest.is_settled:
            with self._lock:
                self._kept[key] = found
                self._kept.move_to_end(key)
                while len(self._kept) > _SCOPES:
                    self._kept.popitem(last=False)
        return found.digest

    def _key(self, caller: Caller) -> _Key:
        return caller.scope, self._catalogue.read_policy().of(caller)

    def _read(self, caller: Caller, kept: _Kept | None, now_s: float) -> _Kept:
        catalogue = self._catalogue.pinned()
        scope = catalogue.scope(caller)
        catalogue.ledger.refresh()
        records = [record for record in _counted(scope, catalogue) if record.status != "stopped"]
        servers = frozenset(record.server_id for record in records)
        if kept and kept.servers == servers:
            return _Kept(kept.digest, servers, now_s)
        if not catalogue.is_filled(bool(kept)):
            return _Kept(BEING_LISTED, servers, now_s)
        text = digest_text(records, scope.groups, counting(catalogue.encoding))
        return _Kept(Digest(text) if text else NO_SERVER, servers, now_s)


def _counted(scope: Scope, catalogue: Catalogue) -> list[ServerRecord]:
    """Return the records of the scope's servers with the number of tools that the scope has.

    A server whose tools the policy denies, each by itself, is left out.
    """
    records = catalogue.ledger.records(scope)
    if all(rule.is_of_whole_servers for rule in scope.rules):
        return records
    costs = catalogue.ledger.by_server(replace(scope, status=None), catalogue.encoding)
    numbers = {server_id: cost.tools for server_id, cost in costs.items()}
    counted = [(record, numbers.get(record.server_id, 0)) for record in records]
    return [
        record.model_copy(update={"tool_count": number})
        for record, number in counted
        if number or not record.tool_count
    ]


def digest_text(records: Sequence[ServerRecord], groups: frozenset[str] | None, count: TokenCounter) -> str:
    """Return what these servers are for, within MAX_TOKENS: by server, else by group, else by subject; "" without any.

    `groups` are those that the caller may see, None: all. Equal servers in another order have the same text.
    """
    if not records:
        return ""
    by_server = sorted(_with_subjects(record.server_id, record.subjects) for record in records)
    for entries in (by_server, _by_group(records, groups)):
        text = _sentence(records, entries)
        if entries and count(text) <= MAX_TOKENS:
            return text
    subjects = [f"{subject} ({servers})" for subject, servers in _by_number(each.subjects for each in records)]
    fitting = most_that_fit(
        len(subjects), lambda number: count(_sentence(records, subjects[:number], "mostly ")) <= MAX_TOKENS
    )
    return _sentence(records, subjects[:fitting], "mostly ")


def _sentence(records: Sequence[ServerRecord], entries: Sequence[str], mostly: str = "") -> str:
    tools = rounded(sum(record.tool_count for record in records))
    servers = f"{rounded(len(records))} {'server' if len(records) == 1 else 'servers'}"
    return f"It has some {tools} tools of {servers}{': ' if entries else ''}{mostly}{'; '.join(entries)}."


def _by_group(records: Sequence[ServerRecord], groups: frozenset[str] | None) -> list[str]:
    """Return each group with its most frequent subjects; nothing where a server has no group, or all have the same."""
    visible = {record.server_id: record.groups if groups is None else record.groups & groups for record in records}
    names = sorted(set[str]().union(*visible.values()))
    if len(names) < 2 or not all(visible.values()):  # noqa: PLR2004
        return []
    entries: list[str] = []
    for name in names:
        of_group = [record for record in records if name in visible[record.server_id]]
        subjects = [subject for subject, _ in _by_number(record.subjects for record in of_group)[:MOST_SUBJECTS]]
        entries.append(_with_subjects(f"{name}, {rounded(len(of_group))} servers", subjects))
    return entries


def _with_subjects(name: str, subjects: Sequence[str]) -> str:
    return f"{name} ({', '.join(subjects)})" if subjects else name


def _by_number(subjects: Iterable[Sequence[str]]) -> list[tuple[str, int]]:
    """Return each subject with its number of servers, rounded, the most frequent first."""
    numbers = Counter(subject for of_server in subjects for subject in of_server)
    rounded_numbers = {subject: rounded(number) for subject, number in numbers.items()}
    return sorted(rounded_numbers.items(), key=lambda entry: (-entry[1], entry[0]))


def rounded(number: int) -> int:
    """Return the number with its first two digits."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return number // step * step
