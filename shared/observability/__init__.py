"""Logging, metrics and tracing of every process."""
