"""Who calls over HTTP: bearer tokens become callers, and whoever has none is told where to get one."""
