"""The commands, a module each: its options, and what it does. ``agentspec.cli`` loads the one asked for."""
