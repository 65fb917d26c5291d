"""Replay of recorded model calls against a simulated verifier (paper, section 4.1).

calls        recorded calls: files, forms, tokens
schedule     which calls run at the same time, in which order
drafters     what is compared: one interface, a class for each method
recycling    one of them: a table of what followed each token
stage_trees  another: the paper's rule without the request's tree
sam          another: suffix automata
replay       the loop: draft, verify against the record, learn
tally        what it counts, by source, match length and estimate
entropy      how predictable a stage's outputs are
jobs         files shared out among processes
advice       what is recommended for a file
report       table, Markdown, JSON
trials       what the comparison of the learned rule with the paper's runs on a file
curve        between the prices that were run
compare      the comparison's figures and bars
"""
