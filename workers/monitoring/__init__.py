"""Health and metrics of the write side's processes: `/healthz`, `/readyz` and `/metrics`, each on its own port."""
