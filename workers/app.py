"""The app that `celery -A workers.app worker`, `beat` and `flower` run, with settings from the environment."""

from __future__ import annotations

import sys

from shared.errors import ConfigInvalid
from shared.settings import load_service_settings
from workers.celery_app import build_app

if "worker" in sys.argv and {"-D", "--detach"} & set(sys.argv):
    # Celery would start the program again, with an environment that has no secrets
    sys.exit("Start the worker without --detach, under a supervisor of processes.")

# in process 1 of a container, this import forks: the service continues in the child
try:
    app = build_app(load_service_settings())
except ConfigInvalid as error:
    sys.exit(f"error: {error}")
