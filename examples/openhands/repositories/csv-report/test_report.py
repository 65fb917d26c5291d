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
    """Tests of rows()."""

    def test_names(self):
        """The header has the names."""
        self.assertEqual(rows("a,b\n1,2\n"), [{"a": "1", "b": "2"}])

    def test_comments(self):
        """Comments don't count."""
        self.assertEqual(rows("# hello\na,b\n1,2\n"), [{"a": "1", "b": "2"}])

    def test_empty_lines(self):
        """Empty lines don't count either."""
        self.assertEqual(rows("a,b\n\n1,2\n\n"), [{"a": "1", "b": "2"}])


class SumsTest(unittest.TestCase):
    """Tests of sums()."""

    def test_one_each(self):
        """The largest sum is first."""
        records = [{"who": "bob", "amount": "1"}, {"who": "ann", "amount": "2"}]
        self.assertEqual(list(sums(records, "who", "amount").items()), [("ann", 2.0), ("bob", 1.0)])

    def test_several_of_one(self):
        """Amounts of one group are added."""
        records = [{"who": "ann", "amount": "1.5"}, {"who": "ann", "amount": "2"}]
        self.assertEqual(sums(records, "who", "amount"), {"ann": 3.5})


class ReportTest(unittest.TestCase):
    """Tests of the whole report."""

    def test_table(self):
        """Names are left-aligned, numbers right-aligned."""
        self.assertEqual(render({"ann": 2.0}), "ann       2.00")

    def test_report(self):
        """A report has one line per person."""
        expected = "ann     102.50\nbob       8.00"
        self.assertEqual(report(TEXT, "who", "amount"), expected)


if __name__ == "__main__":
    unittest.main()
