"""Sampling of tokens, and the conditions that shape or end an output."""
