"""The app of the workers with a short limit for work that stands still: `celery -A tests.support.impatient_worker`."""

from __future__ import annotations

from shared.settings import load_settings
from workers.celery_app import build_app

STUCK_AFTER_S = 2.0

app = build_app(load_settings(), stuck_after_s=STUCK_AFTER_S)
