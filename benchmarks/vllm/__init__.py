"""Real vLLM with the plugin, without it, and with its own suffix decoding: outputs, speed, memory.

Knows vLLM by its HTTP interface (``server``, ``client``, ``counters``); only ``propose`` imports it.
"""
