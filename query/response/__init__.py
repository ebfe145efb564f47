"""The response of `find_tool`: its fields, and how it fits a token budget."""
