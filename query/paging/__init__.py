"""Answers within a budget of tokens: counted, summarised, divided into pages; nothing is dropped."""
