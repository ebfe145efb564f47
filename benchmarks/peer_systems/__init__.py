"""The systems of `benchmarks.peers`: each module is a program, and runs in the environment of its system."""
