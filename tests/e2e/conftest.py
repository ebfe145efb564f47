from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient_clients(patient_probe: None) -> None:
    """Give a service the time to start that a busy machine needs."""
