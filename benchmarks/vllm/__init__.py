"""vLLM with the plugin, without it, and with its own suffix decoding: outputs, speed, memory.

These modules use vLLM's HTTP interface (``server``, ``client``, ``counters``). Only the part ``propose``
imports vLLM.
"""
