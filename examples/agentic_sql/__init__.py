"""AgenticSQL: text to SQL by a team of model calls, each tagged with its stage.

Classify -> Extract -> Enrich -> SQL 1..3 in parallel (with a correction turn) -> Combine.
A portable program of the workflow in the SuffixDecoding paper (section 5, AgenticSQL).
"""
