"""Calling a tool on the server that owns it.

request      what a caller asked for, in any of the forms that agents use
arguments    judged against the tool's input schema, before anything is sent
upstreams    the connections to servers, in an event loop of their own
pool         one connection a server, kept while it is used
connection   one MCP session, entered and left by a task of its own
phases       how far a session is, and how much it is used
watched      its incoming messages, watched on their way
relay        what goes back to the caller meanwhile: progress
"""
