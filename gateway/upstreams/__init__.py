"""Upstream engines: routing, admission, connections and health."""
