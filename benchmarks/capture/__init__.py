"""Whether a server can come first for questions about the tools of other servers."""
