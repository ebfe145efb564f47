"""The app that `celery -A workers.app worker`, `beat` and `flower` run, with settings from the environment."""

from __future__ import annotations

from shared.settings import load_service_settings
from workers.celery_app import build_app

app = build_app(load_service_settings())
