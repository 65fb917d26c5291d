"""Replay of recorded model calls against a simulated verifier (paper, section 4.1).

calls        recorded calls: files, forms, tokens
schedule     which calls run at the same time, in which order
drafters     what is compared: one interface, a class for each method
replay       the loop: draft, verify against the record, learn
tally        what it counts, by source, match length and estimate
jobs         files shared out among processes
report       table, Markdown, JSON
"""
