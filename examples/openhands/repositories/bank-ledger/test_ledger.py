"""Tests of the ledger."""

import unittest

from errors import LedgerError
from ledger import Ledger


class LedgerTest(unittest.TestCase):
    """Tests of a ledger with two accounts."""

    def setUp(self):
        """Open accounts for Alice with ten and Bob with one."""
        self.ledger = Ledger()
        self.ledger.open("alice", 1000)
        self.ledger.open("bob", 100)

    def test_a_transfer(self):
        """A transfer changes both accounts and the history."""
        self.ledger.transfer("alice", "bob", 300)
        self.assertEqual(self.ledger.balances, {"alice": 700, "bob": 400})
        self.assertEqual(self.ledger.history, [("alice", "bob", 300)])

    def test_an_account_twice(self):
        """An account can be opened only once."""
        with self.assertRaises(LedgerError):
            self.ledger.open("alice")

    def test_not_enough(self):
        """A transfer beyond the balance changes nothing."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("bob", "alice", 500)
        self.assertEqual(self.ledger.balances, {"alice": 1000, "bob": 100})

    def test_to_nobody(self):
        """A transfer to an unknown account changes nothing."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("alice", "carol", 500)
        self.assertEqual(self.ledger.balances, {"alice": 1000, "bob": 100})

    def test_from_nobody(self):
        """A transfer from an unknown account raises LedgerError."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("carol", "alice", 500)
        self.assertEqual(self.ledger.total(), 1100)

    def test_less_than_nothing(self):
        """Negative amounts are invalid."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("alice", "bob", -5)


if __name__ == "__main__":
    unittest.main()
