"""Accounts, and transfers between them. All amounts are in cents."""

from errors import LedgerError


class Ledger:
    """The balance of each account; an account begins with nothing."""

    def __init__(self):
        """No accounts."""
        self.balances = {}
        self.history = []

    def open(self, account: str, amount: int = 0) -> None:
        """Begin an account."""
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
        """All the money there is."""
        return sum(self.balances.values())
