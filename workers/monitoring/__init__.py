"""What a worker says of itself on a port of its own: `/healthz`, `/readyz` and `/metrics`."""
