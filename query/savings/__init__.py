"""Token baselines of scopes, and the savings computed from them."""
