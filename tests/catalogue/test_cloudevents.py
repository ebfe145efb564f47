from __future__ import annotations

import pytest

from workers.events_api.api import BATCH, STRUCTURED, RecordOutcome, documents, overall


def test_the_binary_mode_takes_attributes_from_headers_and_data_from_the_body() -> None:
    headers = {"content-type": "application/json; charset=utf-8", "ce-id": "1", "ce-source": "caf%C3%A9", "host": "x"}

    assert documents(headers, b'{"server_id": "s"}') == [
        {"id": "1", "source": "café", "datacontenttype": "application/json", "data": {"server_id": "s"}}
    ]


def test_an_object_is_one_document_and_an_array_as_many_as_it_has_items() -> None:
    assert documents({"content-type": STRUCTURED}, b'{"id": "1"}') == [{"id": "1"}]
    assert documents({"content-type": BATCH.upper()}, b'[{"id": "1"}, {"id": "2"}]') == [{"id": "1"}, {"id": "2"}]
    assert documents({"content-type": BATCH}, b"[]") == []


@pytest.mark.parametrize("mode", [STRUCTURED, BATCH])
def test_what_is_not_json_is_kept_as_it_came(mode: str) -> None:
    assert documents({"content-type": mode}, b"{not json \xff") == ["{not json \N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("mode", [STRUCTURED, BATCH])
def test_too_deeply_nested_json_is_a_text_that_is_not_parsed_again(mode: str) -> None:
    body = b"[" * 100_000 + b"]" * 100_000

    assert documents({"content-type": mode}, body) == [f"nested too deeply: {body.decode()}"]


def test_an_item_of_a_batch_that_is_no_object_does_not_cost_the_others() -> None:
    assert documents({"content-type": BATCH}, b'[1, {"id": "2"}]') == ["1", {"id": "2"}]


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([], 202), ([202, 202], 202), ([202, 400], 207), ([400, 400], 400), ([202, 400, 503], 503), ([503], 503)],
)
def test_a_batch_is_accepted_only_when_all_of_it_is_recorded(statuses: list[int], status: int) -> None:
    assert overall([RecordOutcome(status=status) for status in statuses]) == status
