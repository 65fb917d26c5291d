"""Replicas that share what they learn: tokens per step, bytes, times, joining, outages. There is no model."""
