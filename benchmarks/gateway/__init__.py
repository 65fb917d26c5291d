"""Benchmarks of the gateway process, compared with LiteLLM's proxy and with direct access to the engine.

The engine is a stub that responds immediately and records the requests (``stub``). The clients are equally
lightweight (``client``). Stub, gateway and clients run in separate processes; only the gateway is measured.
"""
