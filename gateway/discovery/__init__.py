"""Stages found by what prompts have in common."""
