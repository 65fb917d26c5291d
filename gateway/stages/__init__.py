"""The stage and session of a call: from its tags, from its client, or discovered."""
