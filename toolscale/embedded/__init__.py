"""All services in one process: `toolscale serve`."""
