"""Tests of busy and free times."""

import unittest

from calendar_view import line
from intervals import free, merge


class MergeTest(unittest.TestCase):
    """Tests of merge()."""

    def test_nothing(self):
        """No intervals give no intervals."""
        self.assertEqual(merge([]), [])

    def test_apart(self):
        """Separate intervals stay unchanged, in order."""
        self.assertEqual(merge([(700, 720), (600, 630)]), [(600, 630), (700, 720)])

    def test_overlapping(self):
        """Overlapping intervals become one."""
        self.assertEqual(merge([(600, 660), (630, 690)]), [(600, 690)])

    def test_touching(self):
        """Touching intervals become one."""
        self.assertEqual(merge([(600, 630), (630, 660)]), [(600, 660)])

    def test_one_inside_another(self):
        """The longer interval keeps its length."""
        self.assertEqual(merge([(600, 720), (630, 660)]), [(600, 720)])


class FreeTest(unittest.TestCase):
    """Tests of free()."""

    def test_an_empty_day(self):
        """The whole day is free."""
        self.assertEqual(free([]), [(540, 1020)])

    def test_between_two(self):
        """Times before, between and after are free."""
        self.assertEqual(free([(600, 630), (700, 720)]), [(540, 600), (630, 700), (720, 1020)])

    def test_a_short_one_inside_a_long_one(self):
        """No time is free before the long interval ends."""
        self.assertEqual(free([(540, 900), (600, 630)]), [(900, 1020)])


class LineTest(unittest.TestCase):
    """Tests of line()."""

    def test_line(self):
        """An interval is shown in hours and minutes."""
        self.assertEqual(line((540, 615)), "09:00-10:15")


if __name__ == "__main__":
    unittest.main()
