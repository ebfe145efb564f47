"""How fast the whole path is: events, ingestion, counting, `find_tool`, and the memory they take."""
