"""What the examples share: a server of their own, calls that are timed, and what drafting saved."""
