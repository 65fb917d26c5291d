"""vLLM's model runner V1, the fallback for CPUs and for what V2 refuses. Replaces nothing in vLLM."""
