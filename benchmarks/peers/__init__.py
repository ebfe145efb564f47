"""Toolscale beside other systems that find tools, each in an environment of its own: what is found, and how fast."""
