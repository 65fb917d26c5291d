"""Proposers that draft from what the served model computes: its hidden states and logits."""
