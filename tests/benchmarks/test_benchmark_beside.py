"""The comparison of two builds: its report, and how events are recorded."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import httpx2
import pytest

from benchmarks.beside import Life, render
from benchmarks.harness import document, kept


def test_the_report_names_costs_that_rose_by_more_than_five_percent() -> None:
    figures = kept("beside-reads")
    rows = figures["tables"][0]["rows"]
    rows[1]["ratio"]["median"], rows[2]["ratio"]["median"] = 1.06, 1.04

    report = document(render(figures))

    assert re.findall(r"worse: (.*)\.$", report, re.MULTILINE)[0] == rows[1]["subject"]


def test_only_events_that_were_not_recorded_are_sent_again() -> None:
    answers = [[202, 503, 202, 503], [503, 202], [202]]
    sent: list[list[str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append([event["id"] for event in json.loads(request.content)])
        return httpx2.Response(503, json={"events": [{"status": status} for status in answers[len(sent) - 1]]})

    events: list[dict[str, Any]] = [{"id": name} for name in "abcd"]
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        Life([], io.BytesIO(), "http://127.0.0.1/events", client).post(events)

    assert sent == [["a", "b", "c", "d"], ["b", "d"], ["b"]]


def test_a_rejected_event_ends_the_run() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(400, json={"events": [{"status": 400}]}))

    with httpx2.Client(transport=transport) as client, pytest.raises(RuntimeError, match="400"):
        Life([], io.BytesIO(), "http://127.0.0.1/events", client).post([{"id": "a"}])
