"""The command line, and both sides composed in one process."""
