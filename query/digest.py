"""The digest: the servers behind `find_tool`, for an agent that has not searched yet.

It stands in the description of `find_tool` and in the instructions, which precede each conversation. So it is short,
and stays the same, word for word, for as long as it can: prompts are cached. It follows from the stored records alone,
so that all processes over one index have the same. It has no text of a server: an operator chose the ids and the
groups, and the subjects are of a fixed list. It has no number of tools, which changes more often than the servers do.
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
HOUR_S = 3_600
# A server that hangs is awaited no longer; its listing may take minutes to fail.
AWAITED_S = 60.0
# As many scopes as the sums of a catalogue are kept for.
_SCOPES = 256

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Digest:
    """The sentences, and whether they will stay; those of a catalogue that is being filled will not."""

    text: str
    is_settled: bool = True


NO_DIGEST = Digest("", is_settled=False)
BEING_LISTED = Digest("Servers: being listed; search again in a few seconds.", is_settled=False)
NO_SERVER = Digest("Servers: none connected yet.", is_settled=False)


def with_digest(tool: Tool, digest: Digest) -> Tool:
    """Return the tool; the description of `find_tool` ends with the digest."""
    if tool.name != "find_tool" or not digest.text:
        return tool
    return tool.model_copy(update={"description": f"{tool.description} {digest.text}"})


_Key = tuple["Scope", "CallerRules"]


class Digests:
    """The digests of a catalogue by scope and rules of the policy.

    Each is read once in an hour of the clock, so that all processes take up a change in the same hour.
    """

    def __init__(self, catalogue: Catalogue, clock_s: Callable[[], float] = time.time) -> None:
        """`clock_s` returns seconds since the epoch."""
        self._catalogue, self._clock_s = catalogue, clock_s
        self._kept: OrderedDict[_Key, tuple[Digest, int]] = OrderedDict()  # with the hour of its read
        self._lock = Lock()

    def kept(self, caller: Caller) -> Digest | None:
        """Return the digest of a caller's catalogue without a read of the index; None where one is due."""
        digest, hour = self._last(self._key(caller))
        return digest if hour == self._hour() else None

    def of(self, caller: Caller) -> Digest:
        """Return the digest of a caller's catalogue; where the index does not answer or is refilled, the last one."""
        key, hour = self._key(caller), self._hour()
        last, last_hour = self._last(key)
        if last and last_hour == hour:
            return last
        try:
            found = self._read(caller, last)
        except (IndexUnavailable, ConfigInvalid) as error:
            _log.warning("digest_not_read", reason=str(error))
            return last or NO_DIGEST
        if found.is_settled:
            with self._lock:
                self._kept[key] = found, hour
                self._kept.move_to_end(key)
                while len(self._kept) > _SCOPES:
                    self._kept.popitem(last=False)
        return found

    def _key(self, caller: Caller) -> _Key:
        return caller.scope, self._catalogue.read_policy().of(caller)

    def _hour(self) -> int:
        return int(self._clock_s() // HOUR_S)

    def _last(self, key: _Key) -> tuple[Digest | None, int]:
        with self._lock:
            return self._kept.get(key, (None, 0))

    def _read(self, caller: Caller, last: Digest | None) -> Digest:
        catalogue = self._catalogue.pinned()
        scope = catalogue.scope(caller)
        catalogue.ledger.refresh()
        if not catalogue.is_filled(last is not None):
            return last or BEING_LISTED
        records = _visible(scope, catalogue)
        is_settled = last is not None or not any(map(self._is_awaited, records))
        if not is_settled and not any(record.is_listed for record in records):
            return BEING_LISTED
        text = digest_text(records, scope.groups, counting(catalogue.encoding))
        return Digest(text, is_settled) if text else NO_SERVER

    def _is_awaited(self, record: ServerRecord) -> bool:
        is_new = self._clock_s() - record.revision / 1e6 < AWAITED_S
        return is_new and not record.is_listed and record.stale_since is None and record.status == "running"


def _visible(scope: Scope, catalogue: Catalogue) -> list[ServerRecord]:
    """Return the records of the servers of which the scope has tools, or may have tools once they are listed.

    Where it has only some of a server's tools, the record has no subjects: they may be those of the others.
    """
    records = [record for record in catalogue.ledger.records(scope) if record.status != "stopped"]
    if scope.is_of_whole_servers:
        return records
    costs = catalogue.ledger.by_server(replace(scope, status=None), catalogue.encoding)
    numbers = {server_id: cost.tools for server_id, cost in costs.items()}
    visible = [(record, numbers.get(record.server_id, 0)) for record in records]
    return [
        record if number >= record.tool_count else record.model_copy(update={"subjects": ()})
        for record, number in visible
        if number or not record.tool_count
    ]


def digest_text(records: Sequence[ServerRecord], groups: frozenset[str] | None, count: TokenCounter) -> str:
    """Return what these servers are for, within MAX_TOKENS: by server, else by group, else by subject; "" without any.

    `groups` are those that the caller may see, None: all. Equal servers in another order have the same text.
    """
    if not records:
        return ""
    some = f"some {rounded(len(records))}"
    by_server = sorted(_with_subjects(record.server_id, record.subjects) for record in records)
    for lead, entries in (("", by_server), (f"{some}, in groups ", _by_group(records, groups))):
        text = _sentence(lead, entries)
        if entries and count(text) <= MAX_TOKENS:
            return text
    by_number = _by_number(each.subjects for each in records)
    subjects = [f"{subject} ({servers})" for subject, servers in by_number]

    def largest(number: int) -> str:
        return _sentence(f"{some}, above all for ", subjects[:number]) if number else _sentence(some, ())

    return largest(most_that_fit(len(subjects), lambda number: count(largest(number)) <= MAX_TOKENS))


def _sentence(lead: str, entries: Sequence[str]) -> str:
    return f"Servers: {lead}{'; '.join(entries)}."


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
        entries.append(f"{name} ({': '.join(filter(None, [str(rounded(len(of_group))), ', '.join(subjects)]))})")
    return entries


def _with_subjects(name: str, subjects: Sequence[str]) -> str:
    others = [subject for subject in subjects if subject != name]
    return f"{name} ({', '.join(others)})" if others else name


def _by_number(subjects: Iterable[Sequence[str]]) -> list[tuple[str, int]]:
    """Return each subject with its number of servers, rounded, the most frequent first."""
    numbers = Counter(subject for of_server in subjects for subject in of_server)
    rounded_numbers = {subject: rounded(number) for subject, number in numbers.items()}
    return sorted(rounded_numbers.items(), key=lambda entry: (-entry[1], entry[0]))


def rounded(number: int) -> int:
    """Return the number with its first two digits."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return number // step * step
