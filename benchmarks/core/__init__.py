"""The suffix core against a peer's: time and memory of its trees, decode steps, prompts.

Real outputs of real agents go in (``corpus``); the peer (``arctic``) and we (``ours``) do the same work in
turn (``turns``) behind one interface (``sides``); ``bars`` says what is good enough.
"""
