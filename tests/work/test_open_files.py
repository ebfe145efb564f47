"""The limits on connections follow from the limit of open files."""

from __future__ import annotations

import sys

import pytest

from shared.service.process import MAX_FILES
from tests.support.warm import run
from workers.notifications.supervisor import FILES_PER_CONNECTION, OTHER_FILES

pytestmark = pytest.mark.process

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from shared.service import process
process.MAX_FILES = int(sys.argv[3])
from workers.notifications.supervisor import connection_limit
print(process.caller_connections(), connection_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(1024, 1024, 1024), (1024, 4096, 4096), (100, 100, 100)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, raised: int) -> None:
    printed = run([sys.executable, "-c", PROGRAM, str(soft), str(hard), str(MAX_FILES)]).stdout

    callers, subscriptions, now = (int(word) for word in printed.split())
    assert now == raised
    assert callers == raised // 4
    assert subscriptions == max(1, (raised - OTHER_FILES - callers) // FILES_PER_CONNECTION)


def test_the_soft_limit_is_raised_no_further_than_any_process_needs() -> None:
    printed = run([sys.executable, "-c", PROGRAM, "512", "4096", "2048"]).stdout

    assert printed.split()[-1] == "2048"
