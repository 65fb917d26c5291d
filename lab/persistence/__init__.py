"""Saving and loading a forest, and decode steps meanwhile."""
