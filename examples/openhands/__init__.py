"""OpenHands repairs small repositories, with and without speculation."""

import os

# read when OpenHands and LiteLLM are imported: no network access, no banner, no log of every step
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")
os.environ.setdefault("LOG_LEVEL", "CRITICAL")  # a closed terminal logs at level ERROR
