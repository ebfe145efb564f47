"""The limit on connections for notifications follows from the limit of open files."""

from __future__ import annotations

import sys

import pytest

from tests.support.warm import run
from workers.notifications.open_files import FILES_PER_CONNECTION, OTHER_FILES

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from workers.notifications.open_files import connection_limit
print(connection_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(1024, 1024, 1024), (1024, 4096, 4096), (100, 100, 100)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, raised: int) -> None:
    printed = run([sys.executable, "-c", PROGRAM, str(soft), str(hard)]).stdout

    assert [int(word) for word in printed.split()] == [max(1, (raised - OTHER_FILES) // FILES_PER_CONNECTION), raised]
