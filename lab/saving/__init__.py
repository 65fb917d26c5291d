"""The estimated time that drafts save, against the same calls without drafts."""
