"""Parts of every service: Redis clients, listening sockets, common HTTP routes, repeating threads."""
