"""The operator's policy on calls of tools: its rules, and the confirmations that they require."""
