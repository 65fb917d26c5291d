"""Tests of the report."""

import unittest

from report import report, rows, sums
from table import render

TEXT = """\
# expenses
who,what,amount
ann,train,12.50
bob,lunch,8.00

ann,hotel,90.00
"""


class RowsTest(unittest.TestCase):
    """Reading."""

    def test_names(self):
        """Of the heading."""
        self.assertEqual(rows("a,b\n1,2\n"), [{"a": "1", "b": "2"}])

    def test_comments(self):
        """They don't count."""
        self.assertEqual(rows("# hello\na,b\n1,2\n"), [{"a": "1", "b": "2"}])

    def test_empty_lines(self):
        """They don't count either."""
        self.assertEqual(rows("a,b\n\n1,2\n\n"), [{"a": "1", "b": "2"}])


class SumsTest(unittest.TestCase):
    """Adding up."""

    def test_one_each(self):
        """The largest first."""
        records = [{"who": "bob", "amount": "1"}, {"who": "ann", "amount": "2"}]
        self.assertEqual(list(sums(records, "who", "amount").items()), [("ann", 2.0), ("bob", 1.0)])

    def test_several_of_one(self):
        """They are added."""
        records = [{"who": "ann", "amount": "1.5"}, {"who": "ann", "amount": "2"}]
        self.assertEqual(sums(records, "who", "amount"), {"ann": 3.5})


class ReportTest(unittest.TestCase):
    """The whole."""

    def test_table(self):
        """Names to the left, numbers to the right."""
        self.assertEqual(render({"ann": 2.0}), "ann       2.00")

    def test_report(self):
        """Two people."""
        expected = "ann     102.50\nbob       8.00"
        self.assertEqual(report(TEXT, "who", "amount"), expected)


if __name__ == "__main__":
    unittest.main()
