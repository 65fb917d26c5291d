"""Tests of wrapping."""

import unittest

from paragraphs import layout
from wrapping import longest, wrap


class WrapTest(unittest.TestCase):
    """Lines."""

    def test_nothing(self):
        """No words, no lines."""
        self.assertEqual(wrap("", 10), [])

    def test_one_line(self):
        """It all fits."""
        self.assertEqual(wrap("a b c", 10), ["a b c"])

    def test_several_lines(self):
        """All words are there."""
        self.assertEqual(wrap("the quick brown fox jumps", 10), ["the quick", "brown fox", "jumps"])

    def test_no_line_is_too_long(self):
        """The space counts."""
        self.assertLessEqual(longest(wrap("abcde fghij klmno", 10)), 10)

    def test_a_long_word(self):
        """It has a line of its own."""
        self.assertEqual(wrap("a extraordinary b", 5), ["a", "extraordinary", "b"])


class LongestTest(unittest.TestCase):
    """The longest line."""

    def test_no_lines(self):
        """Nothing is no characters long."""
        self.assertEqual(longest([]), 0)

    def test_lines(self):
        """The longest counts."""
        self.assertEqual(longest(["a", "abc", "ab"]), 3)


class LayoutTest(unittest.TestCase):
    """Paragraphs."""

    def test_two(self):
        """An empty line between them."""
        self.assertEqual(layout("one two\n\nthree", 20), "one two\n\nthree")

    def test_indent(self):
        """It counts as part of the line."""
        self.assertEqual(layout("one two three", 9, indent="  "), "  one two\n  three")


if __name__ == "__main__":
    unittest.main()
