"""``agentspec serve``: options, settings, the choice of the engine, reloads."""
