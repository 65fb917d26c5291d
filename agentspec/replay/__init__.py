"""Replay of recorded model calls against a simulated verifier (paper, section 4.1).

calls         recorded calls: files, formats, tokens
schedule      the order of calls, and which of them run concurrently
drafters      the common drafter interface and one class per method
recycling     drafter: a table of the tokens that followed each token
stage_trees   drafter: the paper's rule without the request's own tree
sam           drafter: suffix automata
arctic        drafter: arctic-inference's suffix cache
methods       the methods by name
replay        the loop: draft, verify against the record, learn
tally         counts by source, match length and estimated probability
entropy       predictability of a stage's outputs
jobs          distribution of files among processes
advice        recommendation for a file
report        table, Markdown, JSON
trials        the runs that compare the learned rule with the paper's on one file
curve         interpolation between the settings that were run
compare       figures and acceptance criteria of the comparison
"""
