"""The project's own benchmarks, run by ``python -m benchmarks`` and imported by no other package.

Every benchmark ends with one JSON line. A peer to compare with runs in the same process and the same minute.
"""
