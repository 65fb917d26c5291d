"""The subcommands, one module each with its options and code. ``agentspec.cli`` loads the chosen one."""
