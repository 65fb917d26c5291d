"""The transformer: checkpoint, weights, attention with a KV cache."""
