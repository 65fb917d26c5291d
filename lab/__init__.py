"""Experiments: what the project's developers run to find something out.

The lab imports the product and the harness of ``benchmarks``; neither imports the lab.
"""
