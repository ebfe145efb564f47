"""A refresh whose process is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from shared.upstream.sign_ins import SecretKey, SignIns, SqliteEntries
from tests.sign_in.test_tokens import agreed
from tests.support.brisk import brisk
from tests.support.oauth_server import People, protected_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


def test_a_process_that_is_killed_in_a_refresh_stops_no_other_one(tmp_path: Path) -> None:
    people = People(refresh_takes_s=1.0)
    sign_ins = SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))
    with protected_server(people) as server:
        sign_in = anyio.run(agreed, server, "ann", "ann")
        sign_ins.put(sign_in.model_copy(update={"renewed_at": time.time() - people.lifetime_s}))
        program = ["tests.support.refreshing", str(tmp_path), server.url, "ann"]
        command = [sys.executable, *brisk({"shared.upstream.sign_ins.LEASE_S": 2.0}, program)]

        killed = subprocess.Popen(command, stdout=subprocess.PIPE)
        eventually(lambda: people.refreshing)
        killed.kill()
        killed.communicate()
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        printed = [other.communicate(timeout=90)[0] for other in others]

    # the authorization server spent the refresh token on the killed process: a person signs in again
    tokens = {text.rpartition("token: ")[2].strip() for text in printed}
    assert len(tokens) == 1
    assert all(token in people.access for token in tokens - {""})
    assert sign_ins.get("srv", "ann") is not None
