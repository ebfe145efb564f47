from __future__ import annotations

import pickle

import pytest

from shared.errors import EventInvalid, ServerTimeout


@pytest.mark.parametrize("error", [ServerTimeout("files", "no answer"), EventInvalid("data.url", "missing")])
def test_an_error_survives_the_way_to_another_process(error: ServerTimeout | EventInvalid) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_an_error_about_a_server_begins_with_its_id() -> None:
    assert str(ServerTimeout("files", "no answer")) == "files: no answer"
