"""``agentspec replay --compare``: the learned rule against the paper's."""
