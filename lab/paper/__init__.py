"""Reproduction of the figures of SuffixDecoding (arXiv 2411.04975) from recorded calls.

samples      samples of calls from the data sets
runs         a method replayed on a sample, after other calls; entropy of a stage
section      interface of a section of the document
fig2         match length against accepted tokens; constant against adaptive limits
fig4         all methods on all data sets
fig7         global tree, request tree, both
fig8         size of the global tree
fig9         from one kind of output to another
table1       entropy against tokens per step
document     sections as Markdown
run          measures all sections and writes the document
"""
