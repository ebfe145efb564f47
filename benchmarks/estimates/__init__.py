"""How far the heuristic is from exact counts, on real tools."""
