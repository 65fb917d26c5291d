"""``agentspec corpus``: the outputs that engines share, for those who operate the store."""
