"""The references in the documents and `.env.example` are those that the code writes now: `make docs`."""

from __future__ import annotations

import pytest

from shared.observability.log_events import FURTHER_FIELDS, LOG_EVENTS
from tests.support.reference import REFERENCES, ROOT, rendered
from tests.support.reference.log_calls import PACKAGES, log_calls


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == rendered(name), "run `make docs`"


def test_every_log_event_has_a_meaning_and_every_meaning_an_event() -> None:
    logged = {call.event for package in PACKAGES for call in log_calls(package)}

    assert logged == LOG_EVENTS.keys()


def test_fields_are_listed_by_hand_only_for_calls_that_do_not_name_them() -> None:
    hidden = {call.event for package in PACKAGES for call in log_calls(package) if call.has_more_fields}

    assert hidden == FURTHER_FIELDS.keys()
