"""What this project measures about itself: run by ``python -m benchmarks``, imported by nothing else.

Every benchmark ends with one JSON line. Where there is a peer to compare with, it runs beside us in the same
process and the same minute.
"""
