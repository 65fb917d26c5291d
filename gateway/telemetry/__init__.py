"""Logs, metrics, traces and recorded calls."""
