"""The figures of SuffixDecoding (arXiv 2411.04975) again, from recorded calls.

samples      which calls of the data sets
runs         what is run on them: a method, before it other calls; a stage's entropy
section      what a part of the document is
fig2         match length against accepted tokens; constant against adaptive limits
fig4         all methods on all data sets
fig7         global tree, request tree, both
fig8         size of the global tree
fig9         from one kind of output to another
table1       entropy against tokens per step
document     sections as Markdown
run          the parts put together
"""
