"""The setting of preferred labels."""

from __future__ import annotations

import pytest

from shared.errors import ConfigInvalid
from shared.settings import load_settings


def test_labels_are_pairs_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().call_prefer_labels is None
    monkeypatch.setenv("TOOLSCALE_CALL_PREFER_LABELS", "region=eu, zone=a=b,")

    assert load_settings().call_prefer_labels == {"region": "eu", "zone": "a=b"}


@pytest.mark.parametrize("text", ["eu", "=eu", "zone=a,eu"])
def test_a_label_without_name_or_value_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CALL_PREFER_LABELS", text)

    with pytest.raises(ConfigInvalid, match=r"call_prefer_labels .*expected name=value"):
        load_settings()
