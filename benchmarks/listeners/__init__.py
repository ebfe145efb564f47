"""The cost of processes that listen to a large fleet."""
