"""The command line, and the composition of workers and query service in one process."""
