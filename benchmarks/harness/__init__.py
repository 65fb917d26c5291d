"""Options that benchmarks share, and the report of benchmarks that run in parts.

A benchmark is a folder: ``options`` is its command line, ``run`` measures. Where needed, ``report`` shows the
figures, and ``sizes`` has the amounts of work of the full and the quick run.
"""
