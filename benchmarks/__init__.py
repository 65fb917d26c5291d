"""What this project measures about itself: run by ``agentspec bench``, imported by nothing else.

Every benchmark runs the peer beside us in the same process and the same minute, and ends with one JSON line.
"""
