"""Whole calls: what a task of several calls costs a context, by calls one by one and by one script."""
