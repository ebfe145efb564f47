"""Search: requests, steps, candidates and their ranking."""
