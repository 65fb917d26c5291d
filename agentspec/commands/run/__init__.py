"""``agentspec run``: a program, its environment, the gateway and the report."""
