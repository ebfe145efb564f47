"""Guards between Celery and Redis: message format, transport, dead letters."""
