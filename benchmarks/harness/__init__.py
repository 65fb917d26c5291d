"""Options that benchmarks share, and the report of benchmarks that run in parts.

A benchmark is a folder: ``options`` is its command line, ``run`` measures, ``report`` shows the figures,
``sizes`` has the amounts of work of the full and the quick run.
"""
