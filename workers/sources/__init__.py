"""Where server events come from."""
