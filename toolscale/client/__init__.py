"""Client side of the command line: queries, events and their results."""
