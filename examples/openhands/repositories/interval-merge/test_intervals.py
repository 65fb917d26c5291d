"""Tests of busy and free times."""

import unittest

from calendar_view import line
from intervals import free, merge


class MergeTest(unittest.TestCase):
    """Busy times."""

    def test_nothing(self):
        """No intervals."""
        self.assertEqual(merge([]), [])

    def test_apart(self):
        """They stay as they are, in order."""
        self.assertEqual(merge([(700, 720), (600, 630)]), [(600, 630), (700, 720)])

    def test_overlapping(self):
        """They become one."""
        self.assertEqual(merge([(600, 660), (630, 690)]), [(600, 690)])

    def test_touching(self):
        """They become one, too."""
        self.assertEqual(merge([(600, 630), (630, 660)]), [(600, 660)])

    def test_one_inside_another(self):
        """The longer one stays as long as it is."""
        self.assertEqual(merge([(600, 720), (630, 660)]), [(600, 720)])


class FreeTest(unittest.TestCase):
    """Free times."""

    def test_an_empty_day(self):
        """All of it."""
        self.assertEqual(free([]), [(540, 1020)])

    def test_between_two(self):
        """What is before, between and after."""
        self.assertEqual(free([(600, 630), (700, 720)]), [(540, 600), (630, 700), (720, 1020)])

    def test_a_short_one_inside_a_long_one(self):
        """Nothing is free before the long one ends."""
        self.assertEqual(free([(540, 900), (600, 630)]), [(900, 1020)])


class LineTest(unittest.TestCase):
    """What people read."""

    def test_line(self):
        """Hours and minutes."""
        self.assertEqual(line((540, 615)), "09:00-10:15")


if __name__ == "__main__":
    unittest.main()
