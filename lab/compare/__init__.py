"""``agentspec replay --compare``: the learned rule against the paper's.

trials        the runs on one file
compare       figures and acceptance criteria
"""
