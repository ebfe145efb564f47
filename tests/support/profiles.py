"""How many examples property tests make: HYPOTHESIS_PROFILE is quick, dev, ci (the default) or nightly."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

DEFAULT = "ci"
_EXAMPLES = {"quick": 5, "dev": 10, DEFAULT: 100, "nightly": 1000}


def load_profile() -> None:
    """Load the profile that the environment names."""
    for name, examples in _EXAMPLES.items():
        settings.register_profile(
            name,
            settings(),
            max_examples=examples,
            deadline=None,  # a deadline would test the machine's other work
            suppress_health_check=[HealthCheck.too_slow],  # it blames the machine's other work on the test
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", DEFAULT))


def examples(most_in_ci: int) -> int:
    """Return how many examples the loaded profile makes of a property that is worth so many in CI."""
    current = settings.get_current_profile_name()
    if current not in _EXAMPLES:
        return most_in_ci
    return max(1, min(_EXAMPLES[current], most_in_ci * max(1, _EXAMPLES[current] // _EXAMPLES[DEFAULT])))
