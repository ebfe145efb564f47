"""What chaos learns of its workers from what they log."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from tests.chaos.services import Workers
from tests.support.processes import Composition
from tests.support.waiting import eventually

SAYS = "import sys; [print(line, flush=True) for line in sys.argv[1:]]; sys.stdin.read()"


def line(event: str, server: str) -> str:
    return json.dumps({"server": server, "event": event})


def test_a_server_is_parked_until_a_worker_logs_its_listing(tmp_path: Path) -> None:
    said = {
        "worker0": [line("server_parked", "a"), line("server_parked", "b"), line("server_indexed", "a"), "no JSON"],
        "worker1": [line("server_indexed", "b"), line("server_parked", "c")],
    }
    composition = Composition("", tmp_path, {})
    with closing(Workers(1, lambda name: composition.run(name, "-c", SAYS, *said[name]))) as workers:
        eventually(lambda: workers.parked() == {"b"}, what="a is back")

        workers.kill(0)

        eventually(lambda: workers.parked() == {"c"}, what="b is back")
        assert workers.said("server_parked") == 3
