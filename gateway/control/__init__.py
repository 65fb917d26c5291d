"""The operator's and the tenants' routes below /agentspec."""
