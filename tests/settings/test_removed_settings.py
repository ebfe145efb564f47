"""Settings of earlier releases: each process names those that are still set, and starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import Composition, Running, query_service

pytestmark = pytest.mark.process

EARLIER = {"TOOLSCALE_LEASE_S": "5", "TOOLSCALE_RETRY_MAX_S": ""}


def assert_named_once(running: Running) -> None:
    (line,) = [line for line in running.output().splitlines() if "setting_removed" in line]
    assert "TOOLSCALE_LEASE_S" in line
    assert "expires after 10 s" in line


@pytest.mark.parametrize("command", [("toolscale", "serve"), ("query",)], ids=["serve", "query"])
def test_a_service_names_a_removed_setting_and_starts(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    with query_service(tmp_path, "-m", *command, **EARLIER) as (service, _):
        assert_named_once(service)


@pytest.mark.redis
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_process_of_celery_names_a_removed_setting_and_starts(
    command: str, own_redis_url: str, tmp_path: Path
) -> None:
    composition = Composition(own_redis_url, tmp_path, EARLIER)
    with composition.worker() if command == "worker" else composition.beat() as process:
        process.wait_for("setting_removed")

        assert_named_once(process)
