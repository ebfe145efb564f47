"""Reports computed from the savings history."""
