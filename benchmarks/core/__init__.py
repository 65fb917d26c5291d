"""The suffix core against a peer's: time and memory of its trees, decode steps, prompts.

The input is real outputs of real agents (``corpus``). The peer (``arctic``) and we (``ours``) do the same
work in turn (``turns``) behind one interface (``sides``). ``bars`` defines the required results.
"""
