"""Calling a tool on the server that owns it.

request      what a caller asked for, in any of the forms that agents use
arguments    judged against the tool's input schema, before anything is sent
admission    how many calls a caller may have, and how many large results may be in hand
upstreams    the connections to servers, in an event loop of their own
lookups      where servers are, found in threads of their own
pool         one connection a server, kept while it is used
connection   one MCP session, entered and left by a task of its own
phases       how far a session is, and how much it is used
whereabouts  whether it still leads to where its server is
watched      its messages, watched on their way
unclaimed    large messages of which it is not known yet which call they answer
meta         what of a call's metadata goes on to the server
relay        what goes back to the caller meanwhile: progress
"""
