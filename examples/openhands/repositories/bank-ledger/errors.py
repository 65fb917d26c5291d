"""What can go wrong with a ledger."""


class LedgerError(Exception):
    """It was not done, and nothing was changed."""
