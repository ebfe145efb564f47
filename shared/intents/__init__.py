"""Durable intents: the desired state of every server, stored before any message is sent."""
