"""The embedded PyTorch engine. Needs the extra ``agentspec[engine]``."""
