"""The short run of `make chaos`: real processes, a few of each fault, another seed each time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.harness import run
from tests.chaos.plan import FIXED_SEED, SHORT
from tests.support.qdrant_server import own_qdrant_url
from tests.support.redis_server import PROGRAM

pytestmark = [pytest.mark.slow, pytest.mark.redis]

QDRANT_URL = own_qdrant_url()  # other tests do not see it


@pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed: apt-get install redis-server")
@pytest.mark.parametrize("seed", [FIXED_SEED, None], ids=["fixed", "new"])
def test_the_catalogue_equals_the_truth_after_kills_wipes_and_freezes_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    if QDRANT_URL:
        monkeypatch.setenv("QDRANT_URL", QDRANT_URL)
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed

    outcome = run(SHORT, seed, tmp_path / "run")

    assert outcome.differences == (), f"seed {seed}"
    assert outcome.converged_after_s is not None, f"seed {seed}: not settled within {SHORT.bound_s:g} s"
    assert outcome.tools_compared[0] == outcome.tools_compared[1] > 0
