"""``agentspec compare``: a program with and without drafts, its calls recorded by a proxy, and the report."""
