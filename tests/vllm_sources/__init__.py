"""The names of vLLM that the plugin uses, checked against vLLM's source files without importing them."""
