"""Churn: far more tokens than a budget holds. Memory must stay within it, and no call may take long.

Endless outputs (``texts``) of requests that start and finish (``traffic``) pass through a forest, of which a
scope (``scopes``) has a budget. Every call is timed (``meter``). ``markers`` show the order of eviction.
"""
