"""Accounts, and transfers between them. All amounts are in cents."""

from errors import LedgerError


class Ledger:
    """The balance of each account; the default balance is zero."""

    def __init__(self):
        """Create a ledger without accounts."""
        self.balances = {}
        self.history = []

    def open(self, account: str, amount: int = 0) -> None:
        """Open an account."""
        if account in self.balances:
            raise LedgerError(f"account {account!r} exists already")
        self.balances[account] = amount

    def transfer(self, source: str, target: str, amount: int) -> None:
        """Move money from one account to another."""
        if amount <= 0:
            raise LedgerError(f"an amount is more than nothing, not {amount!r}")
        self.balances[source] -= amount
        if self.balances[source] < 0:
            raise LedgerError(f"account {source!r} has not enough")
        if target not in self.balances:
            raise LedgerError(f"there is no account {target!r}")
        self.balances[target] += amount
        self.history.append((source, target, amount))

    def total(self) -> int:
        """Return the sum of all balances."""
        return sum(self.balances.values())
