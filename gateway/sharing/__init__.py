"""State that several gateways share through a Redis server: the use of each API key's limits, and keys."""
