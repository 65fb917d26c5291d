"""Tests of the ledger."""

import unittest

from errors import LedgerError
from ledger import Ledger


class LedgerTest(unittest.TestCase):
    """A ledger with two accounts."""

    def setUp(self):
        """Alice has ten, Bob has one."""
        self.ledger = Ledger()
        self.ledger.open("alice", 1000)
        self.ledger.open("bob", 100)

    def test_a_transfer(self):
        """It is in both accounts, and in the history."""
        self.ledger.transfer("alice", "bob", 300)
        self.assertEqual(self.ledger.balances, {"alice": 700, "bob": 400})
        self.assertEqual(self.ledger.history, [("alice", "bob", 300)])

    def test_an_account_twice(self):
        """It can be opened once."""
        with self.assertRaises(LedgerError):
            self.ledger.open("alice")

    def test_not_enough(self):
        """Nothing is changed."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("bob", "alice", 500)
        self.assertEqual(self.ledger.balances, {"alice": 1000, "bob": 100})

    def test_to_nobody(self):
        """Nothing is changed."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("alice", "carol", 500)
        self.assertEqual(self.ledger.balances, {"alice": 1000, "bob": 100})

    def test_from_nobody(self):
        """It is told as other mistakes are."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("carol", "alice", 500)
        self.assertEqual(self.ledger.total(), 1100)

    def test_less_than_nothing(self):
        """There are no such amounts."""
        with self.assertRaises(LedgerError):
            self.ledger.transfer("alice", "bob", -5)


if __name__ == "__main__":
    unittest.main()
