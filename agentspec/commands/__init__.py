"""The subcommands, one module or folder each. ``agentspec.cli`` loads the chosen one."""
