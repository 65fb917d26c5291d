"""Processor time that an adapter adds to a call."""
