"""Drafting methods live, on text that the model itself writes."""
