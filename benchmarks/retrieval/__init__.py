"""Does `find_tool` find the right tools? Real tools, real queries, the whole system."""
