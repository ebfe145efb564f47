"""Two builds of the query service that answer the same requests in turns."""
