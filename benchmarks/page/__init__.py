"""The cost of the web page's pages with many servers."""
