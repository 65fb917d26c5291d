"""Errors of a ledger."""


class LedgerError(Exception):
    """The operation was refused, and nothing was changed."""
