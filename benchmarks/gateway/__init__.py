"""The gateway from outside, against LiteLLM's proxy and against no gateway: what it adds, holds and costs.

The engine behind it is a stub that answers at once and tells what it saw (``stub``); the clients are as light
(``client``). Each is a process of its own, and what is measured is the gateway's process between them.
"""
