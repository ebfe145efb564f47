"""How a process reaches servers as its operator allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shared.upstream.config_file import ConfigFile
from shared.upstream.dial import Configured, Dialler

if TYPE_CHECKING:
    from shared.settings import Settings


def operators_dialler(settings: Settings, environ: Mapping[str, str]) -> Dialler:
    """Return the dialler of these settings.

    The operator's own file is asked each time, so that a changed command or header is used by the next connection.
    """
    configured: Configured = ConfigFile(settings.config, environ) if settings.config else {}
    return Dialler(configured, settings.allowed_hosts, settings.credentials_dir, environ)
