"""The write side: from a server-up event to points in the index."""
