"""Answers within a budget of tokens: counted, divided into pages; nothing is dropped."""
