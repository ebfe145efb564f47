"""The name by which a service recognises a command in a terminal."""

COMMAND_LINE = "toolscale-cli"
"""The name in the client info of commands: their lists and answers reach no agent, and are not recorded.

A client that takes this name hides no call of a server's tool: `call_tool` records these itself.
"""
