"""What processes of the write side say of themselves: `/healthz`, `/readyz` and `/metrics`, on ports of their own."""
