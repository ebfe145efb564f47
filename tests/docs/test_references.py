"""The references in the documents and `.env.example` are those that the code writes now: `make docs`."""

from __future__ import annotations

import pytest

from tests.support.reference import REFERENCES, ROOT, rendered


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == rendered(name), "run `make docs`"
