"""The HTTP API for events: `POST /events` accepts CloudEvents 1.0 with a bearer token."""
