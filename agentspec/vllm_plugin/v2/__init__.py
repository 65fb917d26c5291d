"""vLLM's model runner V2, with asynchronous scheduling: the main path, on GPUs."""
