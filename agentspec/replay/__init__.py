"""Replay of recorded model calls against a simulated verifier (paper, section 4.1).

calls      recorded calls as text and as tokens
drafter    the interface of a drafting method, the forest, prompt look-up
methods    the methods by name
replay     the order of calls, and the loop: draft, verify against the record, learn
tally      counts by source, match length and estimated probability
jobs       distribution of files among processes
costs      the cost of a verified token on four kinds of machines
advice     recommendation for a file
report     table, Markdown, JSON
plot       the picture
run        the command
"""
