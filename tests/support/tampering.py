"""Wrong counts in an index: in one tool's payload, or in a server's record."""

from __future__ import annotations

from dataclasses import replace

from shared.catalog import Encoding, Form
from tests.support.fakes import FakeIndex

WRONG_BY = 10_000


def tamper_tool(index: FakeIndex, qualified_name: str, encoding: Encoding, form: Form = "wire") -> None:
    """Add WRONG_BY to one stored count of a tool; its digest stays."""
    stored = index.points()[qualified_name]
    tool, wrong = stored.tool, dict(stored.tool.counts(form))
    wrong[encoding] += WRONG_BY
    changed = replace(tool, model_counts=wrong) if form == "model" else replace(tool, token_counts=wrong)
    index.upsert([replace(stored, tool=changed)])


def tamper_record(index: FakeIndex, server_id: str, encoding: Encoding, form: Form = "wire") -> None:
    """Add WRONG_BY to one sum of a server's record; its revision stays."""
    record = index.server(server_id)
    assert record is not None
    name = "model_tokens" if form == "model" else "tokens"
    sums: dict[Encoding, int] = getattr(record, name)
    index.put_server(record.model_copy(update={name: {**sums, encoding: sums[encoding] + WRONG_BY}}))
