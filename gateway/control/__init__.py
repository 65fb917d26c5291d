"""The operator's routes below /agentspec."""
