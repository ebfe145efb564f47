from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_the_settings_are_read_without_loading_numpy() -> None:
    program = "import sys, shared.settings; sys.exit('numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_toolscale_serve_without_redis_and_jwts_loads_neither_client() -> None:
    imports = "toolscale.embedded.service, toolscale.embedded.starting, query.auth.authentication"
    program = f"import sys, {imports}; sys.exit(' '.join({{'redis', 'jwt'}} & sys.modules.keys()) or 0)"

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
