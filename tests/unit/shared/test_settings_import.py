from __future__ import annotations

import subprocess
import sys


def test_the_settings_are_read_without_loading_numpy() -> None:
    program = "import sys, shared.settings; sys.exit('numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
