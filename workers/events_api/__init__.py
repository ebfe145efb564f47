"""The HTTP door for events: `POST /events`, CloudEvents 1.0 from whoever holds the token."""
