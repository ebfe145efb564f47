from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = ("redis-server", "chromium", "promtool", "docker-compose")
PRINTS_ITS_CALL = '#!/bin/sh\necho "$(basename "$0") $* with $PYTEST_ADDOPTS"\n'


def test_pytest_ends_before_the_limit_of_a_ci_run_so_that_it_names_the_failed_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("make", *INSTALLED):
        program = tmp_path / name
        program.write_text(PRINTS_ITS_CALL, encoding="utf-8")
        program.chmod(0o755)
    bash = shutil.which("bash")
    assert bash
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--durations=3")

    called = subprocess.run([bash, str(ROOT / ".ci/run")], capture_output=True, text=True, timeout=60, check=True)

    limit = re.search(r"^limit_s=(\d+)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    ends = re.fullmatch(r"make test-all with --durations=3 --session-timeout=(\d+)\n", called.stdout)
    assert limit
    assert ends, called.stdout
    assert int(limit[1]) - 700 < int(ends[1]) <= int(limit[1]) - 600
