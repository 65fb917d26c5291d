"""Replay of recorded model calls against a simulated verifier (paper, section 4.1).

calls         recorded calls: files, formats, tokens
schedule      the order of calls, and which of them run concurrently
drafters/     the common drafter interface and the compared methods
methods       the methods by name
replay        the loop: draft, verify against the record, learn
tally         counts by source, match length and estimated probability
entropy       predictability of a stage's outputs
jobs          distribution of files among processes
advice        recommendation for a file
report        table, Markdown, JSON
curve         interpolation between the settings that were run
comparison/   the learned rule against the paper's: runs, figures, acceptance criteria
engine/       the methods in real decode steps
"""
