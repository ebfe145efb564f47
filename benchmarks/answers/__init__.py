"""How many tokens answers take, in each form, on real tools."""
