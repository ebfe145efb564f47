"""The contents of each page, from the same functions as the tools, hence within the same scope."""
